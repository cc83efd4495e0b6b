import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from spelled import CONTROL, equal, form, proto, r, save

from xframe.equivalence.reference import Reference
from xframe.errors import ModelError, UsageError
from xframe.normal import loading
from xframe.normal.canonical import canonical

W = r(6, 4, 3, 3)
CONV = proto([("Conv", "x w", "y")], {"w": W})


def external(folder):
    model = proto([("Conv", "x w", "t"), ("Add", "t b", "y")], {"w": W, "b": r(6, 1, 1)})
    return save(model, folder / "m.onnx", "data.bin")


def test_external_data_are_views_of_the_mapped_file(tmp_path):
    raw = loading.load(external(tmp_path))
    assert np.array_equal(raw.constants["w"], W)
    base = raw.constants["w"]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    made = canonical(raw)
    assert np.shares_memory(made.weights["w"].array, raw.constants["w"])
    inside = form(proto([("Conv", "x w", "t"), ("Add", "t b", "y")], {"w": W, "b": r(6, 1, 1)}))
    assert equal(made, inside)


def test_a_product_by_external_weights_is_not_copied(tmp_path):
    model = proto([("MatMul", "x w", "y")], {"w": r(50, 40)}, {"x": (2, 50)})
    raw = loading.load(save(model, tmp_path / "m.onnx", "w.bin"))
    made = canonical(raw)
    (gemm,) = made.graph.nodes
    assert np.shares_memory(made.weights[gemm.inputs[1]].array, raw.constants["w"])


def test_external_data_outside_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    path = external(tmp_path / "in")
    (tmp_path / "in" / "data.bin").rename(tmp_path / "data.bin")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(e for e in tensor.external_data if e.key == "location").value = "../data.bin"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        loading.load(path)
    with pytest.raises(ModelError, match="outside the model's folder"):
        loading.from_proto(model, tmp_path / "in")
    with pytest.raises(ModelError, match="outside the model's folder"):
        loading.from_proto(model)


@pytest.mark.parametrize("part", [0, 100])
def test_external_data_cut_short(tmp_path, part):
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    (tmp_path / "data.bin").write_bytes((tmp_path / "data.bin").read_bytes()[:part])
    for tensor in model.graph.initializer:
        del tensor.external_data[1:]  # no offset and no length: the file is all there is to go by
    with pytest.raises(ModelError, match="copy data"):
        loading.from_proto(model, tmp_path)


def test_symbolic_dimensions(tmp_path):
    model = proto([("Conv", "x w", "y")], {"w": W}, {"x": ("batch", 4, "side", None)})
    raw = loading.from_proto(model, sizes={"batch": 3, "side": 8})
    assert raw.shapes == ((3, 4, 8, 1),)
    assert raw.notes == (
        "dimension batch is taken as 3",
        "dimension side is taken as 8",
        "dimension 3 of input x is taken as 1",
    )
    assert loading.from_proto(model).shapes == ((1, 4, 1, 1),)
    with pytest.raises(UsageError, match="batch can't be 0"):
        loading.from_proto(model, sizes={"batch": 0})
    raw = loading.from_proto(model, sizes={"side": 8})
    with pytest.raises(ModelError, match="does not fit an image"):
        canonical(raw)


def test_a_symbolic_batch_computed_from_shapes():
    nodes = [("Shape", "x", "s"), ("Gather", "s zero", "n", {"axis": 0}), ("Unsqueeze", "n axes", "m")]
    nodes += [("Concat", "m minus", "t", {"axis": 0}), ("Reshape", "x t", "y")]
    numbers = {"zero": np.array(0), "axes": np.array([0]), "minus": np.array([-1])}
    dynamic = form(proto(nodes, numbers, {"x": ("batch", 4, 8, 8)}))
    assert equal(dynamic, form(proto([("Flatten", "x", "y")])))


def test_opset_9_with_initializers_among_the_inputs():
    old = proto([("Conv", "x w", "y")], {"w": W}, opset=9)
    old.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, W.shape))
    raw = loading.from_proto(old)
    assert raw.inputs == ("x",)
    assert equal(form(old), form(CONV))


def test_constant_nodes_are_initializers():
    for attrs in (
        {"value": numpy_helper.from_array(np.array([2.0], np.float32))},
        {"value_floats": [2.0]},
        {"value_float": 2.0},
    ):
        node = form(proto([("Constant", "", "c", attrs), ("Mul", "x c", "y")]))
        assert equal(node, form(proto([("Mul", "x c", "y")], {"c": np.float32(2)})))
    with pytest.raises(ModelError, match="no dense tensor of numbers"):
        loading.from_proto(proto([("Constant", "", "c", {"value_string": "a"}), ("Identity", "x", "y")]))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (("RandomNormal", "", "y", {"shape": [2]}), "random"),
        (("RandomUniformLike", "x", "y"), "random"),
        (("Bernoulli", "x", "y"), "random"),
        (("Multinomial", "x", "y"), "random"),
        (("If", "x", "y", CONTROL), "course depends on data"),
        (("SequenceConstruct", "x", "y"), "sequences"),
        (("FusedConv", "x", "y", {"domain": "com.microsoft"}), "domain com.microsoft"),
    ],
)
def test_what_is_no_function_of_the_inputs_is_refused(node, words):
    with pytest.raises(ModelError, match=words):
        loading.from_proto(proto([node]))


def test_other_refusals(tmp_path):
    old = proto([("Relu", "x", "y")], opset=6)
    with pytest.raises(ModelError, match="uses opset 6"):
        loading.from_proto(old)
    sparse = proto([("Relu", "x", "y")])
    sparse.graph.sparse_initializer.add()
    with pytest.raises(ModelError, match="sparse"):
        loading.from_proto(sparse)
    with pytest.raises(ModelError, match="no such file"):
        loading.load(tmp_path / "none.onnx")
    (tmp_path / "no.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"no\.onnx"):
        loading.load(tmp_path / "no.onnx")


def test_float16_models_load(tmp_path):
    half = proto([("Conv", "x w", "y")], {"w": W.astype(np.float16)}, kind=TensorProto.FLOAT16)
    raw = loading.load(save(half, tmp_path / "half.onnx"))
    assert raw.dtypes == ("float16",)
    made = canonical(raw)
    assert made.weights["w"].array.dtype == np.float32
    assert any("float16" in note for note in made.notes)
    real = form(proto([("Conv", "x w", "y")], {"w": W.astype(np.float16).astype(np.float32)}))
    assert equal(made, real)


def test_a_proto_that_is_given_stays_as_it_is():
    before = CONV.SerializeToString()
    loading.from_proto(CONV)
    assert CONV.SerializeToString() == before


def test_the_raw_graph_can_be_evaluated():
    raw = loading.from_proto(CONV)
    x = r(1, 4, 8, 8)
    (y,) = Reference(raw).evaluate([x])
    assert y.value.shape == (1, 6, 6, 6)
