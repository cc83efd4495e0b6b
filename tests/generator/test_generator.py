"""The generator itself: its networks are valid, its rewrites equal, its plants real; neither by the checker's word."""

from collections import Counter

import numpy as np
import onnx
import onnx.reference
import pytest

from tests.generator import pairs, witness
from tests.generator.net import Net
from tests.generator.pairs import PLANTS, REWRITES
from tests.generator.random_net import random_net


def doubled(net: Net) -> Net:
    """The same network in float64."""
    wide = net.copy()
    wide.constants = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in net.constants.items()}
    return wide


def exact(net: Net, feed) -> list[np.ndarray]:
    """By the reference implementation of the onnx package, in float64."""
    wide = doubled(net).proto()
    for v in (*wide.graph.input, *wide.graph.output):
        v.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    run = onnx.reference.ReferenceEvaluator(wide)
    moved = [x.transpose(net.axes) if net.axes else x for x in feed]
    return run.run(None, {k: x.astype(np.float64) for k, x in zip(net.inputs, moved, strict=True)})


def test_a_seed_is_a_network():
    one, two = (random_net(np.random.default_rng(5)).checked().SerializeToString() for _ in range(2))
    assert one == two


def test_networks_are_valid_and_of_every_kind():
    ops, opsets = Counter(), Counter()
    for seed in range(150):
        net = random_net(np.random.default_rng(seed))
        net.checked()
        assert 2 <= len(net.nodes) <= 14
        ops.update({n.op_type for n in net.nodes})
        opsets[net.opset] += 1
    wanted = {"Conv", "BatchNormalization", "Clip", "LeakyRelu", "Gelu", "Erf", "HardSwish", "MaxPool", "AveragePool"}
    wanted |= {"LRN", "Add", "Concat", "Flatten", "Reshape", "Gemm", "MatMul", "GlobalAveragePool", "Softmax", "Resize"}
    assert wanted <= {*ops}
    assert len(opsets) == 5


@pytest.mark.parametrize("kind", REWRITES)
def test_a_rewrite_leaves_what_the_network_computes(kind):
    (pair,) = pairs.equal(3, 1, [kind])
    assert pair.distance <= 2  # each of the two runs may err by one bound
    assert pair.second.proto() != pair.first.proto() or pair.second.external


@pytest.mark.parametrize("kind", PLANTS)
def test_a_plant_is_beyond_the_bound(kind):
    (pair,) = pairs.planted(3, 1, [kind])
    assert pairs.CLEARLY < pair.distance < np.inf


#: Where the onnx package's own evaluator can't be the witness: what it does with ceil_mode, auto_pad, LRN and Resize
#: is not what ONNX says, or it wants float32.
LEFT_OUT = {"AveragePool", "MaxPool", "LRN", "Resize", "DequantizeLinear", "Cast"}


def plain(pair) -> bool:
    nodes = [*pair.first.nodes, *pair.second.nodes]
    return not any(n.op_type in LEFT_OUT or any(a.name == "auto_pad" for a in n.attribute) for n in nodes)


def test_a_second_witness_in_float64_agrees():
    checked = 0
    for made, far in ((pairs.equal(4, 24), False), (pairs.planted(4, 24), True)):
        for pair in filter(plain, made):
            feed = pair.feeds[0]
            allowed = witness.bounds(pair.first, [feed])
            distance = witness.distance([exact(pair.first, feed)], [exact(pair.second, feed)], allowed)
            if far:
                whole = max(distance, _last(pair))
                assert whole > 1, pair.kind
            else:
                assert distance <= 1, pair.kind
            checked += 1
    assert checked >= 12


def _last(pair) -> float:
    feed = pair.feeds[-1]
    allowed = witness.bounds(pair.first, [feed])
    return witness.distance([exact(pair.first, feed)], [exact(pair.second, feed)], allowed)
