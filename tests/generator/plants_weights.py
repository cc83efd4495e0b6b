"""Planted differences in weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.generator.net import Net, Rng, attr
from tests.generator.plants import plant
from tests.generator.rewrites import pick

LINEAR = ("Conv", "Gemm", "MatMul")


def linear(net: Net, r: Rng, *ops: str) -> onnx.NodeProto | None:
    """A node whose weight is its own."""
    return pick(r, [n for n in net.all(*(ops or LINEAR)) if net.sole_constant(n, 1)])


@plant("weight transposed", "fc")
def transposed(net: Net, r: Rng) -> bool:
    def square(shape: tuple[int, ...]) -> bool:
        return shape[0] == shape[1] if len(shape) == 2 else shape[2] == shape[3] > 1

    found = [n for n in net.all(*LINEAR) if net.sole_constant(n, 1) and square(net.constants[n.input[1]].shape)]
    node = pick(r, found)
    if node is None:
        return False
    net.constants[node.input[1]] = np.swapaxes(net.constants[node.input[1]], -1, -2)
    return True


@plant("kernel flipped")
def flipped(net: Net, r: Rng) -> bool:
    node = linear(net, r, "Conv")
    if node is None or max(net.constants[node.input[1]].shape[2:]) == 1:
        return False
    net.constants[node.input[1]] = net.constants[node.input[1]][:, :, ::-1, ::-1]
    return True


@plant("one filter")
def one_filter(net: Net, r: Rng) -> bool:
    node = linear(net, r, "Conv")
    if node is None:
        return False
    w = net.constants[node.input[1]].copy()
    w[int(r.integers(len(w)))] *= np.float32(1 + 10 ** r.uniform(-4, -0.5))
    net.constants[node.input[1]] = w
    return True


@plant("two filters swapped")
def swapped(net: Net, r: Rng) -> bool:
    node = linear(net, r, "Conv")
    if node is None or len(net.constants[node.input[1]]) < 2:
        return False
    w = net.constants[node.input[1]].copy()
    w[[0, -1]] = w[[-1, 0]]
    net.constants[node.input[1]] = w
    return True


@plant("one weight")
def one_weight(net: Net, r: Rng) -> bool:
    """By something between a millionth and ten times the weight; what stays within the bound is drawn again."""
    node = linear(net, r)
    if node is None:
        return False
    w = net.constants[node.input[1]].copy()
    at = tuple(int(r.integers(n)) for n in w.shape)
    w[at] += np.float32(w[at] * 10 ** r.uniform(-6, 1))
    net.constants[node.input[1]] = w
    return True


@plant("bias left out")
def bias(net: Net, r: Rng) -> bool:
    node = pick(r, [n for n in net.all("Conv", "Gemm") if len(n.input) > 2])
    if node is None:
        return False
    del node.input[2:]
    return net.opset >= 11 or node.op_type == "Conv"  # before, Gemm needs it


@plant("a dense layer's bias left out", "fc")
def dense_bias(net: Net, r: Rng) -> bool:
    added = pick(r, [n for n in net.all("Add") if n.input[1] in net.constants])
    maker = net.maker(added.input[0]) if added is not None else None
    if maker is None or maker.op_type != "MatMul":
        return False
    net.remove(added)
    return True


@plant("BGR for RGB")
def channels(net: Net, r: Rng) -> bool:
    """The input's channels in reverse order, for the first convolution's weights."""
    conv = pick(r, [n for n in net.readers(next(iter(net.inputs))) if n.op_type == "Conv" and net.sole_constant(n, 1)])
    if conv is None or attr(conv, "group", 1) > 1:
        return False
    net.constants[conv.input[1]] = net.constants[conv.input[1]][:, ::-1]
    return True


@plant("weights rounded to float16")
def float16(net: Net, r: Rng) -> bool:
    """Rounded and kept in float32, or kept in float16 and cast."""
    node = linear(net, r)
    if node is None:
        return False
    name = node.input[1]
    half = net.constants[name].astype(np.float16)
    if r.random() < 0.5:
        net.constants[name] = half.astype(np.float32)
        return True
    net.constants[name] = half
    cast = net.node("Cast", [name], to=TensorProto.FLOAT)
    net.read_instead(name, cast.output[0])
    net.nodes.insert(0, cast)
    return True


@plant("weights in eight bits")
def int8(net: Net, r: Rng) -> bool:
    """One scale a tensor; kept in float32, or as an integer that is dequantized."""
    node = linear(net, r)
    if node is None:
        return False
    name = node.input[1]
    scale = np.float32(np.abs(net.constants[name]).max() / 127)
    whole = np.round(net.constants[name] / scale).astype(np.int8)
    if net.opset < 10 or r.random() < 0.5:
        net.constants[name] = whole.astype(np.float32) * scale
        return True
    net.constants[name] = whole
    made = net.node("DequantizeLinear", [name, net.constant(scale), net.constant(0, "zero", np.int8)])
    net.read_instead(name, made.output[0])
    net.nodes.insert(0, made)
    return True
