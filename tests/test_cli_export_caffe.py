"""``xframe export --from``: a user's own files as ONNX."""

import json

import pytest

from xframe import artifact, cli, environments
from xframe.errors import Unavailable

TEXT = """
name: "net" input: "data" input_dim: 10 input_dim: 3 input_dim: 8 input_dim: 8
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "prob" type: "Softmax" bottom: "pool" top: "prob" }
"""


@pytest.fixture
def xframe(capsys):
    def call(*args):
        code = cli.main([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err.splitlines()

    return call


@pytest.fixture
def given(tmp_path):
    """A network without weights, and a file of the weights of another layer."""
    (tmp_path / "net.prototxt").write_text(TEXT)
    (tmp_path / "net.caffemodel").write_bytes(b"\x0a\x01m\xa2\x06\x03\x0a\x01?")
    return [tmp_path / "net.prototxt", tmp_path / "net.caffemodel"]


@pytest.fixture
def built():
    try:
        environments.find("caffe")
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["net.prototxt"], "net.prototxt: files are taken with --from"),
        (["--from", "caffe"], "--from caffe converts files: name them"),
        (["--from", "cafe", "x"], "unknown framework 'cafe': did you mean caffe?"),
        (["--from", "caffe", "--framework", "caffe", "x"], "leave out --framework"),
        (["--from", "caffe", "x", "--batch", "1,2"], "one --batch of at least 1"),
        (["--from", "caffe", "x", "--batch", "0"], "one --batch of at least 1"),
    ],
)
def test_requests_that_make_no_sense(xframe, args, words):
    code, out, err = xframe("export", *args)
    assert (code, out, len(err)) == (2, "", 1)
    assert words in err[0]


def test_a_framework_that_is_not_built(xframe, given, tmp_path, monkeypatch):
    monkeypatch.setenv("XFRAME_ENVIRONMENTS", str(tmp_path / "none"))
    code, out, err = xframe("export", "--from", "caffe", *given, "-o", tmp_path / "m.onnx")
    assert (code, out) == (1, "")
    assert err[-1] == "xframe: the environment caffe is not built: run xframe env create caffe"
    assert not (tmp_path / "m.onnx").exists()


def test_a_framework_that_has_no_files(xframe, plugins, given, tmp_path):
    plugins(pytorch="Honest")
    code, _, err = xframe("export", "--from", "pytorch", *given, "-o", tmp_path)
    assert code == 1
    assert "pytorch has no files of its own" in err[-1]


def test_a_model_of_caffe(built, xframe, given, tmp_path):
    code, out, _ = xframe("export", "--from", "caffe", *given, "-o", tmp_path / "m.onnx")
    assert code == 0
    assert out.startswith(f"{tmp_path / 'm.onnx'}  opset 17, ")
    made = artifact.load(tmp_path / "m.onnx")
    assert [(i.name, i.shape) for i in made.inputs] == [("data", (10, 3, 8, 8))]
    assert [(o.name, o.shape) for o in made.outputs] == [("prob", (10, 3, 4, 4))]
    code, out, _ = xframe("export", "--from", "caffe", *given, "-o", tmp_path / "out", "--batch", "2", "--json")
    facts = json.loads(out)
    assert facts["path"] == str(tmp_path / "out" / "net.onnx")
    assert (facts["model"], facts["framework"], facts["batch"], facts["opset"]) == ("net", "caffe", 2, 17)
    assert artifact.load(facts["path"]).sha256 == facts["sha256"]


def test_a_file_that_is_no_model(built, xframe, given, tmp_path):
    given[0].write_text("layer { nonsense }")
    code, out, err = xframe("export", "--from", "caffe", *given, "-o", tmp_path / "m.onnx")
    assert (code, out) == (1, "")
    assert "net.prototxt is no network in Caffe's text format: 1:" in err[-1]
    assert not (tmp_path / "m.onnx").exists()
