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
from xframe.equivalence.graph import from_proto
from xframe.equivalence.reference import Reference


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


def test_the_float64_reference_agrees_with_the_witness():
    """So that a bound is one of what runs. With align_corners the two differ: a case of its own, in the checker's."""
    seen = 0
    for seed in range(60):
        r = np.random.default_rng((9, seed))
        net = random_net(r)
        if b"align_corners" not in net.proto().SerializeToString():
            fed = witness.feeds(net, r, 1)
            (judged,) = (Reference(from_proto(net.checked())).evaluate(feed) for feed in fed)
            allowed = [[j.bound for j in judged]]
            assert witness.distance([[j.value for j in judged]], witness.outputs(net.checked(), fed), allowed) <= 1
            seen += 1
    assert seen > 50


#: Where the onnx package's own evaluator is no witness: it differs from ONNX Runtime, or it wants float32.
LEFT_OUT = {"AveragePool", "MaxPool", "LRN", "Resize", "DequantizeLinear", "Cast"}


def plain(net: Net) -> bool:
    """Before operator set 14 the evaluator normalises by the batch's own statistics."""
    early = net.opset < 14 and net.all("BatchNormalization")
    padded = any(a.name == "auto_pad" for n in net.nodes for a in n.attribute)
    return not (early or padded or net.all(*LEFT_OUT))


@pytest.mark.parametrize(("made", "count"), [(pairs.equal, 32), (pairs.planted, 40)])
def test_a_second_witness_in_float64_agrees(made, count):
    checked = 0
    for pair in made(4, count):
        if plain(pair.first) and plain(pair.second):
            one, two = ([exact(net, feed) for feed in pair.feeds] for net in (pair.first, pair.second))
            distance = witness.distance(one, two, witness.bounds(pair.first, pair.feeds))
            assert (distance > 1) == (made is pairs.planted), pair.kind
            checked += 1
    assert checked >= 7
