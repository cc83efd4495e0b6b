"""The command ``tune`` with a runner that makes its times up: what it prints, keeps, and refuses."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuning.fake import FakeRunner, crashes, spaces
from xframe import cli
from xframe.errors import XframeError
from xframe.schedules import find, log
from xframe.tuning import search

ROOT = Path(__file__).resolve().parents[1]
#: A process with the fake runner; its trials take a while.
SLOW = """
import contextlib, sys
from xframe.worker.alone import without_frameworks
with without_frameworks():
    from tests.tuning.fake import FakeRunner
from xframe.cli import main, tuning
tuning._runner = lambda *_: contextlib.closing(FakeRunner(delay=0.03))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(search, "Spaces", spaces)


@pytest.fixture
def tune(monkeypatch, capsys, tmp_path):
    """Runs the command here with a fake runner; gives its exit code, stdout, and stderr as lines."""

    def call(*args, runner=None):
        made = runner or FakeRunner()
        monkeypatch.setattr("xframe.cli.tuning._runner", lambda *_: contextlib.closing(made))
        code = cli.main(
            ["tune", "-o", str(tmp_path / "out"), "--threads", "2", "--strategy", "replay", *map(str, args)]
        )
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert made.closed or not made.asked
        return code, out, err.splitlines()

    return call


def test_the_table_has_a_line_a_kernel_and_the_mean(tune, convnet, tmp_path):
    code, out, err = tune("--model", convnet(), "--lowering", "direct", "--trials", 30)
    assert code == 0
    head, *lines = out.splitlines()
    assert " ".join(head.split()) == "kernel tile and knobs by hand us tuned us gain GFLOP/s trials failed"
    assert "unroll 2" in out
    assert "1.25x" in out
    assert "[1] none of 10 schedules was faster" in lines
    assert "1 of 2 kernels tuned; geometric mean of the gain 1.118x (1 where the template stays)" in lines
    assert "CPU seconds each" in out
    (folder,) = find.folders(tmp_path / "out")
    assert f"wrote {folder}" in out
    assert folder.parts[-2:] == ("net-b1", "direct")
    assert len(log.read(folder).entries) == 1
    assert any("of 30 trials: 1 x 6x12x12 -> 4, 3x3 /3 direct: searching, best 1.25x" in line for line in err)


def test_several_models_and_lowerings_are_one_queue(tune, convnet, tmp_path):
    files = f"{convnet()},{convnet('second.onnx', batch=2)}"
    code, out, _ = tune("--model", files, "--lowering", "direct,gemm", "--trials", 80, "--json")
    *rows, total = map(json.loads, out.splitlines())
    assert code == 0
    assert (total["kind"], total["kernels"], total["tuned"], total["notes"]) == ("session", 8, 4, [])
    assert {row["kind"] for row in rows} == {"kernel"}
    assert {(*row["works"], row["lowering"]) for row in rows} == {
        (f"{net}/{low}", low) for net in ("net-b1", "second-b2") for low in ("direct", "gemm")
    }
    gains = {"tuned": pytest.approx(1.25), "template": 1.0}
    assert all(row["gain"] == gains[row["verdict"]] for row in rows)
    assert sum(row["trials"] for row in rows) == 80
    assert len(find.folders(tmp_path / "out")) == 4


def test_a_template_that_stays_is_told_why(tune, convnet):
    code, out, _ = tune(
        "--model", convnet(), "--lowering", "direct", "--trials", 20, runner=FakeRunner(lambda task, point: 1.0)
    )
    assert code == 0
    assert "the template stays [1]" in out
    assert "schedules was faster" in out
    assert "0 of 2 kernels tuned; geometric mean of the gain 1.000x" in out


def test_a_runner_that_fails_for_all_is_exit_code_1(tune, convnet):
    code, out, err = tune("--model", convnet(), "--lowering", "direct", "--trials", 20, runner=FakeRunner(crashes))
    assert code == 1
    assert "CRASHED 2" in out
    assert err[-1].startswith("xframe: nothing could be measured; ")


def test_when_nobody_measures_any_more_the_table_is_there_and_resume_goes_on(tune, convnet):
    runner = FakeRunner(last=27)
    runner.error = XframeError("no server is left")
    args = ("--model", convnet(), "--lowering", "direct", "--trials", 30)
    code, out, err = tune(*args, runner=runner)
    assert code == 1
    assert "1.25x" in out
    assert err[-1] == "xframe: no server is left"
    code, out, _ = tune(*args, "--resume")
    assert code == 0
    assert "27 trials are from the journal" in out


def test_ctrl_c_is_exit_code_130_and_what_was_kept_is_written(convnet, tmp_path):
    args = ["tune", "--model", str(convnet()), "--lowering", "direct", "--trials", "30", "--strategy", "replay"]
    command = [sys.executable, "-c", SLOW, *args, "--threads", "2", "-o", str(tmp_path / "out"), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if "confirming" in line:
                    break
            for line in process.stderr:
                if "searching" in line:  # the next kernel
                    process.send_signal(signal.SIGINT)
                    break
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "xframe: interrupted; what is above is kept, and --resume goes on"
    first, second, total = map(json.loads, out.splitlines())
    assert (first["verdict"], second["verdict"], total["tuned"]) == ("template", "tuned", 1)
    assert first["reason"] == "not finished: --resume goes on"
    (folder,) = find.folders(tmp_path / "out")
    assert set(log.read(folder).entries) == {second["task"]}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--trials", "0"], "--trials 0 makes no sense"),
        (["--workers", "0"], "--workers 0 makes no sense"),
        (["--threads", "0"], "--threads 0 makes no sense"),
        (["--batch", "0"], "--batch 0 makes no sense"),
        (["--seed", "-1"], "--seed -1 makes no sense"),
        (["--error-budget", "0"], "--error-budget 0 makes no sense"),
        (["--strategy", "luck"], "--strategy 'luck': there are evolutionary and replay"),
        (["--space", "all"], "--space 'all': there are template and auto"),
        (["--lowering", "winogrd"], "unknown lowering 'winogrd': did you mean winograd?"),
        (["--fallback", "gem"], "unknown lowering 'gem': did you mean gemm"),
        (["--model", "alexnt"], "unknown model 'alexnt': did you mean alexnet"),
        (["--framework", "pytroch"], "unknown framework 'pytroch': did you mean pytorch"),
        (["--tracker", "localhost:9190"], "--tracker and --key go together"),
        (["--key", "h200"], "--tracker and --key go together"),
    ],
)
def test_a_senseless_request_is_one_line_and_exit_code_2(tune, args, words):
    code, out, err = tune(*args)
    assert (code, out, len(err)) == (2, "", 1)
    assert err[0].startswith("xframe: ")
    assert words in err[0]


def test_a_batch_that_a_file_does_not_have_is_refused(tune, convnet):
    code, _, err = tune("--model", convnet(), "--batch", "4")
    assert code == 2
    assert "net.onnx is fixed at batch 1: leave --batch out" in err[-1]


def test_too_few_trials_are_refused(tune, convnet):
    code, _, err = tune("--model", convnet(), "--lowering", "direct", "--trials", 3)
    assert code == 2
    assert "--trials 3 is too few for 2 kernels" in err[-1]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--device", "tpu"], 2, "unknown device 'tpu'"),
        (["--target", "sm_90"], 1, "--target sm_90 was asked for: a schedule is kept for what it was timed on"),
        (["--device", "cuda", "--tracker", "localhost:1", "--key", "a"], 1, "of a tracker measure on their CPUs"),
        (["--device", "cuda", "--threads", "2"], 2, "--threads is of a CPU's kernels"),
        (["--device", "cuda:0,1", "--space", "auto"], 2, "--space auto is for CPUs"),
        (["--device", "cuda:1"], 1, "device cuda:1 was asked for, and the driver tells of 0 GPUs here"),
    ],
)
def test_what_can_not_be_tuned_is_one_line(args, code, words, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("xframe.nvml.gpus", list)
    assert cli.main(["tune", "-o", str(tmp_path), *args]) == code
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert words in err


def test_a_folder_that_can_not_be_written_is_told_before_the_work(tune, tmp_path):
    (tmp_path / "out").write_text("")
    code, out, err = tune("--model", "alexnet")
    assert (code, out, len(err)) == (1, "", 1)
    assert f"can't write to the folder {tmp_path / 'out'}: " in err[0]


def test_the_script_works_without_an_installation(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "tune.py", "--model", "alexnt", "-o", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "did you mean alexnet" in done.stderr
