"""What goes wrong in ports, from ONNX models to sentences: each pair that is equal, and its neighbour that is not."""

import numpy as np
import pytest
from hand_made import NAMES
from spelled import proto, r

from xframe.normal import loading
from xframe.normal.canonical import canonical
from xframe.normal.match import match

W, B = r(8, 4, 3, 3), r(8, seed=1)
HALVES = {"w0": W[:4, :2], "w1": W[4:, :2], "w": W[:, :2]}
FC = r(10, 8 * 8 * 8, seed=2)
HWC = FC.reshape(10, 8, 8, 8).transpose(0, 2, 3, 1).reshape(10, -1)
BN = {"s": r(8, shift=1, scale=0.1), "t": r(8, seed=3), "m": r(8, seed=4), "v": np.abs(r(8, seed=5)) + 0.5}
STRIDE = {"strides": [2, 2]}


def conv(weights=None, more=(), **attrs):
    nodes = [("Conv", "x w b", "c" if more else "y", {"kernel_shape": [3, 3], "pads": [1] * 4, **attrs}), *more]
    return nodes, {"w": W, "b": B, **(weights or {})}


def normed(epsilon):
    return conv(BN, [("BatchNormalization", "c s t m v", "y", {"epsilon": epsilon})])


def folded(epsilon):
    scale = BN["s"] / np.sqrt(BN["v"] + np.float32(epsilon))
    return conv({"w": W * scale[:, None, None, None], "b": (B - BN["m"]) * scale + BN["t"]})


def tail(weight, transposed=False):
    """A convolution, flattened and multiplied; or, with ``transposed``, flattened in NHWC first."""
    flat = [("Transpose", "c", "t", {"perm": [0, 2, 3, 1]})] if transposed else []
    more = [*flat, ("Flatten", "t" if transposed else "c", "f"), ("Gemm", "f fc", "y", {"transB": 1})]
    return conv({"fc": weight}, more)


def then(op, attrs=None, weights=None, opset=17):
    return (*conv(weights, [(op, " ".join(["c", *(weights or {})]), "y", attrs or {})]), opset)


def gelu(tanh):
    if not tanh:
        nodes = [
            ("Div", "c root", "d"),
            ("Erf", "d", "e"),
            ("Add", "e one", "a"),
            ("Mul", "c a", "g"),
            ("Mul", "g half", "y"),
        ]
    else:
        nodes = [("Pow", "c three", "p"), ("Mul", "p k", "q"), ("Add", "c q", "s"), ("Mul", "s l", "u")]
        nodes += [("Tanh", "u", "e"), ("Add", "e one", "a"), ("Mul", "c a", "g"), ("Mul", "g half", "y")]
    numbers = {"root": 2**0.5, "one": 1, "half": 0.5, "three": 3, "k": 0.044715, "l": (2 / np.pi) ** 0.5}
    return conv({k: np.float32(v) for k, v in numbers.items()}, nodes)


def groups(split):
    if not split:
        return [("Conv", "x w b", "y", {"group": 2})], {"w": HALVES["w"], "b": B}
    nodes = [("Split", "x", "p q", {"axis": 1}), ("Conv", "p w0 b0", "c"), ("Conv", "q w1 b1", "d")]
    return [*nodes, ("Concat", "c d", "y", {"axis": 1})], {**HALVES, "b0": B[:4], "b1": B[4:]}


def quantised(values):
    step = np.float32(np.abs(values).max() / 127)
    return (np.round(values / step) * step).astype(np.float32)


POOL = {"kernel_shape": [3, 3], "strides": [2, 2]}
LINEAR = {"mode": "linear"}
TWICE = {"roi": np.zeros(0, np.float32), "by": np.array([1, 1, 2, 2], np.float32)}

#: Two models that are the same, as (nodes, weights[, opset]), one that is not, and kind and words of how.
PORTS = {
    "SAME": (
        conv(auto_pad="SAME_UPPER", pads=None, **STRIDE),
        conv(pads=[0, 0, 1, 1], **STRIDE),
        conv(**STRIDE),
        "padding",
        "TensorFlow's SAME puts the odd pixel at the end",
    ),
    "ceil mode": (
        then("MaxPool", POOL | {"ceil_mode": 1}),
        then("MaxPool", POOL | {"pads": [0, 0, 1, 1]}),
        then("MaxPool", POOL),
        "padding",
        "an output of 4x4 against 3x3, as with ceil_mode",
    ),
    "padding in averages": (
        then("AveragePool", POOL | {"pads": [1] * 4}),
        then("AveragePool", POOL | {"pads": [1] * 4, "count_include_pad": 0}),
        then("AveragePool", POOL | {"pads": [1] * 4, "count_include_pad": 1}),
        "pooling",
        "leaves the padding out of its averages in caffe, and counts it (count_include_pad) in pytorch",
    ),
    "LRN": (
        then("LRN", {"size": 5, "alpha": 1e-4, "beta": 0.75}),
        then("LRN", {"size": 5}),
        then("LRN", {"size": 5, "alpha": 2e-5}),
        "LRN",
        "the first is five times as much, its size",
    ),
    "bias": (conv({"b": 0 * B}), conv({"b": 0 * B}), conv(), "bias", "has no bias in caffe, and one in pytorch"),
    "groups": (groups(False), groups(True), conv(pads=[0] * 4), "groups", "has groups: 2 in caffe, and 1 in pytorch"),
    "flatten": (
        tail(FC),
        tail(HWC, True),
        tail(HWC),
        "flatten order",
        "CHW in caffe against HWC in pytorch: the image was flattened in another layout",
    ),
    "batch normalisation": (normed(1e-3), folded(1e-3), folded(0.1), "weights", "a factor for each of the 8 filters"),
    "clip": (
        then("Clip", {"min": 0.0, "max": 6.0}, opset=10),
        then("Clip", weights={"l": np.float32(0), "h": np.float32(6)}),
        then("Relu"),
        "clip",
        "is Clip to 0 .. 6 in caffe, and Relu in pytorch",
    ),
    "Gelu": (
        gelu(False),
        gelu(False),
        gelu(True),
        "activation",
        "is exact Gelu (erf) in caffe, and Gelu approximated by tanh",
    ),
    "softmax": (
        then("Softmax", {"axis": 1}),
        then("Softmax", {"axis": -3}),
        then("Softmax"),
        "softmax axis",
        "normalises along axis 1 in caffe, and along axis 3 in pytorch: the default was axis 1 before opset 13",
    ),
    "resize": (
        then("Resize", LINEAR, TWICE),
        then("Resize", LINEAR | {"coordinate_transformation_mode": "half_pixel"}, TWICE),
        then("Resize", LINEAR | {"coordinate_transformation_mode": "align_corners"}, TWICE),
        "resize",
        "has the coordinate transformation half_pixel in caffe, and align_corners in pytorch",
    ),
    "dropout": (
        conv(),
        conv({"p": np.float32(0.5)}, [("Dropout", "c p", "y")]),
        conv({"p": np.float32(0.5), "on": np.array(True)}, [("Dropout", "c p on", "y")]),
        "dropout in training mode",
        "pytorch drops elements at random",
    ),
    "float16": (
        conv(),
        conv(),
        conv({"w": W.astype(np.float16).astype(np.float32)}),
        "precision",
        "the float16 nearest",
    ),
    "quantised": (conv(), conv(), conv({"w": quantised(W)}), "precision", "quantised in pytorch"),
    "kernels": (conv(), conv(), conv({"w": W[:, :, ::-1, ::-1]}), "weights", "kernels turned by 180 degrees"),
}


def made(nodes, weights, opset=17):
    nodes = [(*n[:3], {k: v for k, v in n[3].items() if v is not None}) if len(n) > 3 else n for n in nodes]
    used = {name for n in nodes for name in n[1].split()}
    return canonical(loading.from_proto(proto(nodes, {k: v for k, v in weights.items() if k in used}, opset=opset)))


@pytest.mark.parametrize("name", PORTS)
def test_a_port(name):
    a, b, other, kind, words = PORTS[name]
    same = match(made(*a), made(*b), NAMES)
    assert [d.text for d in same.differences if not d.harmless] == []
    assert same.equal
    found = match(made(*a), made(*other), NAMES)
    assert not found.equal
    assert (found.differences[0].kind, words in found.differences[0].text) == (kind, True), found.differences[0]
