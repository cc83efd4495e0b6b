"""Pairs of models that are the same function written twice, and pairs that only look alike."""

import numpy as np
import onnx
import pytest
from spelled import equal, form, ops, proto, r

from xframe.normal import loading
from xframe.normal.canonical import canonical

W, B = r(6, 4, 3, 3), r(6)
CONV = {"w": W, "b": B}


def conv(opset=17, **attrs):
    return form(proto([("Conv", "x w b", "y", attrs)], CONV, opset=opset))


# Padding and windows


def test_padding_of_all_spellings():
    same = conv(auto_pad="SAME_UPPER", strides=[2, 2])
    assert equal(same, conv(pads=[0, 0, 1, 1], strides=[2, 2], kernel_shape=[3, 3], dilations=[1, 1], group=1))
    pad = [("Pad", "x p", "t"), ("Conv", "t w b", "y", {"strides": [2, 2]})]
    assert equal(same, form(proto(pad, {**CONV, "p": np.array([0, 0, 0, 0, 0, 0, 1, 1])})))
    assert same.graph.nodes[0].attrs["pads"] == (0, 0, 1, 1)
    assert not equal(same, conv(pads=[1, 1, 1, 1], strides=[2, 2]))
    assert not equal(same, conv(auto_pad="SAME_LOWER", strides=[2, 2]))


def test_padding_that_no_window_reads_makes_no_difference():
    symmetric = conv(pads=[1, 1, 1, 1], strides=[2, 2])
    assert equal(symmetric, conv(pads=[1, 1, 0, 0], strides=[2, 2]))
    assert symmetric.graph.nodes[0].attrs["pads"] == (1, 1, 1, 1)


def test_padding_with_other_than_zeros_stays():
    def padded(**more):
        pads = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
        names = "x p v" if more else "x p"
        return form(proto([("Pad", names, "t"), ("Conv", "t w b", "y")], {**CONV, **pads, **more}))

    assert ops(padded()) == ["Conv"]
    assert ops(padded(v=np.float32(0.5))) == ["Pad", "Conv"]


def pool(op, size=9, opset=17, **attrs):
    return form(proto([(op, "x", "y", attrs)], inputs={"x": (1, 2, size, size)}, opset=opset))


def test_ceil_mode():
    plain = {"kernel_shape": [3, 3], "strides": [2, 2]}
    assert equal(pool("MaxPool", **plain, ceil_mode=1), pool("MaxPool", **plain))
    assert not equal(pool("MaxPool", 10, **plain, ceil_mode=1), pool("MaxPool", 10, **plain))
    assert equal(pool("MaxPool", 10, **plain, ceil_mode=1), pool("MaxPool", 10, **plain, pads=[0, 0, 1, 1]))
    assert not equal(pool("AveragePool", 10, **plain, ceil_mode=1), pool("AveragePool", 10, **plain))


def test_count_include_pad():
    plain = {"kernel_shape": [3, 3], "strides": [2, 2]}
    assert equal(pool("AveragePool", **plain, count_include_pad=1), pool("AveragePool", **plain))
    padded = {**plain, "pads": [1, 1, 1, 1]}
    assert not equal(pool("AveragePool", **padded, count_include_pad=1), pool("AveragePool", **padded))
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    apart = [("Pad", "x p", "t"), ("AveragePool", "t", "y", plain)]
    counted = form(proto(apart, pads, inputs={"x": (1, 2, 9, 9)}))
    assert equal(counted, pool("AveragePool", **padded, count_include_pad=1))


def test_padding_before_a_maximum():
    def padded(value):
        weights = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(value)}
        return form(proto([("Pad", "x p v", "t"), ("MaxPool", "t", "y", {"kernel_shape": [3, 3]})], weights))

    whole = form(proto([("MaxPool", "x", "y", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})]))
    assert equal(padded(-np.inf), whole)
    assert not equal(padded(0), whole)


def test_global_averages():
    whole = pool("GlobalAveragePool")
    assert equal(whole, pool("AveragePool", kernel_shape=[9, 9]))
    assert equal(whole, pool("ReduceMean", axes=[2, 3], keepdims=1))
    assert equal(whole, pool("ReduceMean", axes=[-1, -2]))
    assert not equal(whole, pool("ReduceMean", axes=[2]))
    assert not equal(whole, pool("AveragePool", kernel_shape=[8, 8]))
    flat = form(proto([("ReduceMean", "x", "y", {"axes": [2, 3], "keepdims": 0})]))
    assert equal(flat, form(proto([("GlobalAveragePool", "x", "t"), ("Flatten", "t", "y")])))


# Biases, groups, batch normalisation


def test_bias_apart():
    apart = form(proto([("Conv", "x w", "t"), ("Add", "t b", "y")], {"w": W, "b": B.reshape(6, 1, 1)}))
    assert equal(apart, conv())
    assert apart.sources == {apart.graph.nodes[0].name: ("t", "y")}
    assert equal(
        form(proto([("Conv", "x w", "y")], {"w": W})), form(proto([("Conv", "x w z", "y")], {"w": W, "z": 0 * B}))
    )
    wide = form(proto([("Conv", "x w", "t"), ("Add", "t b", "y")], {"w": W, "b": r(1, 6, 6, 6)}))
    assert ops(wide) == ["Conv", "Add"]


def parts(cut, weights, order=("a", "b")):
    joined = [("Conv", "s0 w0 b0", "a"), ("Conv", "s1 w1 b1", "b"), ("Concat", " ".join(order), "y", {"axis": 1})]
    cuts = {"w0": r(3, 2, 3, 3, seed=1), "b0": r(3, seed=1), "w1": r(3, 2, 3, 3, seed=2), "b1": r(3, seed=2)}
    return form(proto([*cut, *joined], {**cuts, **weights}, opset=13))


def test_groups_written_as_parts():
    w = np.concatenate([r(3, 2, 3, 3, seed=1), r(3, 2, 3, 3, seed=2)])
    b = np.concatenate([r(3, seed=1), r(3, seed=2)])
    whole = form(proto([("Conv", "x w b", "y", {"group": 2})], {"w": w, "b": b}))
    numbers = {"c": np.array([1]), "n0": np.array([0]), "n2": np.array([2]), "n4": np.array([4]), "p": np.array([2, 2])}
    split = [("Split", "x p", "s0 s1", {"axis": 1})]
    slices = [("Slice", "x n0 n2 c", "s0"), ("Slice", "x n2 n4 c", "s1")]
    crossed = [("Slice", "x n2 n4 c", "s0"), ("Slice", "x n0 n2 c", "s1")]
    assert equal(parts(split, numbers), whole)
    assert equal(parts(slices, numbers), whole)
    assert not equal(parts(crossed, numbers), whole)
    assert not equal(parts(split, numbers, ("b", "a")), whole)


def normalised(epsilon=1e-5, **changes):
    weights = {**CONV, "s": r(6, shift=1), "h": r(6, seed=1), "m": r(6, seed=2), "v": np.abs(r(6, seed=3)) + 0.1}
    return proto(
        [("Conv", "x w b", "t"), ("BatchNormalization", "t s h m v", "y", {"epsilon": epsilon})], weights | changes
    )


def folded(model):
    """The same with its batch normalisation folded by hand, as an exporter does."""
    w = {t.name: np.array(loading.from_proto(model).constants[t.name], np.float64) for t in model.graph.initializer}
    a = w["s"] / np.sqrt(w["v"] + model.graph.node[1].attribute[0].f)
    weights = {"w": w["w"] * a[:, None, None, None], "b": (w["b"] - w["m"]) * a + w["h"]}
    return proto([("Conv", "x w b", "y")], {k: v.astype(np.float32) for k, v in weights.items()})


def test_batch_normalisation_folded_and_not():
    model = normalised()
    assert ops(form(model)) == ["Conv"]
    assert equal(form(model), form(folded(model)))
    assert "scaled by y" in form(model).weights[form(model).graph.nodes[0].inputs[1]].how
    assert not equal(form(model), form(normalised(1e-3)))
    assert ops(form(model, fold_batchnorm=False)) == ["Conv", "BatchNormalization"]


def test_scale_and_shift_are_batch_normalisation():
    weights = {"a": r(4, 1, 1), "c": r(4, 1, 1, seed=1)}
    written_out = form(proto([("Mul", "x a", "t"), ("Add", "t c", "y")], weights))
    ones = {"m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}
    flat = {k: v.reshape(4) for k, v in weights.items()}
    made = form(proto([("BatchNormalization", "x a c m v", "y", {"epsilon": 0.0})], {**flat, **ones}))
    assert equal(written_out, made)
    shared = [("Mul", "x a", "t"), ("Add", "t c", "u"), ("Add", "t u", "y")]
    assert ops(form(proto(shared, weights))) == ["Mul", "Add", "Add"]


def test_batch_normalisation_written_out():
    """As a framework without the operator exports it, before anything it could pass into."""
    mean, scale, shift = (np.array(v, np.float32) for v in ([1, 2, 3, 4], [2, 0.5, 4, 1], [0, 1, 2, -1]))
    parts = {k: v.reshape(4, 1, 1) for k, v in (("m", mean), ("a", scale), ("b", shift))}
    apart = form(proto([("Sub", "x m", "t"), ("Mul", "t a", "u"), ("Add", "u b", "y")], parts))
    ones = np.ones(4, np.float32)
    node = ("BatchNormalization", "x a b m v", "y", {"epsilon": 0.0})
    assert equal(apart, form(proto([node], {"a": scale, "b": shift, "m": mean, "v": ones})))
    assert ops(apart) == ["BatchNormalization"]
    assert not equal(apart, form(proto([node], {"a": scale, "b": shift, "m": -mean, "v": ones})))
    scaled = form(proto([node], {"a": scale, "b": 0 * shift, "m": 0 * mean, "v": ones}))
    assert equal(scaled, form(proto([("Mul", "x a", "y")], parts)))


def test_indices_of_a_maximum_stay():
    attrs = {"kernel_shape": [8, 8], "auto_pad": "VALID"}
    both = form(proto([("MaxPool", "x", "y i", attrs)]), evaluate=False)
    assert ops(both) == ["MaxPool"]
    assert both.graph.nodes[0].outputs == ("y", "i")
    assert ops(form(proto([("MaxPool", "x", "y", attrs)]))) == ["GlobalMaxPool"]


def test_transposed_convolution_with_an_output_shape():
    def made(**attrs):
        return form(proto([("ConvTranspose", "x w", "y", attrs)], {"w": r(4, 2, 3, 3)}))

    assert equal(made(strides=[2, 2], output_shape=[16, 16]), made(strides=[2, 2], pads=[1, 1, 0, 0]))
    assert equal(made(strides=[2, 2], auto_pad="SAME_UPPER"), made(strides=[2, 2], pads=[0, 0, 1, 1]))
    assert not equal(made(strides=[2, 2], auto_pad="SAME_UPPER"), made(strides=[2, 2], auto_pad="SAME_LOWER"))


def test_training_mode_is_kept():
    model = normalised()
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("training_mode", 1))
    model.graph.node[1].output.extend(["m2", "v2"])
    kept = form(model, evaluate=False).graph.nodes[-1]
    assert (kept.op, kept.attrs["training_mode"]) == ("BatchNormalization", 1)
    weights = {"p": np.float32(0.5), "on": np.array(True), "off": np.array(False)}
    left = form(proto([("Dropout", "x p on", "y")], weights), evaluate=False)
    assert ops(left) == ["Dropout"]
    assert ops(form(proto([("Dropout", "x p off", "t"), ("Relu", "t", "y")], weights))) == ["Relu"]
    assert ops(form(proto([("Dropout", "x", "t", {"ratio": 0.5}), ("Relu", "t", "y")], opset=10))) == ["Relu"]


# Products and layouts


def test_products():
    w, b, x = r(5, 7), r(5), {"x": (2, 7)}
    one = form(proto([("Gemm", "x w b", "y", {"transB": 1})], {"w": w, "b": b}, x))
    turned = {"w": np.ascontiguousarray(w.T), "b": b}
    assert equal(one, form(proto([("Gemm", "x w b", "y")], turned, x)))
    assert equal(one, form(proto([("MatMul", "x w", "t"), ("Add", "b t", "y")], turned, x)))
    assert equal(
        one, form(proto([("Transpose", "w", "v"), ("MatMul", "x v", "t"), ("Add", "t b", "y")], {"w": w, "b": b}, x))
    )
    assert equal(one, form(proto([("Gemm", "x w b", "y", {"transB": 1, "alpha": 0.5})], {"w": 2 * w, "b": b}, x)))
    other = {"x": (2, 5)}
    assert not equal(
        form(proto([("Gemm", "x w", "y", {"transB": 1})], {"w": r(5, 5)}, other)),
        form(proto([("Gemm", "x w", "y")], {"w": r(5, 5)}, other)),
    )


def classifier(channels_last, reorder=True):
    """A convolution, a ReLU, and a product of the flattened image: in NCHW, or as an NHWC framework exports it."""
    f = r(10, 6 * 6 * 6, seed=4)
    if not channels_last:
        nodes = [("Conv", "x w b", "c"), ("Relu", "c", "a"), ("Flatten", "a", "f"), ("Sigmoid", "f", "g")]
        nodes += [("Gemm", "g v", "y", {"transB": 1})]
        return form(proto(nodes, {**CONV, "v": f}))
    rows = f.reshape(10, 6, 6, 6).transpose(0, 2, 3, 1).reshape(10, -1) if reorder else f
    nodes = [
        ("Transpose", "x", "n", {"perm": [0, 3, 1, 2]}),
        ("Conv", "n w", "c"),
        ("Transpose", "c", "l", {"perm": [0, 2, 3, 1]}),
        ("Add", "l b", "d"),
        ("Relu", "d", "a"),
        ("Reshape", "a s", "f"),
        ("Sigmoid", "f", "g"),
        ("MatMul", "g v", "y"),
    ]
    weights = {**CONV, "s": np.array([1, -1]), "v": np.ascontiguousarray(rows.T)}
    return form(proto(nodes, weights, {"x": (1, 8, 8, 4)}), (0, 2, 3, 1))


def test_channels_last_flatten_before_a_product():
    last = classifier(True)
    assert equal(last, classifier(False))
    assert last.weights[last.graph.nodes[-1].inputs[1]].how[-1] == "inputs reordered from HWC to CHW"
    assert last.tensors["d"] == ("d", (0, 3, 1, 2))
    assert last.tensors["x"] == ("x", (0, 3, 1, 2))
    assert not equal(classifier(True, reorder=False), classifier(False))


def test_transposes_that_matter_stay():
    shuffled = [("Reshape", "x s", "a"), ("Transpose", "a", "b", {"perm": [0, 2, 1, 3, 4]}), ("Reshape", "b t", "y")]
    weights = {"s": np.array([1, 2, 2, 8, 8]), "t": np.array([1, 4, 8, 8])}
    plain = form(proto(shuffled, weights))
    assert ops(plain) == ["Reshape", "Transpose", "Reshape"]
    last = [("Reshape", "x s", "a"), ("Transpose", "a", "b", {"perm": [0, 1, 2, 4, 3]}), ("Reshape", "b t", "c")]
    last += [("Transpose", "c", "y", {"perm": [0, 3, 1, 2]})]
    numbers = {"s": np.array([1, 8, 8, 2, 2]), "t": np.array([1, 8, 8, 4])}
    assert equal(plain, form(proto(last, numbers, {"x": (1, 8, 8, 4)}), (0, 2, 3, 1)))
    flat = form(proto([("Transpose", "x", "t", {"perm": [0, 2, 3, 1]}), ("Flatten", "t", "y")]))
    assert ops(flat) == ["Transpose", "Reshape"]
    assert not equal(flat, form(proto([("Flatten", "x", "y")])))


@pytest.mark.parametrize(
    ("op", "attrs", "back"),
    [
        ("Softmax", {"axis": 3}, {"axis": 1}),
        ("Concat", {"axis": -1}, {"axis": 1}),
        ("ReduceMean", {"axes": [1, 2]}, {"axes": [2, 3]}),
        ("ReduceMax", {"axes": [3]}, {"axes": [1]}),
        ("ReduceSum", {}, {}),
    ],
)
def test_axes_under_a_pending_transpose(op, attrs, back):
    read = "l l" if op == "Concat" else "l"
    turned = [
        ("Transpose", "x", "l", {"perm": [0, 2, 3, 1]}),
        (op, read, "m", attrs),
        ("Transpose", "m", "y", {"perm": [0, 3, 1, 2]}),
    ]
    assert equal(form(proto(turned, opset=13)), form(proto([(op, read.replace("l", "x"), "y", back)], opset=13)))


def test_two_outputs_swapped():
    nodes = [("Relu", "x", "a"), ("Sigmoid", "x", "b")]
    one, two = (form(proto(nodes, outputs=o)) for o in (("a", "b"), ("b", "a")))
    assert not equal(one, two)
    assert equal(two, form(proto([n for n in reversed(nodes)], outputs=("b", "a"))))


def test_an_output_in_another_layout():
    nhwc = proto([("Conv", "x w b", "c"), ("Transpose", "c", "y", {"perm": [0, 2, 3, 1]})], CONV)
    raw = loading.from_proto(nhwc)
    assert equal(canonical(raw, outputs={"y": (0, 2, 3, 1)}), conv())
    last = canonical(raw)
    assert ops(last) == ["Conv", "Transpose"]
    assert last.graph.outputs == ("y",)
