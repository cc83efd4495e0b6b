"""Everything that can be given, opened; and what can't, in words."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from xframe import registry
from xframe.check.subjects import expand, open_all, open_subject
from xframe.errors import ModelError, Unavailable, UsageError, XframeError


def described(ports):
    return [(p.name, p.shape, p.dtype, p.layout) for p in ports]


def dense(batch="N", name="x", mute=False, image=None):
    """y = relu(x), its batch open; ``mute``: with an input that nothing reads."""
    shape = [batch, 4] if image is None else image
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
    if mute:
        inputs.append(helper.make_tensor_value_info("mute", TensorProto.FLOAT, [1]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"], "relu")], "dense", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_file(convnet, tmp_path):
    path = convnet()
    for thing in (path, str(path)):
        opened = open_subject(thing, "net", tmp_path)
        assert (opened.subject.name, opened.subject.kind, opened.path) == ("net", "ONNX file", path)
        assert len(opened.subject.sha256) == 64
        assert described(opened.interface.inputs) == [("x", (1, 3, 12, 12), "float32", "")]
        assert described(opened.interface.outputs) == [("y", (1, 4, 1, 1), "float32", "")]
        assert opened.graph.inputs == ("x",)
        assert opened.live is None


def test_the_stamps_of_a_file(convnet, tmp_path):
    proto = onnx.load(convnet())
    helper.set_model_props(proto, {"xframe.layout": "NHWC"})
    opened = open_subject(proto, "stamped", tmp_path)
    assert [p.layout for p in (*opened.interface.inputs, *opened.interface.outputs)] == ["NHWC", "NHWC"]


def test_half_precision(convnet, tmp_path):
    opened = open_subject(convnet(dtype=TensorProto.FLOAT16), "half", tmp_path)
    assert [p.dtype for p in (*opened.interface.inputs, *opened.interface.outputs)] == ["float16", "float16"]


def test_open_sizes_and_unread_inputs(tmp_path):
    opened = open_subject(dense(mute=True), "a", tmp_path, sizes={"N": 3})
    x, mute = opened.interface.inputs
    assert (x.shape, dict(x.free), x.read) == ((3, 4), {0: "N"}, True)
    assert (mute.shape, mute.read) == ((1,), False)
    assert opened.interface.outputs[0].shape == (3, 4)
    assert any("N is taken as 3" in note for note in opened.subject.notes)
    assert open_subject(dense(), "a", tmp_path).interface.outputs[0].shape == (1, 4)


def test_external_data(convnet, tmp_path):
    proto = onnx.load(convnet())
    path = tmp_path / "apart.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="apart.bin", size_threshold=0)
    opened = open_subject(path, "apart", tmp_path)
    assert described(opened.interface.outputs) == [("y", (1, 4, 1, 1), "float32", "")]


def test_a_model_in_memory_is_written_into_the_folder_and_nowhere_else(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("../../evil", "a/b", "..", "", "a/b", "ünï cödé"):
        path = open_subject(dense(), name, folder).path
        assert path.parent == folder
        assert path.exists()
    assert len(list(folder.iterdir())) == 6
    assert [p.name for p in tmp_path.iterdir()] == ["work"]


def test_registered_models_by_framework(plugins, tmp_path):
    plugins(pytorch="Honest", jax="Honest")
    opened = open_subject("tiny", "A", tmp_path)
    assert opened.subject.kind == "tiny exported by pytorch"
    assert opened.interface.inputs[0].shape == (1, 3, 8, 8)
    for thing in ("tiny@jax", "tiny:jax"):
        assert open_subject(thing, "B", tmp_path, sizes={"batch": 2}).interface.inputs[0].shape[0] == 2
    with pytest.raises(UsageError, match="unknown framework 'torchh': did you mean torch"):
        open_subject("tiny@torchh", "A", tmp_path)
    with pytest.raises(UsageError, match=r"unknown model 'tine': did you mean tiny\?; a file's name ends in \.onnx"):
        open_subject("tine", "A", tmp_path)


def test_the_live_model_of_a_registered_one_is_made_when_it_is_asked_for(plugins, tmp_path, monkeypatch):
    plugins(pytorch="Honest")
    monkeypatch.setitem(registry.LIVE, "pytorch", registry.Row("fake:Missing", ("no_such_module",), "torch"))
    opened = open_subject("tiny", "A", tmp_path)
    with pytest.raises(Unavailable, match=r"pip install 'xframe-eval\[torch\]'"):
        _ = opened.live


def test_one_registered_model_stands_for_all_frameworks(plugins):
    assert expand(["tiny"]) == ["tiny@pytorch", "tiny@tensorflow", "tiny@jax"]
    for things in (["tiny@jax"], ["tiny", "tiny"], ["no.onnx"], [dense], [], [np.zeros(3)]):
        assert expand(things) == list(things)


class Odd:
    pass


@pytest.mark.parametrize(
    ("thing", "error", "words"),
    [
        ("no.onnx", ModelError, "no such file"),
        (Path("no.onnx"), ModelError, "no such file"),
        ("weights.pt", UsageError, r"load its weights, and give it"),
        ("net.keras", UsageError, r"keras\.models\.load_model"),
        (3, UsageError, "a int can't be checked: give the path of an ONNX file"),
        (None, UsageError, "a NoneType can't be checked"),
        (Odd(), UsageError, "a Odd can't be checked"),
        (Odd, UsageError, "Odd is a class: give a model made of it"),
        (np.zeros(3), UsageError, "a ndarray can't be checked"),
        ((1, 2, 3), UsageError, "a tuple can't be checked"),
        (dense().graph, UsageError, r"a GraphProto can't be checked: give an onnx\.ModelProto"),
    ],
)
def test_what_can_not_be_opened(thing, error, words, tmp_path):
    with pytest.raises(error, match=words) as e:
        open_subject(thing, "A", tmp_path)
    assert "\n" not in str(e.value)


def test_a_folder(tmp_path):
    with pytest.raises(ModelError, match="is a folder"):
        open_subject(tmp_path, "A", tmp_path)


class Lively:
    """A live model, of a framework made up for the tests: y = relu of an image with three channels last."""

    kind, notes = "lively thing", ("it lives",)

    def __init__(self, thing):
        self.thing = thing

    def shapes(self):
        return self.thing.shapes

    def run(self, feeds):
        if feeds[0].ndim == 4 and feeds[0].shape[3] != 3:
            raise XframeError("three channels, please")
        return [np.maximum(feeds[0], 0)]

    def export(self, feeds):
        self.run(feeds)
        return dense(image=feeds[0].shape)


@pytest.fixture
def lively(monkeypatch):
    """Makes things that are told by the module of their class, as those of TensorFlow are."""
    monkeypatch.setattr("xframe.check.subjects.load_class", lambda table, name: {"tensorflow": Lively}[name])

    def make(shapes):
        return type("Net", (), {"__module__": "keras.src.models", "shapes": shapes})()

    return make


def test_a_live_model(lively, tmp_path):
    thing = lively([(None, 4)])
    opened = open_subject(thing, "A", tmp_path)
    assert (opened.subject.kind, opened.subject.notes) == ("lively thing", ("it lives",))
    assert opened.live.thing is thing
    assert opened.interface.inputs[0].shape == (1, 4)
    assert open_subject(thing, "A", tmp_path, sizes={"batch": 5}).interface.inputs[0].shape == (5, 4)
    assert open_subject(thing, "A", tmp_path, [[np.zeros((2, 4))]]).interface.inputs[0].shape == (2, 4)
    with pytest.raises(UsageError, match="does not tell the shapes of its inputs: give inputs"):
        open_subject(lively(None), "A", tmp_path)
    with pytest.raises(UsageError, match=r"input 0 has the shape \(None, None, 3\)"):
        open_subject(lively([(None, None, 3)]), "A", tmp_path)


def shapes(opened):
    return [o.interface.inputs[0].shape for o in opened]


def test_all_agree_on_open_sizes(lively, tmp_path):
    assert shapes(open_all({"A": dense(), "B": dense(2), "C": dense("M")}, tmp_path)) == [(2, 4)] * 3
    assert shapes(open_all({"A": dense(), "B": dense()}, tmp_path)) == [(1, 4)] * 2
    assert shapes(open_all({"A": dense(), "B": dense("M")}, tmp_path, sizes={"N": 3})) == [(3, 4)] * 2
    assert shapes(open_all({"A": dense(), "B": dense("M")}, tmp_path, [[np.zeros((5, 4))]])) == [(5, 4)] * 2
    assert shapes(open_all({"A": dense(), "B": lively([(None, 4)])}, tmp_path, [[np.zeros((5, 4))]])) == [(5, 4)] * 2


def test_a_live_model_takes_its_shapes_from_the_others(lively, tmp_path):
    assert shapes(open_all({"A": lively(None), "B": dense(2)}, tmp_path)) == [(2, 4)] * 2
    image, last = (1, 3, 5, 6), (1, 5, 6, 3)
    opened = open_all({"A": lively(None), "B": dense(image=image)}, tmp_path)
    assert shapes(opened) == [last, image]
    assert [o.subject.name for o in opened] == ["A", "B"]
    assert shapes(open_all({"A": dense(image=image), "B": lively(None)}, tmp_path)) == [image, last]
    assert shapes(open_all({"A": lively(None), "B": lively(None)}, tmp_path, [[np.zeros(last)]])) == [last] * 2
    with pytest.raises(UsageError, match="A: a lively thing does not tell"):
        open_all({"A": lively(None), "B": lively(None)}, tmp_path)
    with pytest.raises(XframeError, match="three channels, please"):
        open_all({"A": dense(image=(1, 2, 2, 2)), "B": lively(None)}, tmp_path)


def test_what_a_thing_is_is_told_by_where_its_class_is_defined(monkeypatch, tmp_path):
    told = []

    def load_class(table, name):
        told.append(name)
        raise Unavailable("that will do")

    monkeypatch.setattr("xframe.check.subjects.load_class", load_class)

    def of(module):
        return type("Thing", (), {"__module__": module})()

    class Flaxen:
        def apply(self):
            pass

    things = [
        of("torch.nn.modules.module"), type("Mine", (type(of("torch.nn.modules.module")),), {})(),
        of("tensorflow.python.module.module"), of("keras.src.models.model"), lambda x: x, (lambda p, x: x, {}),
        (Flaxen(), {}),
    ]  # fmt: skip
    for thing in things:
        with pytest.raises(Unavailable):
            open_subject(thing, "A", tmp_path)
    assert told == ["pytorch", "pytorch", "tensorflow", "tensorflow", "jax", "jax", "jax"]
    for module, words in (("torch.export.exported_program", r"give its \.module\(\)"), ("torch", r"torch\.nn\.Module")):
        with pytest.raises(UsageError, match=words):
            open_subject(of(module), "A", tmp_path)
