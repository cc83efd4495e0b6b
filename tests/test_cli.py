"""The command line: one clear line for each way to go wrong, and the exit code that says which."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from xframe import cli, store, types
from xframe.registry import BACKENDS, FRAMEWORKS, LOWERINGS
from xframe.results import Measurement
from xframe.types import Case, Outcome, Plan

ROOT = Path(__file__).resolve().parents[1]
FAST = ["--rounds", "1", "--threads", "1", "--time-limit", "60"]
#: The host rests between two visits, before the first of the third round, until a signal wakes it.
RESTS = """
import itertools, signal, time
from xframe import measure
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell takes from what it runs in the background
visits, settle = itertools.count(1), measure.settle
measure.settle = lambda pids: time.sleep(600) if next(visits) == 5 else settle(pids)
"""


@pytest.fixture
def xframe(capsys):
    """Runs a command here; gives its exit code, stdout, and stderr as lines."""

    def call(*args):
        code = cli.main([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err.splitlines()

    return call


def script(*args, registered=(), before="", **options):
    """A command in a process of its own; ``registered`` names (table, name, class of fake_plugins).

    ``before``: code that is run first.
    """
    rows = "".join(f"registry.{t}[{n!r}] = registry.Row('fake_plugins:{c}', (), 'x')\n" for t, n, c in registered)
    first = f"import sys\nfrom xframe import registry\n{before}{rows}"
    code = f"{first}from xframe.cli import main\nsys.exit(main(sys.argv[1:]))"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], cwd=ROOT, **pipes, **options)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare", "--batch", "0"], "--batch 0 makes no sense"),
        (["compare", "--batch", "one"], "--batch 'one': give whole numbers"),
        (["compare", "--batch", ","], "--batch ',' names nothing"),
        (["compare", "--threads", "0"], "--threads 0 makes no sense"),
        (["compare", "--rounds", "0"], "--rounds 0 makes no sense"),
        (["compare", "--time-limit", "0"], "--time-limit 0 makes no sense"),
        (["compare", "--time-limit", "nan"], "--time-limit nan makes no sense"),
        (["compare", "--seed", "x"], "--seed"),
        (["compare", "--framework", "pytroch"], "unknown framework 'pytroch': did you mean pytorch"),
        (["compare", "--backend", "tvn"], "unknown backend 'tvn': did you mean tvm?"),
        (["compare", "--lowering", "winogrd"], "unknown lowering 'winogrd': did you mean winograd?"),
        (["compare", "--fallback", "gem"], "unknown lowering 'gem': did you mean gemm"),
        (["compare", "--device", "tpu"], "unknown device 'tpu'"),
        (["compare", "--model", "alexnt"], "unknown model 'alexnt': did you mean alexnet"),
        (["compare", "--lowering", "absent.json"], "can't read the plan absent.json"),
        (["run", "--batch", "-1"], "--batch -1 makes no sense"),
        (["run", "--backend", "ort", "--lowering", "fft"], "--lowering needs --backend"),
        (["run", "--backend", "ort", "--error-budget", "1e-5"], "--error-budget needs --backend tvm"),
        (["run", "--backend", "ort", "--target", "llvm"], "--target needs --backend tvm"),
        (["run", "--schedules", "absent"], "--schedules absent: there is no such folder"),
        (["run", "--backend", "ort", "--schedules", "."], "--schedules needs --backend tvm"),
        (["run", "--backend", "ort", "--allow-foreign-log"], "--allow-foreign-log needs --backend tvm"),
        (["run", "--allow-foreign-log", "--schedules", "none"], "makes no sense with --schedules none"),
        (["run", "--error-budget", "0"], "--error-budget 0 makes no sense"),
        (["run", "--error-budget", "nan"], "--error-budget nan makes no sense"),
        (["export", "--batch", "0"], "--batch 0 makes no sense"),
        (["export", "--framework", "tensorflo"], "did you mean tensorflow"),
        (["export", "--model", "x.onnx"], "unknown model 'x.onnx'"),
        (["compare", "--bogus"], "No such option: --bogus"),
        (["compare", "--batch"], "--batch"),
        (["compre"], "compre"),
    ],
)
def test_a_senseless_request_is_one_line_and_exit_code_2(xframe, args, words):
    code, out, err = xframe(*args)
    assert (code, out) == (2, "")
    assert words in err[-1]
    assert err[-1].startswith("xframe: ")
    assert [line for line in err[:-1] if not line.startswith("loading")] == []


def truncated(convnet):
    path = convnet()
    path.write_bytes(path.read_bytes()[:-100])
    return path


def text(convnet):
    path = convnet()
    path.write_text("this is no model\n" * 20)
    return path


def external(convnet):
    path = convnet()
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()
    return path


BAD_FILES = {
    "missing": (lambda make: make().with_name("absent.onnx"), "no such file"),
    "truncated": (truncated, "not an ONNX file, or it is cut short"),
    "text": (text, "not an ONNX"),
    "folder": (lambda make: make().parent / "", "is a folder"),
    "external data missing": (external, "weights.bin, which is not there"),
    "dynamic batch": (lambda make: make(shape=["N", 3, 12, 12]), "dimension 0 of input x is not fixed (N)"),
    "empty image": (lambda make: make(shape=[1, 3, 0, 12]), "dimension 2 of input x is 0"),
    "float16": (lambda make: make(dtype=TensorProto.FLOAT16), "float16"),
    "unknown operator": (
        lambda make: make(extra=[helper.make_node("Twist", ["c2"], ["t"], "twist", domain="nobody")]),
        "Twist",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_model_file_is_one_line_and_exit_code_1(xframe, convnet, kind):
    make, words = BAD_FILES[kind]
    path = make(convnet)
    code, out, err = xframe("compare", "--model", f"{path}/" if path.is_dir() else path, "--backend", "ort", *FAST)
    assert (code, out) == (1, "")
    assert words in err[-1]
    assert err[-1].startswith("xframe: ")
    assert [line for line in err[:-1] if not line.startswith(("loading", "float64 reference"))] == []


def test_a_folder_that_can_not_be_written_is_told_before_the_work(xframe, convnet, tmp_path):
    (tmp_path / "file").write_text("")
    for command in (["compare", "--model", convnet(), "--backend", "ort"], ["export", "--framework", "jax"]):
        code, out, err = xframe(*command, "-o", tmp_path / "file" / "out")
        assert (code, out, len(err)) == (1, "", 1)
        assert f"can't write to the folder {tmp_path / 'file' / 'out'}: " in err[0]


def test_json_is_one_row_a_line_and_run_json_holds_them_too(xframe, convnet, tmp_path):
    code, out, _ = xframe(
        "compare", "--model", convnet(), "--backend", "ort,ort", *FAST, "--json", "-o", tmp_path / "o"
    )
    (line,) = out.splitlines()
    row = json.loads(line)
    assert code == 0
    assert set(row) == set(store.ROW_KEYS)
    assert (row["outcome"], row["backend"], row["framework"]) == ("OK", "ort", None)
    (kept,) = store.read(tmp_path / "o")["rows"]
    assert {k: kept[k] for k in row} == row
    assert len(kept["rounds_s"]) == 1


def test_the_table_is_on_stdout_and_progress_is_not(xframe, convnet, plugins):
    plugins(ort="Honest")
    code, out, err = xframe("compare", "--model", convnet(), "--backend", "ort", *FAST)
    assert code == 0
    assert "median ms" in out
    assert "timing, round 1 of 1" in err
    assert "timing" not in out


def test_run_is_one_row(xframe, plugins):
    plugins(pytorch="Honest", tvm="Honest")
    code, out, _ = xframe("run", "--model", "tiny", *FAST, "--json")
    assert code == 0
    assert [json.loads(x)["backend"] for x in out.splitlines()] == ["tvm"]
    code, out, _ = xframe("run", "--model", "tiny", "--backend", "native", *FAST, "--json")
    assert [json.loads(x)["backend"] for x in out.splitlines()] == ["native"]


@pytest.mark.parametrize(
    ("cls", "code", "outcome", "words"),
    [
        ("Wrong", 3, "MISMATCH", "times the bound"),
        ("Unfaithful", 4, "NOT_HONOURED", "something else would have run"),
        ("Crash", 1, "FAILED", "killed by SIGABRT"),
        ("OutOfMemory", 1, "FAILED", "out of memory"),
        ("Missing", 0, "UNAVAILABLE", "pip install 'xframe-eval[tvm]'"),
    ],
)
def test_a_bad_row_has_its_reason_and_sets_the_exit_code(xframe, plugins, cls, code, outcome, words):
    plugins(pytorch="Honest", tvm=cls)
    got, out, _ = xframe("compare", "--model", "tiny", "--framework", "torch", "--backend", "tvm", "--lowering", "auto",
                         *FAST)  # fmt: skip
    assert got == code
    assert outcome in out
    assert words in out


def test_a_hang_is_stopped_at_the_time_limit(xframe, plugins):
    plugins(pytorch="Honest", tvm="Hang")
    args = ["--framework", "torch", "--backend", "tvm", "--lowering", "auto", "--rounds", "1", "--time-limit", "2"]
    code, out, _ = xframe("compare", "--model", "tiny", *args)
    assert code == 1
    assert "TIMEOUT" in out
    assert "within 2 s" in out


def test_a_forced_lowering_that_is_refused_is_an_error_only_when_it_was_named(xframe, plugins, monkeypatch):
    for name in LOWERINGS.keys() - {"direct", "winograd"}:
        monkeypatch.delitem(LOWERINGS, name)
    plugins(pytorch="Honest", tvm="Honest")
    base = ["compare", "--model", "tiny", "--framework", "torch", "--backend", "tvm", *FAST]
    code, out, _ = xframe(*base, "--lowering", "winograd")
    assert code == 1
    assert "UNSUPPORTED" in out
    assert "--fallback" in out
    code, out, _ = xframe(*base)
    assert code == 0
    assert "UNSUPPORTED" not in out
    assert "fell back" in out


def row(outcome):
    case = Case("m", None, "ort", Plan(), "cpu", 1, 1)
    rounds = ((0.1,),) if outcome == Outcome.OK else ()
    return Measurement(case, outcome, "" if outcome == Outcome.OK else "why", rounds)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["OK"], 0),
        (["OK", "UNSUPPORTED", "UNAVAILABLE"], 0),
        (["UNSUPPORTED", "UNAVAILABLE"], 1),
        (["OK", "FAILED"], 1),
        (["OK", "TIMEOUT"], 1),
        (["OK", "NOT_HONOURED", "FAILED"], 4),
        (["OK", "NOT_HONOURED", "MISMATCH", "FAILED"], 3),
    ],
)
def test_the_gravest_row_decides_the_exit_code(outcomes, code):
    assert cli.exit_code([row(Outcome(o)) for o in outcomes]) == code


def test_export_writes_files_and_goes_on_after_one_that_fails(xframe, plugins, tmp_path):
    plugins(pytorch="ExportFails", jax="Honest")
    args = ["export", "--model", "tiny", "--framework", "torch,jax", "--batch", "1,2", "-o", tmp_path / "out"]
    code, out, err = xframe(*args)
    assert code == 1
    assert sum("no rule for this layer" in line for line in err) == 2
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["tiny-jax-b1.onnx", "tiny-jax-b2.onnx"]
    assert len(out.splitlines()) == 2
    _, out, _ = xframe(*args, "--json", "--framework", "jax")
    assert [json.loads(x)["cached"] for x in out.splitlines()] == [True, True]


def test_devices_names_what_is_missing(xframe, plugins, monkeypatch):
    plugins(pytorch="Honest", tensorflow="Missing", jax="NoSuchClass")
    for table, slow in ((BACKENDS, "tvm"), (FRAMEWORKS, "torch.compile"), (FRAMEWORKS, "caffe"), (FRAMEWORKS, "cntk")):
        monkeypatch.delitem(table, slow)
    monkeypatch.setenv("XFRAME_ENVIRONMENTS", "/no/such/folder")
    code, out, _ = xframe("devices", "--json")
    rows = {r["name"]: r for r in map(json.loads, out.splitlines())}
    assert code == 0
    assert rows["pytorch"]["version"] == "1.0"
    assert "pip install 'xframe-eval[tensorflow]'" in rows["tensorflow"]["reason"]
    assert "NoSuchClass" in rows["jax"]["reason"]
    assert rows["ort"]["version"]
    assert "run xframe env create theano" in rows["theano"]["reason"]
    for name in set(FRAMEWORKS) - {"tensorflow"}:
        monkeypatch.delitem(FRAMEWORKS, name)
    assert "missing:" in xframe("devices")[1]


def test_ctrl_c_prints_and_keeps_the_finished_rows(plugins, tmp_path):
    """Between two visits: one in the middle of a visit costs that row, see test_measure."""
    fakes = [("FRAMEWORKS", "pytorch", "Honest"), ("BACKENDS", "tvm", "Honest")]
    args = ["compare", "--model", "tiny", "--framework", "pytorch", "--backend", "tvm", "--lowering", "auto"]
    args += ["--rounds", "500", "--threads", "1,2", "-o", tmp_path / "out"]
    with script(*args, registered=fakes, before=RESTS) as process:
        try:
            for line in process.stderr:
                if line.startswith("timing, round 3 "):
                    process.send_signal(signal.SIGINT)
                    break
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted; the rows that were finished are above" in err
    rows = store.read(tmp_path / "out")["rows"]
    assert [r["outcome"] for r in rows] == ["OK", "OK", "FAILED", "FAILED"]
    assert "of 500 rounds" in " ".join(rows[0]["notes"])
    assert "interrupted before it was measured" in out


def test_a_reader_that_goes_away_is_no_error(convnet):
    with script("compare", "--model", convnet(), "--backend", "ort", *FAST, "--json") as process:
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 0
    assert "Error" not in err
    assert "Traceback" not in err


def test_the_script_works_without_an_installation(convnet, tmp_path):
    command = [sys.executable, ROOT / "scripts" / "compare.py", "--model", convnet(), "--backend", "ort", *FAST]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "OK"


def test_starting_imports_nothing_heavy():
    """``xframe --help`` and ``import xframe`` stay quick."""
    code = "import sys, xframe, xframe.cli\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.split()
    heavy = {"numpy", "onnx", "rich", "torch", "tensorflow", "jax", "tvm", "tvm_ffi", "onnxruntime", "pandas"}
    assert "xframe.cli" in loaded
    assert not heavy & set(loaded)


def test_help_names_every_lowering_and_every_backend(xframe):
    _, out, _ = xframe("compare", "--help")
    assert all(name in out for name in (*BACKENDS, *LOWERINGS, "native"))
    code, out, err = xframe()
    assert code == 2
    assert "compare" in "\n".join([out, *err])


def test_a_missing_package_of_our_own_is_one_line(xframe, monkeypatch):
    monkeypatch.setitem(sys.modules, "xframe.comparison", None)  # importing it fails, as that of a missing one does
    code, out, err = xframe("compare")
    assert (code, out, len(err)) == (1, "", 1)
    assert "is missing here: pip install" in err[0]


def test_vocabulary_is_not_shadowed_by_the_commands():
    """``cli.run`` and ``cli.compare`` are commands; the records keep their own place."""
    assert store.Run is not cli.run
    assert types.Outcome is Outcome
