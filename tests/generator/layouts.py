"""Rewrites from NCHW into NHWC, as exporters of TensorFlow and JAX make them."""

from __future__ import annotations

import numpy as np

from tests.generator.net import Net, Rng, attr, set_attr
from tests.generator.rewrites import POINTWISE, TO_FIRST, TO_LAST, images, pick, rewrite


@rewrite("an NHWC input")
def last_input(net: Net, r: Rng) -> bool:
    (name, shape), *more = net.inputs.items()
    if more or net.axes or shape[1] in shape[2:]:  # ambiguous sizes have to be declared: a test of their own
        return False
    before = net.readers(name)
    turned = net.node("Transpose", [name], perm=TO_FIRST)
    net.read_instead(name, turned.output[0], before)
    net.nodes.insert(0, turned)
    net.inputs, net.axes = {name: tuple(shape[a] for a in TO_LAST)}, TO_LAST
    return True


@rewrite("pointwise operators in NHWC")
def pointwise(net: Net, r: Rng) -> bool:
    known = images(net)
    node = pick(r, [n for n in net.all(*POINTWISE) if n.input[0] in known])
    if node is None:
        return False
    before = net.node("Transpose", [node.input[0]], perm=TO_LAST)
    after = net.node("Transpose", [net.fresh("last")], node.output[0], perm=TO_FIRST)
    node.input[0], node.output[0] = before.output[0], after.input[0]
    net.replace(node, [before, node, after])
    return True


@rewrite("an Add in NHWC", "residual")
def add(net: Net, r: Rng) -> bool:
    known = images(net) - {*net.constants}
    node = pick(r, [n for n in net.all("Add", "Concat") if {*n.input} <= known and attr(n, "axis", 1) == 1])
    if node is None:
        return False
    before = [net.node("Transpose", [x], perm=TO_LAST) for x in node.input]
    after = net.node("Transpose", [net.fresh("last")], node.output[0], perm=TO_FIRST)
    node.input[:] = [n.output[0] for n in before]
    node.output[0] = after.input[0]
    if node.op_type == "Concat":
        set_attr(node, "axis", 3)
    net.replace(node, [*before, node, after])
    return True


@rewrite("Concat in NHWC", "concat")
def concat(net: Net, r: Rng) -> bool:
    return any(n.op_type == "Concat" for n in net.nodes) and add(net, r)


@rewrite("Softmax over the last axis in NHWC", "softmax_image")
def softmax(net: Net, r: Rng) -> bool:
    known = images(net)
    node = pick(r, [n for n in net.all("Softmax") if n.input[0] in known and attr(n, "axis") == 1])
    if node is None or net.opset < 13:
        return False
    before = net.node("Transpose", [node.input[0]], perm=TO_LAST)
    after = net.node("Transpose", [net.fresh("last")], node.output[0], perm=TO_FIRST)
    node.input[0], node.output[0] = before.output[0], after.input[0]
    set_attr(node, "axis", -1)
    net.replace(node, [before, node, after])
    return True


@rewrite("flattened as HWC, the weights reordered", "fc")
def flatten(net: Net, r: Rng) -> bool:
    shapes = net.shapes()

    def product(node):
        reader = net.sole_reader(node.output[0])
        return reader if reader in net.fixed("Gemm", "MatMul") else None

    flats = [n for n in net.all("Flatten", "Reshape") if len(shapes[n.input[0]]) == 4 and product(n) is not None]
    node = pick(r, flats)
    if node is None:
        return False
    dense = product(node)
    order = np.arange(np.prod(shapes[node.input[0]][1:])).reshape(shapes[node.input[0]][1:])
    order = order.transpose(1, 2, 0).ravel()
    w = net.constants[dense.input[1]]
    moved = w[:, order] if attr(dense, "transB", 0) else w[order]
    dense.input[1] = net.constant(moved, "w")
    turned = net.node("Transpose", [node.input[0]], perm=TO_LAST)
    node.input[0] = turned.output[0]
    net.replace(node, [turned, node])
    return True
