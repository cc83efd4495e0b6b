"""``xframe ablate``: the table, the rows as JSON, the result on disk, and the exit codes."""

import json

import pytest

from tests.fake_switches import SWITCHES
from xframe import cli, environment, store
from xframe.analysis.ablations import ablations
from xframe.registry import FRAMEWORKS, Row

FAST = ["--model", "tiny", "--framework", "torch", "--backend", "native", "--rounds", "3", "--time-limit", "60"]


@pytest.fixture
def ablate(plugins, monkeypatch, capsys):
    """Runs the command over a fake with some switches; gives its exit code, stdout, and stderr as lines."""
    monkeypatch.setattr(environment, "allowed_cpus", lambda: [0])
    monkeypatch.setattr(environment, "pinned_cpus", lambda threads: None)
    monkeypatch.delitem(FRAMEWORKS, "torch.compile")  # it is another way to run pytorch, and would be tried

    def call(*args, switches=("fast", "wrong", "refused"), where="tests.fake_switches:Switched"):
        chosen = tuple(s for s in SWITCHES if s.name in switches)
        monkeypatch.setitem(FRAMEWORKS, "pytorch", Row(where, (), "x", ("torch",), False, chosen))
        code = cli.main(["ablate", *FAST, *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err.splitlines()

    return call


def test_table_headline_and_result(ablate, tmp_path):
    code, out, err = ablate("-o", tmp_path, "--threshold", "0.125")
    assert code == 0  # what an option breaks is a finding
    assert "options alone give pytorch" in out
    assert "wrong=on: MISMATCH" in out
    assert "refused=on: UNSUPPORTED: this build has no such kernels" in out
    assert err[-1] == f"wrote {tmp_path / 'run.json'}"
    (found,) = ablations(store.load(tmp_path).measurements)
    assert str(found.together) == "fast=on"
    assert "a difference below 12.5% is none" in out
    assert {s.threshold for s in found.settings} == {0.125}  # whoever reads it later judges as was asked


def test_json_is_one_row_a_line(ablate):
    code, out, _ = ablate("--json", "--batch", "2", switches=("fast", "refused"))
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {r["batch"] for r in rows} == {2}
    assert [(r["step"], r["changed"], r["outcome"], r["verdict"]) for r in rows[:3]] == [
        ("default", {}, "OK", "same"),
        ("alone", {"fast": "on"}, "OK", "faster"),
        ("alone", {"refused": "on"}, "UNSUPPORTED", None),
    ]
    assert rows[1]["options"] == {"fast": "on"}
    assert rows[1]["speedup_low"] > 1.02


def test_defaults_that_fail_set_the_exit_code(ablate):
    code, out, _ = ablate(switches=("fast",), where="tests.fake_plugins:Wrong")
    assert code == 3
    assert "its defaults are MISMATCH" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--threads", "0"], "--threads 0 makes no sense"),
        (["--threshold", "-0.5"], "--threshold -0.5 makes no sense"),
        (["--rounds", "0"], "--rounds 0 makes no sense"),
        (["--framework", "pytroch"], "did you mean pytorch"),
    ],
)
def test_a_senseless_request_is_one_line_and_exit_code_2(ablate, args, words):
    code, out, err = ablate(*args)
    assert (code, out) == (2, "")
    assert words in err[-1]
