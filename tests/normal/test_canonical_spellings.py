"""Element-wise operators, functions written in parts, resizing, operator sets: equal where they are, else not."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from spelled import equal, form, ops, proto, r

from xframe.errors import ModelError, UsageError
from xframe.normal import loading
from xframe.normal.canonical import canonical


def of(op, opset=17, weights=None, inputs=None, exact=True, **attrs):
    """The normal form of one node: ``op`` with its operands, "Clip x a b"."""
    name, read = op.split(" ", 1)
    return form(proto([(name, read, "y", attrs)], weights, inputs, opset=opset), exact=exact)


def test_softmax_before_and_after_opset_13():
    assert equal(of("Softmax x", 11, axis=3), of("Softmax x", 13))
    assert not equal(of("Softmax x", 11, axis=1), of("Softmax x", 13, axis=1))
    assert not equal(of("Softmax x", 11), of("Softmax x", 13))
    row = {"x": (3, 10)}
    assert equal(of("Softmax x", 11, inputs=row), of("Softmax x", 13, inputs=row))
    pixel = {"x": (3, 10, 1, 1)}
    assert equal(of("Softmax x", 11, inputs=pixel), of("Softmax x", 13, axis=-3, inputs=pixel))
    assert ops(of("Softmax x", 11, axis=1)) == ["Reshape", "Softmax", "Reshape"]


def test_limits():
    a, b = np.float32(-1), np.float32(2)
    clip = of("Clip x a b", weights={"a": a, "b": b})
    assert equal(clip, of("Clip x", 6 + 1, min=-1.0, max=2.0))
    assert not equal(clip, of("Clip x", 7, min=-1.0, max=3.0))
    chain = [("Max", "x a", "t"), ("Min", "b t", "y")]
    assert equal(clip, form(proto(chain, {"a": a, "b": b})))
    relu = of("Relu x")
    assert equal(relu, of("Clip x a", weights={"a": np.float32(0)}))
    assert equal(relu, of("Clip x", 7, min=0.0))
    assert equal(relu, of("Max z x", weights={"z": np.zeros((1, 1), np.float32)}))
    six = of("Clip x a b", weights={"a": np.float32(0), "b": np.float32(6)})
    both = [("Relu", "x", "t"), ("Min", "t b", "y")]
    assert equal(six, form(proto(both, {"b": np.float32(6)})))
    assert not equal(six, relu)


def gelu(kind, half=0.5, coefficient=0.044715):
    """As exporters write it: three ways."""
    number = {"h": half, "one": 1, "root": math.sqrt(2), "inverse": 1 / math.sqrt(2), "k": coefficient, "three": 3}
    number["s"] = math.sqrt(2 / math.pi)
    if kind == "divided":
        nodes = [
            ("Div", "x root", "a"),
            ("Erf", "a", "e"),
            ("Add", "e one", "f"),
            ("Mul", "x f", "g"),
            ("Mul", "g h", "y"),
        ]
    elif kind == "multiplied":
        nodes = [("Mul", "x inverse", "a"), ("Erf", "a", "e"), ("Add", "one e", "f"), ("Mul", "h f", "g")]
        nodes += [("Mul", "x g", "y")]
    else:
        nodes = [
            ("Pow", "x three", "c"),
            ("Mul", "c k", "d"),
            ("Add", "x d", "e"),
            ("Mul", "e s", "i"),
            ("Tanh", "i", "t"),
        ]
        nodes += [("Add", "t one", "u"), ("Mul", "x h", "v"), ("Mul", "v u", "y")]
    used = {n for _, read, _ in nodes for n in read.split()}
    return form(proto(nodes, {k: np.float32(v) for k, v in number.items() if k in used}), exact=False)


def test_gelu_exact_and_by_tanh():
    exact, tanh = of("Gelu x", 20), of("Gelu x", 20, approximate="tanh")
    assert not equal(exact, tanh)
    assert equal(gelu("divided"), exact)
    assert equal(gelu("multiplied"), exact)
    assert equal(gelu("tanh"), tanh)
    assert not equal(gelu("tanh", coefficient=0.0447), tanh)
    assert not equal(gelu("divided", half=0.4999), exact)
    assert gelu("divided").sources == {"y": ("y",)}


def test_hard_swish():
    numbers = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    nodes = [("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Mul", "x b", "c"), ("Div", "c six", "y")]
    whole = of("HardSwish x", 14)
    assert equal(form(proto(nodes, numbers), exact=False), whole)
    sigmoid = [("HardSigmoid", "x", "h", {"alpha": 1 / 6, "beta": 0.5}), ("Mul", "x h", "y")]
    assert equal(form(proto(sigmoid), exact=False), whole)
    assert not equal(form(proto([("HardSigmoid", "x", "h"), ("Mul", "x h", "y")]), exact=False), whole)


def lrn_in_parts(alpha, size=5, last=False, counted=1):
    """As PyTorch exports it (an average over a third spatial axis) or JAX does (a sum over channels put last)."""
    before, after = (size - 1) // 2, size // 2
    weights = {"alpha": np.float32(alpha), "k": np.float32(1), "beta": np.float32(0.75), "n": np.float32(size)}
    end = [("Add", "m k", "d"), ("Pow", "d beta", "p"), ("Div", "x p", "y")]
    if last:
        window = {"kernel_shape": [1, size], "pads": [0, before, 0, after], "count_include_pad": counted}
        nodes = [
            ("Transpose", "q", "l", {"perm": [0, 2, 3, 1]}),
            ("AveragePool", "l", "v", window),
            ("Mul", "v n", "s"),
        ]
        nodes += [("Transpose", "s", "t", {"perm": [0, 3, 1, 2]}), ("Mul", "t alpha", "m")]
    else:
        shapes = {"up": np.array([1, 1, 8, 6, 6]), "down": np.array([1, 8, 6, 6])}
        weights |= shapes | {"p0": np.array([0, 0, before, 0, 0, 0, 0, after, 0, 0])}
        pool = ("AveragePool", "w", "v", {"kernel_shape": [size, 1, 1]})
        nodes = [
            ("Reshape", "q up", "u"),
            ("Pad", "u p0", "w"),
            pool,
            ("Reshape", "v down", "t"),
            ("Mul", "t alpha", "m"),
        ]
    used = {n for _, read, *_ in [*nodes, *end] for n in read.split()}
    weights = {k: v for k, v in weights.items() if k in used}
    return form(proto([("Mul", "x x", "q"), *nodes, *end], weights, {"x": (1, 8, 6, 6)}))


def test_lrn_and_how_its_alpha_is_scaled():
    def lrn(alpha, size=5):
        return of("LRN x", inputs={"x": (1, 8, 6, 6)}, size=size, alpha=alpha, beta=0.75, bias=1.0)

    assert equal(lrn_in_parts(0.5), lrn(0.5))
    assert equal(lrn_in_parts(0.125, last=True), lrn(0.625))
    assert equal(lrn_in_parts(0.5, size=4), lrn(0.5, size=4))
    assert not equal(lrn_in_parts(0.5, last=True), lrn(0.5))
    assert ops(lrn_in_parts(0.5, last=True, counted=0)) != ["LRN"]


def test_numbers_in_a_row():
    weights = {"a": np.float32(9), "b": np.float32(9)}
    both = form(proto([("Mul", "x a", "t"), ("Div", "t b", "u"), ("Relu", "u", "y")], weights))
    assert equal(both, of("Relu x"))
    assert equal(of("Div x a", weights={"a": np.float32(4)}), of("Mul x a", weights={"a": np.float32(0.25)}))
    assert not equal(of("Div x a", weights={"a": np.float32(3)}), of("Mul x a", weights={"a": np.float32(1 / 3)}))
    assert equal(of("Sub x a", weights={"a": np.float32(4)}), of("Add a x", weights={"a": np.float32(-4)}))
    assert ops(form(proto([("Add", "x z", "t"), ("Relu", "t", "y")], {"z": np.zeros(8, np.float32)}))) == ["Relu"]
    assert equal(of("Pow x a", weights={"a": np.float32(2)}), of("Mul x x"))
    assert not equal(of("Pow x a", weights={"a": np.float32(3)}), of("Mul x x"))
    assert equal(of("Div a x", weights={"a": np.float32(1)}), of("Reciprocal x"))
    three = form(proto([("Sum", "x x x", "y")]))
    assert equal(three, form(proto([("Add", "x x", "t"), ("Add", "t x", "y")])))


def resized(scale=None, opset=13, op="Resize", **attrs):
    if op == "Upsample":
        return of("Upsample x s", opset, {"s": np.array(scale, np.float32)}, **attrs)
    weights = {"s": np.array([1, 4, 16, 16]) if scale is None else np.array(scale, np.float32)}
    return of("Resize x - - s" if scale is None else "Resize x - s", opset, weights, **attrs)


def test_resizing():
    nearest = resized()
    assert equal(nearest, resized([1, 1, 2, 2]))
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    assert equal(nearest, resized(**floor))
    assert equal(nearest, resized([1, 1, 2, 2], 9, "Upsample"))
    assert not equal(nearest, resized(**{**floor, "nearest_mode": "ceil"}))
    linear = resized(mode="linear")
    assert equal(linear, resized(mode="linear", coordinate_transformation_mode="pytorch_half_pixel"))
    assert equal(linear, resized(mode="linear", nearest_mode="ceil", cubic_coeff_a=-0.5))
    for other in ("align_corners", "asymmetric"):
        assert not equal(linear, resized(mode="linear", coordinate_transformation_mode=other))
    assert equal(
        resized(mode="linear", coordinate_transformation_mode="asymmetric"),
        resized([1, 1, 2, 2], 9, "Upsample", mode="linear"),
    )
    assert ops(form(proto([("Resize", "x - s", "t"), ("Relu", "t", "y")], {"s": np.ones(4, np.float32)}))) == ["Relu"]
    uneven = resized([1, 1, 1.3, 1.3])
    assert uneven.shapes["y"] == (1, 4, 10, 10)


def test_constants_of_all_kinds():
    value = numpy_helper.from_array(r(4, 1, 1))
    node = form(proto([("Constant", "", "c", {"value": value}), ("Add", "x c", "y")]))
    plain = of("Add x c", weights={"c": r(4, 1, 1)})
    assert equal(node, plain)
    computed = [("Identity", "a", "b"), ("Mul", "b two", "c"), ("Add", "x c", "y")]
    assert equal(form(proto(computed, {"a": r(4, 1, 1) / 2, "two": np.float32(2)})), plain)
    lazy = [("Shape", "x", "n"), ("ConstantOfShape", "n", "z"), ("Add", "x z", "t"), ("Relu", "t", "y")]
    assert ops(form(proto(lazy))) == ["Relu"]


def test_narrow_weights():
    w = r(6, 4, 3, 3)
    half = w.astype(np.float16)
    rounded = of("Conv x w", weights={"w": half.astype(np.float32)})
    cast = [("Cast", "h", "w", {"to": TensorProto.FLOAT}), ("Conv", "x w", "y")]
    made = form(proto(cast, {"h": half}))
    assert equal(made, rounded)
    assert made.weights["h"].how == ("float16 to float32",)
    assert not equal(made, of("Conv x w", weights={"w": w}))
    assert "Cast" in ops(
        form(proto([("Cast", "x", "t", {"to": TensorProto.FLOAT16}), ("Relu", "t", "y")]), evaluate=False)
    )


def test_quantised_weights():
    w = np.arange(-100, 116).reshape(6, 4, 3, 3).astype(np.int8)
    scale, zero = (np.abs(r(6)) + 0.1).astype(np.float32), np.arange(6).astype(np.int8)
    nodes = [("DequantizeLinear", "q s z", "w", {"axis": 0}), ("Conv", "x w", "y")]
    made = form(proto(nodes, {"q": w, "s": scale, "z": zero}))
    real = (w.astype(np.float32) - zero.astype(np.float32)[:, None, None, None]) * scale[:, None, None, None]
    assert equal(made, of("Conv x w", weights={"w": real}))
    assert made.weights[made.graph.nodes[0].inputs[1]].how == ("dequantized from int8",)
    assert not equal(made, form(proto(nodes, {"q": w, "s": scale, "z": 0 * zero})))


def test_what_does_nothing_is_dropped():
    numbers = {"s": np.array([0, 4, -1, 8]), "p": np.zeros(8, np.int64), "a": np.array([0]), "b": np.array([99])}
    nodes = [
        ("Identity", "x", "t0"),
        ("Reshape", "t0 s", "t1"),
        ("Pad", "t1 p", "t2"),
        ("Slice", "t2 a b", "t3"),
        ("Transpose", "t3", "t4", {"perm": [0, 1, 3, 2]}),
        ("Transpose", "t4", "t5", {"perm": [0, 1, 3, 2]}),
        ("Unsqueeze", "t5 a", "t6"),
        ("Squeeze", "t6 a", "t7"),
        ("Cast", "t7", "t8", {"to": TensorProto.FLOAT}),
        ("Sigmoid", "x", "dead"),
        ("Relu", "t8", "y"),
    ]
    unused = {"x": (1, 4, 8, 8), "nobody": (3,)}
    made = form(proto(nodes, numbers, unused))
    assert ops(made) == ["Relu"]
    assert made.graph.inputs == ("x", "nobody")
    assert not equal(made, of("Sigmoid x"))


def test_data_dependent_shapes_are_refused():
    with pytest.raises(ModelError, match="depend"):
        canonical(loading.from_proto(proto([("NonZero", "x", "t"), ("Cast", "t", "y", {"to": 1})])))
    with pytest.raises(ModelError, match="do not fit"):
        canonical(loading.from_proto(proto([("Conv", "x w", "y")], {"w": r(6, 3, 3, 3)})))
    raw = loading.from_proto(proto([("Relu", "x", "y")]))
    with pytest.raises(UsageError, match="there is no input z"):
        canonical(raw, inputs={"z": (0,)})
    with pytest.raises(UsageError, match="has 4 axes"):
        canonical(raw, inputs={"x": (0, 2, 3)})


def test_attributes_are_complete():
    for n in of("LRN x", size=3, exact=False).graph.nodes:
        assert set(n.attrs) == {"alpha", "beta", "bias", "size"}
    assert helper.make_opsetid("", 20).version == of("Elu x", exact=False).graph.nodes[0].opset
