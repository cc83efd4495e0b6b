"""Planted differences in attributes: mistakes that are made in ports of networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.generator.net import Net, Rng, attr, set_attr
from tests.generator.rewrites import Edit, Table, entry, images, pick

#: Name -> (plant, the layer that it wants: see ``random_net``).
PLANTS: Table = {}


def plant(name: str, wants: str = "") -> Callable[[Edit], Edit]:
    return entry(PLANTS, name, wants)


# -- windows -----------------------------------------------------------------------------------------------------------


@plant("padding shifted by one")
def pads_shifted(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("Conv", "MaxPool", "AveragePool") if any(attr(n, "pads") or [])])
    if node is None:
        return False
    pads = attr(node, "pads")
    begin = pick(r, [i for i in range(4) if pads[i]])
    pads[begin] -= 1
    pads[(begin + 2) % 4] += 1
    if node.op_type != "Conv" and max(pads[:2] + pads[2:]) >= min(attr(node, "kernel_shape")):
        return False  # a window in padding alone
    set_attr(node, "pads", pads)
    return True


@plant("SAME_UPPER for SAME_LOWER", "auto_pad")
def same_flipped(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("Conv", "MaxPool", "AveragePool") if attr(n, "auto_pad")])
    if node is None:
        return False
    set_attr(node, "auto_pad", "SAME_LOWER" if attr(node, "auto_pad") == "SAME_UPPER" else "SAME_UPPER")
    return True


@plant("dilation taken away, padding fitted", "conv")
def dilation(net: Net, r: Rng) -> bool:
    conv = pick(r, [n for n in net.all("Conv") if attr(n, "dilations") == [2, 2] and attr(n, "pads") is not None])
    if conv is None:
        return False
    pads = attr(conv, "pads")
    for axis, k in enumerate(attr(conv, "kernel_shape")):
        less = k - 1
        pads[axis] -= less // 2
        pads[axis + 2] -= less - less // 2
    if min(pads) < 0:
        return False
    set_attr(conv, "dilations", [1, 1])
    set_attr(conv, "pads", pads)
    return True


@plant("another stride", "global")
def stride(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("Conv", "MaxPool", "AveragePool") if not attr(n, "auto_pad")])
    if node is None:
        return False
    old = attr(node, "strides") or [1, 1]
    set_attr(node, "strides", [3 - old[0], old[1]] if r.random() < 0.5 else [old[0], 3 - old[1]])
    return True


@plant("ceil_mode", "maxpool global")
def ceil_mode(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("MaxPool", "AveragePool") if attr(n, "pads") and net.opset >= 10])
    if node is None or attr(node, "count_include_pad", 0):
        return False
    set_attr(node, "ceil_mode", 1 - attr(node, "ceil_mode", 0))
    return True


@plant("count_include_pad", "avgpool")
def include_pad(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("AveragePool") if any(attr(n, "pads") or []) and not attr(n, "ceil_mode", 0)])
    if node is None:
        return False
    set_attr(node, "count_include_pad", 1 - attr(node, "count_include_pad", 0))
    return True


@plant("maximum for average", "maxpool")
def pool_kind(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("MaxPool", "GlobalAveragePool"))
    if node is None:
        return False
    node.op_type = "AveragePool" if node.op_type == "MaxPool" else "GlobalMaxPool"
    set_attr(node, "dilations", None)
    return True


# -- normalisations ----------------------------------------------------------------------------------------------------


@plant("LRN alpha scaled by size", "lrn")
def lrn_alpha(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("LRN"))
    if node is None:
        return False
    size = attr(node, "size")
    set_attr(node, "alpha", attr(node, "alpha") * (size if r.random() < 0.5 else 1 / size))
    return True


@plant("LRN size", "lrn")
def lrn_size(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("LRN"))
    if node is None:
        return False
    set_attr(node, "size", 8 - attr(node, "size"))
    return True


@plant("LRN bias", "lrn")
def lrn_bias(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("LRN"))
    if node is None:
        return False
    set_attr(node, "bias", 3.0 - attr(node, "bias"))
    return True


@plant("batchnorm epsilon", "bn")
def epsilon(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("BatchNormalization"))
    if node is None:
        return False
    set_attr(node, "epsilon", 1e-3 if attr(node, "epsilon", 1e-5) < 5e-4 else 1e-5)
    return True


@plant("batchnorm mean and shift swapped", "bn")
def mean_and_shift(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("BatchNormalization"))
    if node is None:
        return False
    node.input[2], node.input[3] = node.input[3], node.input[2]
    return True


@plant("Softmax axis", "softmax_image")
def softmax_axis(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Softmax"))
    if node is None:
        return False
    set_attr(node, "axis", 0 if node.input[0] not in images(net) else int(r.integers(2, 4)))
    return True


# -- activations -------------------------------------------------------------------------------------------------------


@plant("LeakyRelu for Relu", "relu")
def leaky(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Relu"))
    if node is None:
        return False
    net.replace(node, [net.node("LeakyRelu", [node.input[0]], node.output[0], alpha=0.01)])
    return True


@plant("LeakyRelu slope", "leaky")
def slope(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("LeakyRelu"))
    if node is None:
        return False
    set_attr(node, "alpha", attr(node, "alpha") * 1.1)
    return True


@plant("Relu left out", "relu")
def relu_removed(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Relu"))
    if node is None:
        return False
    net.remove(node)
    return True


@plant("Clip bound", "clip")
def clip_bound(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Clip"))
    if node is None:
        return False
    which, factor = int(r.integers(2)), float(r.choice([0.8, 0.95, 1.05]))
    if len(node.input) == 3:
        node.input[1 + which] = net.constant(net.constants[node.input[1 + which]] * factor)
    else:
        name = ("min", "max")[which]
        set_attr(node, name, attr(node, name) * factor)
    return True


@plant("Gelu by tanh", "gelu")
def gelu_tanh(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Gelu"))
    if node is not None:
        set_attr(node, "approximate", "tanh")
        return True
    erf = pick(r, net.all("Erf"))
    if erf is None:
        return False
    # erf(x / sqrt 2) is tanh(sqrt(2 / pi) (x + 0.044715 x^3)), about; u = x / sqrt 2.
    u, c = erf.input[0], net.constant
    square = net.node("Mul", [u, u])
    scaled = net.node("Mul", [square.output[0], c(2 * 0.044715)])
    raised = net.node("Add", [scaled.output[0], c(1.0)])
    inner = net.node("Mul", [u, raised.output[0]])
    outer = net.node("Mul", [inner.output[0], c(2 / np.sqrt(np.pi))])
    net.replace(erf, [square, scaled, raised, inner, outer, net.node("Tanh", [outer.output[0]], erf.output[0])])
    return True


# -- wiring ------------------------------------------------------------------------------------------------------------


@plant("Resize coordinates", "resize")
def resize_mode(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Resize"))
    if node is None:
        return False
    old = attr(node, "coordinate_transformation_mode")
    modes = [m for m in ("asymmetric", "half_pixel", "align_corners") if m != old]
    set_attr(node, "coordinate_transformation_mode", str(r.choice(modes)))
    return True


@plant("Resize rounding", "resize")
def resize_rounding(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Resize"))
    if node is None:
        return False
    old = attr(node, "nearest_mode")
    set_attr(node, "nearest_mode", str(r.choice([m for m in ("floor", "round_prefer_floor", "ceil") if m != old])))
    return True


@plant("Concat order", "concat")
def concat_order(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Concat"))
    if node is None:
        return False
    node.input[:] = list(node.input)[::-1]
    return True


@plant("residual left out", "residual")
def residual(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("Add") if not {*n.input} & {*net.constants} and len({*n.input}) == 2])
    if node is None or node.input[0] not in images(net):
        return False
    net.remove(node)
    return True


@plant("outputs swapped", "two_outputs")
def outputs_swapped(net: Net, r: Rng) -> bool:
    if len(net.outputs) != 2:
        return False
    first, second = net.outputs
    outputs = net.outputs
    net.rename({first: second, second: first})
    net.outputs = outputs
    return True


@plant("flattened as HWC", "fc")
def flatten_order(net: Net, r: Rng) -> bool:
    known = images(net)
    node: onnx.NodeProto | None = pick(r, [n for n in net.all("Flatten", "Reshape") if n.input[0] in known])
    if node is None:
        return False
    turned = net.node("Transpose", [node.input[0]], perm=[0, 2, 3, 1])
    node.input[0] = turned.output[0]
    net.replace(node, [turned, node])
    return True
