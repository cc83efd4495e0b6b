"""The command ``explain``: what is printed where, what is written, and the exit code."""

import json

import pytest

from tests.test_cli import xframe  # noqa: F401  # a fixture
from tests.test_explain import fakes, few, known  # noqa: F401  # fixtures
from xframe import cli, explain, store
from xframe.comparison import Interrupted

FAST = ["--model", "tiny", "--framework", "torch", "--rounds", "1", "--threads", "1", "--passes", "2"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--framework", "pytroch"], "did you mean pytorch"),
        (["--backend", "tvn"], "did you mean tvm"),
        (["--passes", "0"], "--passes 0 makes no sense"),
        (["--batch", "0"], "--batch 0 makes no sense"),
        (["--rounds", "0"], "--rounds 0 makes no sense"),
        (["--error-budget", "0"], "--error-budget 0 makes no sense"),
        (["--schedules", "absent"], "--schedules absent: there is no such folder"),
        (["--if", "conv9=fft"], "there is no convolution 'conv9'; there are: conv1, conv2"),
        (["--if", "jax:conv1=fft"], "jax is not explained"),
        (["--if", "conv1=fast"], "unknown lowering 'fast'"),
        (["--model", "x.onnx"], "has no native form"),
    ],
)
def test_a_senseless_request_is_one_line_and_exit_code_2(xframe, plugins, args, words):  # noqa: F811
    plugins()
    base = [] if args[0] == "--model" else FAST[:4]
    code, out, err = xframe("explain", *base, *args)
    assert (code, out, len(err)) == (2, "", 1)
    assert words in err[0]


def test_sentences_and_tables_are_on_stdout_and_written(xframe, fakes, few, tmp_path):  # noqa: F811
    fakes(pytorch="Native", tensorflow="Native")
    code, out, err = xframe("explain", *FAST[:2], "--framework", "torch,tf", *FAST[4:], "--details",
                            "--if", "conv1=winograd", "-o", tmp_path / "o")  # fmt: skip
    assert code == 0
    assert "pytorch takes " in out
    assert "If pytorch used conv1=winograd at batch 1, 1 thread" in " ".join(out.split())
    assert "jit:avx512_core" in out
    assert "dispatch" in out
    assert "timing, round 1 of 1" in err
    assert err[-1] == f"wrote {tmp_path / 'o' / 'run.json'} and {tmp_path / 'o' / 'explanation.md'}"
    written = (tmp_path / "o" / "explanation.md").read_text()
    assert written.startswith("# Where tiny spends its time\n\n- ")
    assert "residual" in written
    run = store.load(tmp_path / "o")
    assert (set(run.machines), set(run.layers)) == ({1}, {1})
    assert [c["asked"] for c in run.counterfactuals][-1] == "conv1=winograd"
    code, out, _ = xframe("report", tmp_path / "o", "--format", "markdown")
    assert code == 0
    assert "If tensorflow used conv1=winograd at batch 1, 1 thread" in out.replace("\\", "")


def test_json_is_one_object_a_line_each_with_its_kind(xframe, fakes, few):  # noqa: F811
    fakes(pytorch="Native", tensorflow="Native")
    code, out, _ = xframe("explain", *FAST[:2], "--framework", "torch,tf", *FAST[4:], "--json")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    kinds = [x["kind"] for x in found]
    assert list(dict.fromkeys(kinds)) == ["row", "decomposition", "difference", "counterfactual", "sentence"]
    assert (kinds.count("row"), kinds.count("decomposition"), kinds.count("difference")) == (5, 2, 1)
    assert all(set(store.ROW_KEYS) <= set(x) for x in found if x["kind"] == "row")
    for d in (x for x in found if x["kind"] == "decomposition"):
        assert sum(t["seconds"] for t in d["terms"]) == pytest.approx(d["wall"]["seconds"])


def test_a_refused_question_is_told_and_is_exit_code_1(xframe, fakes, few):  # noqa: F811
    fakes(pytorch="Native")
    code, out, _ = xframe("explain", *FAST, "--if", "conv2=winograd")
    assert code == 1
    assert "It was not run: UNSUPPORTED, winograd at conv2" in " ".join(out.split())


def test_a_bad_row_sets_the_exit_code(xframe, fakes, few, plugins):  # noqa: F811
    fakes(pytorch="Native")
    plugins(tensorflow="Wrong")
    code, out, _ = xframe("explain", *FAST[:2], "--framework", "torch,tf", *FAST[4:])
    assert code == 3
    assert "tensorflow at batch 1, 1 thread is not explained: MISMATCH" in " ".join(out.split())


def test_an_interrupt_prints_what_was_finished(xframe, fakes, few, monkeypatch):  # noqa: F811
    fakes(pytorch="Native")
    whole = explain.explain

    def pressed(*args):
        raise Interrupted(whole(*args).run)

    monkeypatch.setattr(explain, "explain", pressed)
    code, out, err = xframe("explain", *FAST)
    assert code == 130
    assert "pytorch takes " in out
    assert err[-1] == "xframe: interrupted; the rows that were finished are above"


def test_passes_are_taken_after_each_round(xframe, fakes, few, tmp_path):  # noqa: F811
    fakes(pytorch="Native")
    code, _, _ = xframe("explain", *FAST[:4], "--rounds", "3", *FAST[6:], "-o", tmp_path / "o")
    assert code == 0
    native = next(m for m in store.load(tmp_path / "o").measurements if m.case.runner == "native")
    assert (len(native.rounds), len(native.profiles)) == (3, 6)
    assert [told[1] for told in native.environment["profiled"]] == [2, 2, 2]


def test_help_names_the_flags(capsys):
    cli.main(["explain", "--help"])
    text = capsys.readouterr().out
    for flag in ("--if", "--passes", "--details", "--json", "--batch"):
        assert flag in text
