"""Rewrites of a network into another one that computes the same function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.generator.net import Net, Rng, attr, set_attr
from xframe.artifact import explicit_pads

#: Changes the network in place; False: it has no place for this one.
Edit = Callable[[Net, Rng], bool]
Table = dict[str, tuple[Edit, str]]
POINTWISE = ("Relu", "LeakyRelu", "Sigmoid", "HardSwish", "Erf", "Clip", "Identity")
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)

#: Name -> (rewrite, the layer that it wants: see ``random_net``).
REWRITES: Table = {}


def entry(table: Table, name: str, wants: str = "") -> Callable[[Edit], Edit]:
    def register(edit: Edit) -> Edit:
        table[name] = (edit, wants)
        return edit

    return register


def rewrite(name: str, wants: str = "") -> Callable[[Edit], Edit]:
    return entry(REWRITES, name, wants)


def pick(r: Rng, found: list) -> onnx.NodeProto | None:
    return found[int(r.integers(len(found)))] if found else None


def images(net: Net) -> set[str]:
    return {name for name, shape in net.shapes().items() if len(shape) == 4}


def folded(net: Net, bn: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset of a batch normalisation, float64."""
    scale, shift, mean, var = (net.constants[n].astype(np.float64) for n in bn.input[1:])
    factor = scale / np.sqrt(var + attr(bn, "epsilon", 1e-5))
    return factor, shift - mean * factor


# -- batch normalisation, products, biases -----------------------------------------------------------------------------


@rewrite("batchnorm folded into the convolution", "bn_after_conv")
def fold_batchnorm(net: Net, r: Rng) -> bool:
    def sole(bn: onnx.NodeProto) -> bool:
        maker = net.maker(bn.input[0])
        return maker in net.fixed("Conv") and net.sole_reader(bn.input[0]) is bn

    bn = pick(r, [n for n in net.all("BatchNormalization") if sole(n)])
    if bn is None:
        return False
    conv = net.maker(bn.input[0])
    factor, offset = folded(net, bn)
    bias = net.constants[conv.input[2]].astype(np.float64) if len(conv.input) > 2 else 0.0
    weight = net.constants[conv.input[1]] * factor.reshape(-1, 1, 1, 1)
    names = [conv.input[0], net.constant(weight, "w"), net.constant(bias * factor + offset, "b")]
    conv.input[:] = names
    net.remove(bn)
    return True


@rewrite("batchnorm as a scale and a shift", "bn")
def scale_and_shift(net: Net, r: Rng) -> bool:
    bn = pick(r, net.all("BatchNormalization"))
    if bn is None:
        return False
    factor, offset = (v.reshape(1, -1, 1, 1) for v in folded(net, bn))
    scaled = net.node("Mul", [bn.input[0], net.constant(factor)])
    net.replace(bn, [scaled, net.node("Add", [scaled.output[0], net.constant(offset)], bn.output[0])])
    return True


@rewrite("Gemm apart into MatMul and Add", "fc")
def split_gemm(net: Net, r: Rng) -> bool:
    gemm = pick(r, [n for n in net.fixed("Gemm") if len(n.input) > 2])
    if gemm is None:
        return False
    w = net.constants[gemm.input[1]]
    product = net.node("MatMul", [gemm.input[0], net.constant(w.T if attr(gemm, "transB", 0) else w, "w")])
    net.replace(gemm, [product, net.node("Add", [product.output[0], gemm.input[2]], gemm.output[0])])
    return True


@rewrite("MatMul and Add as Gemm", "fc")
def merge_gemm(net: Net, r: Rng) -> bool:
    product = pick(r, [n for n in net.fixed("MatMul") if net.sole_reader(n.output[0])])
    added = net.sole_reader(product.output[0]) if product is not None else None
    if added is None or added.op_type != "Add":
        return False
    bias = added.input[1] if added.input[0] == product.output[0] else added.input[0]
    w = net.constant(net.constants[product.input[1]].T, "w")
    net.replace(added, [net.node("Gemm", [product.input[0], w, bias], added.output[0], transB=1)])
    net.remove(product)
    return True


@rewrite("a Gemm's weight transposed, transB flipped", "fc")
def flip_transb(net: Net, r: Rng) -> bool:
    gemm = pick(r, [n for n in net.fixed("Gemm") if len(n.input) > 2])
    if gemm is None:
        return False
    gemm.input[1] = net.constant(net.constants[gemm.input[1]].T, "w")
    set_attr(gemm, "transB", 1 - attr(gemm, "transB", 0))
    return True


@rewrite("a convolution's bias as an Add")
def bias_apart(net: Net, r: Rng) -> bool:
    conv = pick(r, [n for n in net.fixed("Conv") if len(n.input) > 2])
    if conv is None:
        return False
    bias = net.constant(net.constants[conv.input[2]].reshape(1, -1, 1, 1), "b")
    bare = net.fresh("conv")
    added = net.node("Add", [bare, bias], conv.output[0])
    del conv.input[2:]
    conv.output[0] = bare
    net.replace(conv, [conv, added])
    return True


@rewrite("groups as Split, convolutions and Concat", "grouped")
def split_groups(net: Net, r: Rng) -> bool:
    conv = pick(r, [n for n in net.fixed("Conv") if attr(n, "group", 1) > 1])
    if conv is None:
        return False
    groups = attr(conv, "group", 1)
    parts = [np.split(net.constants[name], groups) for name in conv.input[1:]]
    each = [parts[0][0].shape[1]] * groups
    cuts = [net.fresh("part") for _ in each]
    if net.opset >= 13:
        split = net.node("Split", [conv.input[0], net.constant(each, "split", np.int64)], axis=1)
    else:
        split = net.node("Split", [conv.input[0]], axis=1, split=each)
    split.output[:] = cuts
    kept = {a.name: attr(conv, a.name) for a in conv.attribute if a.name != "group"}
    convs = [net.node("Conv", [x, *(net.constant(p[i], "w") for p in parts)], **kept) for i, x in enumerate(cuts)]
    net.replace(conv, [split, *convs, net.node("Concat", [c.output[0] for c in convs], conv.output[0], axis=1)])
    return True


# -- padding -----------------------------------------------------------------------------------------------------------


@rewrite("automatic padding as numbers", "auto_pad")
def explicit(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("Conv", "MaxPool", "AveragePool") if attr(n, "auto_pad")])
    if node is None:
        return False
    size, kernel = net.shapes()[node.input[0]][2:], attr(node, "kernel_shape")
    pads = explicit_pads(attr(node, "auto_pad"), None, size, kernel, attr(node, "strides") or [1, 1], [1, 1])
    set_attr(node, "auto_pad", None)
    set_attr(node, "pads", list(pads))
    return True


@rewrite("explicit padding as SAME or VALID")
def automatic(net: Net, r: Rng) -> bool:
    shapes = net.shapes()
    for node in net.all("Conv", "MaxPool", "AveragePool"):
        dilated = max(attr(node, "dilations") or [1]) > 1
        if attr(node, "auto_pad") or attr(node, "ceil_mode", 0) or dilated:
            continue
        size, kernel, stride = shapes[node.input[0]][2:], attr(node, "kernel_shape"), attr(node, "strides") or [1, 1]
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            if list(explicit_pads(mode, None, size, kernel, stride, [1, 1])) == list(attr(node, "pads") or [0] * 4):
                set_attr(node, "pads", None)
                set_attr(node, "auto_pad", mode)
                return True
    return False


@rewrite("a convolution's padding as a Pad")
def pad_apart(net: Net, r: Rng) -> bool:
    conv = pick(r, [n for n in net.all("Conv") if any(attr(n, "pads") or [])])
    if conv is None:
        return False
    top, left, bottom, right = attr(conv, "pads")
    widths = [0, 0, top, left, 0, 0, bottom, right]
    if net.opset >= 11:
        padded = net.node("Pad", [conv.input[0], net.constant(widths, "pads", np.int64)])
    else:
        padded = net.node("Pad", [conv.input[0]], pads=widths)
    conv.input[0] = padded.output[0]
    set_attr(conv, "pads", None)
    net.replace(conv, [padded, conv])
    return True


# -- other words for an operator ---------------------------------------------------------------------------------------


@rewrite("Relu as Max with zero", "relu")
def relu_as_max(net: Net, r: Rng) -> bool:
    relu = pick(r, net.all("Relu"))
    if relu is None:
        return False
    net.replace(relu, [net.node("Max", [relu.input[0], net.constant(0.0)], relu.output[0])])
    return True


@rewrite("Clip as Min and Max", "clip")
def clip_as_extremes(net: Net, r: Rng) -> bool:
    clip = pick(r, [n for n in net.all("Clip") if len(n.input) == 3])
    if clip is None:
        return False
    high = net.node("Min", [clip.input[0], clip.input[2]])
    net.replace(clip, [high, net.node("Max", [high.output[0], clip.input[1]], clip.output[0])])
    return True


@rewrite("HardSwish as x times HardSigmoid", "hardswish")
def hardswish_apart(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("HardSwish"))
    if node is None:
        return False
    gate = net.node("HardSigmoid", [node.input[0]], alpha=1 / 6, beta=0.5)
    net.replace(node, [gate, net.node("Mul", [node.input[0], gate.output[0]], node.output[0])])
    return True


@rewrite("Gelu in its parts", "gelu")
def gelu_apart(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Gelu"))
    if node is None:
        return False
    x = node.input[0]
    scaled = net.node("Mul", [x, net.constant(np.sqrt(0.5))])
    inner = net.node("Erf", [scaled.output[0]])
    raised = net.node("Add", [inner.output[0], net.constant(1.0)])
    half = net.node("Mul", [x, net.constant(0.5)])
    net.replace(
        node, [scaled, inner, raised, half, net.node("Mul", [half.output[0], raised.output[0]], node.output[0])]
    )
    return True


@rewrite("Flatten as Reshape, or the other way round", "fc")
def flatten_or_reshape(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Flatten", "Reshape"))
    if node is None:
        return False
    if node.op_type == "Reshape":
        net.replace(node, [net.node("Flatten", [node.input[0]], node.output[0])])
    else:
        size = net.constant([0, -1], "size", np.int64)
        net.replace(node, [net.node("Reshape", [node.input[0], size], node.output[0])])
    return True


@rewrite("global pooling as a mean or a pooling", "global")
def global_pool(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("GlobalAveragePool"))
    if node is None:
        return False
    if r.random() < 0.5:
        kernel = list(net.shapes()[node.input[0]][2:])
        new = net.node("AveragePool", [node.input[0]], node.output[0], kernel_shape=kernel)
    elif net.opset >= 18:
        axes = net.constant([2, 3], "axes", np.int64)
        new = net.node("ReduceMean", [node.input[0], axes], node.output[0], keepdims=1)
    else:
        new = net.node("ReduceMean", [node.input[0]], node.output[0], keepdims=1, axes=[2, 3])
    net.replace(node, [new])
    return True


@rewrite("Add commuted", "residual")
def commute(net: Net, r: Rng) -> bool:
    node = pick(r, net.all("Add", "Mul"))
    if node is None:
        return False
    node.input[:] = list(node.input)[::-1]
    return True


# -- the model around the operators ------------------------------------------------------------------------------------


@rewrite("Identity or Dropout put in")
def put_in(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.nodes if n.input and n.input[0] not in net.constants])
    tensor = node.input[0]
    drop = {"ratio": 0.5} if net.opset < 12 else {}
    new = net.node("Dropout", [tensor], **drop) if r.random() < 0.5 else net.node("Identity", [tensor])
    net.read_instead(tensor, new.output[0], [node])
    net.replace(node, [new, node])
    return True


@rewrite("initializers as Constant nodes")
def constant_nodes(net: Net, r: Rng) -> bool:
    net.noded = {name for name in net.constants if r.random() < 0.7}
    return bool(net.noded)


@rewrite("another operator set")
def convert(net: Net, r: Rng) -> bool:
    targets = [v for v in (11, 13, 14, 17, 18, 20) if v > net.opset]
    if not targets or any(x == "" for n in net.nodes for x in n.input):  # the converter trips over absent inputs
        return False
    bare = net.copy()
    bare.noded, bare.listed, bare.batch = set(), False, ""
    made = Net.of(onnx.version_converter.convert_version(bare.checked(), int(r.choice(targets))))
    net.listed = False  # the newer IR need not
    net.nodes, net.constants, net.opset = made.nodes, made.constants, made.opset
    return True


@rewrite("initializers listed as inputs", "early")
def listed(net: Net, r: Rng) -> bool:
    net.listed = net.opset == 9
    return net.listed


@rewrite("weights in a file of their own")
def external(net: Net, r: Rng) -> bool:
    net.external = True
    return True


@rewrite("tensors and nodes renamed")
def rename(net: Net, r: Rng) -> bool:
    names = {*net.constants, *net.inputs, *net.outputs, *(x for n in net.nodes for x in (*n.input, *n.output))}
    order = r.permutation(len(names))
    net.rename({old: f"t{i}" for old, i in zip(sorted(names - {""}), order, strict=False)})
    for i, node in enumerate(net.nodes):
        node.name = f"op{i}"
    return True


@rewrite("dead nodes and unused weights")
def dead(net: Net, r: Rng) -> bool:
    source = pick(r, [n for n in net.nodes if n.op_type != "Constant"])
    net.nodes.append(net.node("Relu", [source.output[0]]))
    net.constant(r.standard_normal((3, 3)), "unused")
    return True


@rewrite("a symbolic batch")
def symbolic(net: Net, r: Rng) -> bool:
    sizes = [net.constants.get(n.input[1]) for n in net.all("Reshape")]
    if any(s is None or s[0] > 0 for s in sizes):
        return False
    net.batch = "batch"
    return True


@rewrite("a weight shared by name, now twice")
def duplicate(net: Net, r: Rng) -> bool:
    used = [n for n in net.nodes if any(x in net.constants for x in n.input)]
    node = pick(r, used)
    if node is None:
        return False
    for i, name in enumerate(node.input):
        if name in net.constants:
            node.input[i] = net.constant(net.constants[name], "copy", net.constants[name].dtype)
    return True
