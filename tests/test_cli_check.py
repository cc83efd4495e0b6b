"""The command ``check``: what it asks the checker, what it shows, its exit codes, and its one-line errors."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import check_samples as samples
from xframe import cli
from xframe.equivalence.result import State
from xframe.errors import Mismatch, ModelError, UsageError

DEFAULTS = {
    "names": {}, "layouts": {}, "sizes": {}, "levels": ("signature", "normal form", "numerics"), "runners": ("ort",),
    "count": 2, "seed": 0, "value_range": None, "fold_batchnorm": True, "reduce": None,
}  # fmt: skip


@pytest.fixture
def check(monkeypatch, capsys, plugins):
    """The command, with a checker that finds ``found`` or raises it: gives the code, out, err and calls."""

    def call(found, *args):
        calls = []

        def fake(subjects, inputs=None, *, progress=None, **options):
            progress("float64 reference")
            calls.append((subjects, inputs, options))
            if isinstance(found, BaseException):
                raise found
            return found

        monkeypatch.setitem(sys.modules, "xframe.check.api", SimpleNamespace(check_equivalence=fake))
        code = cli.main(["check", *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err.splitlines(), calls

    return call


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (samples.equal(), 0, "equivalent: b.onnx computes what a.onnx computes"),
        (samples.unequal(), 3, "NOT equivalent: b.onnx parts from a.onnx at conv2 (Conv)"),
        (samples.unchecked(), 1, "can't tell: b.onnx against a.onnx: numerics unchecked"),
    ],
)
def test_the_verdict_is_on_stdout_and_in_the_exit_code(check, found, code, words):
    got, out, err, ((subjects, inputs, options),) = check(found, "x/a.onnx", "y/b.onnx")
    assert (got, inputs, options) == (code, None, DEFAULTS)
    assert out.startswith(words)
    assert err == ["float64 reference"]
    assert subjects == {"a.onnx": Path("x/a.onnx"), "b.onnx": Path("y/b.onnx")}


def test_every_option_reaches_the_checker(check, tmp_path):
    args = ["--inputs", "in.npz", "--count", 3, "--seed", 7, "--layout", "b.onnx=nhwc", "--map", "x=input:0,y=out",
            "--size", "batch=4,h=32", "--size", "w=16", "--level", "numerics,normal_form,gradients", "--runner",
            "ort:disabled,ort:all,tvm:winograd,native", "--keep-batchnorm", "--reduce", tmp_path / "r"]  # fmt: skip
    _, _, _, ((_, inputs, options),) = check(samples.equal(), "a.onnx", "b.onnx", *args)
    assert inputs == Path("in.npz")
    assert options == {
        "names": {"x": "input:0", "y": "out"}, "layouts": {"b.onnx": "NHWC"}, "sizes": {"batch": 4, "h": 32, "w": 16},
        "levels": ("normal form", "numerics", "gradients"),
        "runners": ("ort:disabled", "ort:all", "tvm:winograd", "native"), "count": 3, "seed": 7, "value_range": None,
        "fold_batchnorm": False, "reduce": tmp_path / "r",
    }  # fmt: skip
    _, _, _, ((_, _, options),) = check(samples.equal(), "a.onnx", "b.onnx", "--range", "-1,2.5", "--runner", "none")
    assert (options["value_range"], options["runners"]) == ((-1.0, 2.5), ())


@pytest.mark.parametrize(
    ("given", "subjects"),
    [
        (["tiny"], {f"tiny@{f}": f"tiny@{f}" for f in ("pytorch", "tensorflow", "jax")}),
        (["tiny@jax", "b.onnx"], {"tiny@jax": "tiny@jax", "b.onnx": Path("b.onnx")}),
        (["x/m.onnx", "y/m.onnx"], {"x/m.onnx": Path("x/m.onnx"), "y/m.onnx": Path("y/m.onnx")}),
        (["m.onnx", "m.onnx"], {"m.onnx": Path("m.onnx"), "m.onnx (2)": Path("m.onnx")}),
        (["m.onnx"], {"m.onnx": Path("m.onnx")}),
    ],
)
def test_what_is_checked_has_short_names_that_differ(check, given, subjects):
    assert check(samples.equal(), *given)[3][0][0] == subjects


def test_a_layout_is_named_as_the_model_was(check):
    calls = check(samples.equal(), "x/m.onnx", "y/b.onnx", "--layout", "x/m.onnx=NHWC,b.onnx=NCHW")[3]
    assert calls[0][2]["layouts"] == {"m.onnx": "NHWC", "b.onnx": "NCHW"}


def test_json_is_one_object(check):
    code, out, _, _ = check(samples.unequal(), "a.onnx", "b.onnx", "--json")
    (line,) = out.splitlines()
    assert (code, json.loads(line)["state"]) == (3, "different")


def test_the_page_is_written_beside_the_report(check, tmp_path):
    path = tmp_path / "new" / "page.html"
    code, out, err, _ = check(samples.unequal(), "a.onnx", "b.onnx", "--html", path)
    assert (code, err[-1]) == (3, f"wrote {path}")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert out.startswith("NOT equivalent")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["a.onnx", "b.onnx", "--count", "0"], "--count 0 makes no sense"),
        (["a.onnx", "b.onnx", "--range", "1"], "--range '1': give two numbers"),
        (["a.onnx", "b.onnx", "--range", "2,1"], "--range '2,1': give two numbers"),
        (["a.onnx", "b.onnx", "--range", "0,nan"], "--range '0,nan': give two numbers"),
        (["a.onnx", "b.onnx", "--range", "0,1", "--inputs", "x.npz"], "--inputs and --range: give one of them"),
        (["a.onnx", "b.onnx", "--layout", "NHWC"], "--layout 'NHWC': give NAME=VALUE"),
        (["a.onnx", "b.onnx", "--layout", "b.onnx=HWCN"], "--layout 'b.onnx=HWCN': a layout is NCHW or NHWC"),
        (["a.onnx", "b.onnx", "--layout", "c.onnx=NHWC"], "no model has that name; there are: a.onnx, b.onnx"),
        (["a.onnx", "b.onnx", "--size", "n=0"], "--size 'n=0': a size is a whole number"),
        (["a.onnx", "b.onnx", "--size", "n=1,n=2"], "--size: n is given twice"),
        (["a.onnx", "b.onnx", "--map", "a="], "--map 'a='"),
        (["a.onnx", "b.onnx", "--level", "numeric"], "--level numeric: there are signature, normal-form, numerics"),
        (["a.onnx", "b.onnx", "--runner", ","], "--runner ',' names nothing"),
        (["a.onnx", "--runner", "none"], "one model, and nothing to hold it against"),
        (["tyni"], "unknown model 'tyni': did you mean tiny"),
        (["a.onnx", "b.onnx", "--html", "."], "--html . is a folder"),
        ([], "A B"),
    ],
)
def test_a_senseless_request_is_one_line_and_exit_code_2(check, args, words):
    code, out, err, calls = check(samples.equal(), *args)
    assert (code, out, calls) == (2, "", [])
    assert err[-1].startswith("xframe: ")
    assert words in err[-1]


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("unknown runner 'otr'"), 2), (ModelError("a.onnx: no such file"), 1), (Mismatch("off"), 1)],
)
def test_an_error_is_one_line_and_never_a_verdict(check, error, code):
    got, out, err, _ = check(error, "a.onnx", "b.onnx")
    assert (got, out) == (code, "")
    assert err == ["float64 reference", f"xframe: {error}"]


def test_what_can_not_be_written_is_told_before_the_work(check, tmp_path):
    (tmp_path / "file").write_text("")
    for flag, place in (("--reduce", tmp_path / "file" / "r"), ("--html", tmp_path / "file" / "page.html")):
        code, out, err, calls = check(samples.equal(), "a.onnx", "b.onnx", flag, place)
        assert (code, out, calls, len(err)) == (1, "", [], 1)
        assert "can't write to the folder" in err[0]


def test_ctrl_c_is_no_verdict(check):
    assert check(KeyboardInterrupt(), "a.onnx", "b.onnx")[0] == 130


def test_help_names_the_exit_codes_and_every_level(check):
    out = check(samples.equal(), "--help")[1]
    assert all(word in out for word in ("signature", "normal-form", "numerics", "gradients", "0: yes; 3: no; 1:"))


def test_states_have_the_exit_codes_that_the_help_promises():
    codes = {c.state: c.exit_code for c in (samples.equal(), samples.unequal(), samples.unchecked())}
    assert codes == {State.EQUIVALENT: 0, State.DIFFERENT: 3, State.UNCHECKED: 1}
