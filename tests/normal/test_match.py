"""Which nodes correspond: equal graphs, graphs with nodes too many or too few, and large ones."""

import numpy as np
import pytest
from hand_made import NAMES, Net, chain, partners, residual, told
from hypothesis import given, settings
from hypothesis import strategies as st

from xframe.normal.form import Weight
from xframe.normal.match import match


def edits(a, b):
    """(pairs of different names, only in a, only in b)."""
    paired, mine, theirs = partners(match(a, b, NAMES))
    return {k: v for k, v in paired.items() if k != v}, mine, theirs


@pytest.mark.parametrize("make", [chain, residual])
def test_a_graph_equals_itself(make):
    found = match(make(), make(), NAMES)
    assert found.equal
    assert found.differences == ()
    assert all(p.same and p.a.name == p.b.name for p in found.pairs)
    assert [p.a.name for p in found.pairs] == [n.name for n in make().graph.nodes]


def test_names_and_the_order_of_the_nodes_do_not_matter():
    def net(names, swapped):
        made = Net()
        for name in reversed(names) if swapped else names:
            made.conv("x", name, 8)
        left, right = (f"{n}.out" for n in names)
        return made.normal(made.join("Add", [right, left] if swapped else [left, right], "sum"))

    assert match(net(["p", "q"], False), net(["p", "q"], True), NAMES).equal
    other = net(["p", "q"], False)
    renamed = type(other)(other.graph, other.shapes, other.weights, {"p": ("features/0",)}, {})
    assert match(other, renamed, NAMES).equal


@pytest.mark.parametrize("seed", [0, 1], ids=["the same weights", "every weight another"])
@pytest.mark.parametrize(
    ("skip", "extra"),
    [
        (["conv2_1"], []),
        (["relu3_1"], []),
        ([], ["conv2_1"]),
        ([], ["stem", "conv5_2"]),
        (["conv1_2", "relu4_1"], ["conv3_2"]),
    ],
)
def test_residual_blocks_with_layers_too_many_or_too_few(seed, skip, extra):
    b = residual(seed=seed, skip=skip, extra=extra)
    assert edits(residual(), b) == ({}, set(skip), {f"extra_{n}" for n in extra})
    assert edits(b, residual()) == ({}, {f"extra_{n}" for n in extra}, set(skip))
    assert not match(residual(), b, NAMES).equal


def test_a_layer_that_only_one_has_is_named_with_its_place():
    found = match(residual(), residual(skip=["relu3_1"]), NAMES)
    assert [d.kind for d in found.differences] == ["structure"]
    assert (
        found.differences[0].text == "between conv3_1 and conv3_2 caffe computes Relu (relu3_1), and pytorch does not"
    )
    ((kind, text),) = told(residual(), residual(extra=["conv3_1"]))
    assert (kind, "extra_conv3_1" in text, text.endswith("and caffe does not")) == ("structure", True, True)


def test_a_changed_node_keeps_its_partner_and_what_follows_is_not_the_same():
    found = match(residual(), residual(change={"conv2_1": {"dilations": [2, 2], "pads": [2] * 4}}), NAMES)
    pairs = {p.a.name: p for p in found.pairs}
    assert all(p.a.name == p.b.name for p in found.pairs)
    assert pairs["relu1_2"].same
    assert not pairs["conv2_1"].same
    assert not pairs["pool"].same
    assert pairs["pool"].differences == ()
    assert {d.kind for d in pairs["conv2_1"].differences} == {"dilation", "padding"}


def test_layers_in_another_order():
    def net(first, second):
        made = Net()
        x = made.conv("x", "conv1", 8)
        for name in (first, second):
            x = made.pool(x, "pool1") if name == "pool1" else made.point("LRN", x, "norm1", size=5)
        return made.normal(made.conv(x, "conv2", 8))

    ((kind, text),) = told(net("norm1", "pool1"), net("pool1", "norm1"))
    assert kind == "structure"
    assert "another order of the layers" in text
    assert "norm1" in text
    assert "pool1" in text


def inception(order=(0, 1, 2), change=None, seed=0):
    net = Net(change=change, seed=seed)
    stem = net.conv("x", "stem", 8)
    branches = [
        net.conv(stem, "one", 8, 1, pads=(0,) * 4),
        net.conv(net.conv(stem, "r3", 4, 1, pads=(0,) * 4), "three", 8),
    ]
    branches.append(net.conv(net.conv(stem, "r5", 4, 1, pads=(0,) * 4), "five", 8, 5, pads=(2,) * 4))
    return net.normal(net.conv(net.join("Concat", [branches[i] for i in order], "cat"), "end", 4))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_concatenation_in_another_order(seed):
    b = inception((1, 0, 2), seed=seed)
    assert edits(inception(), b) == ({}, set(), set())
    kinds = {kind: text for kind, text in told(inception(), b)}
    text = "cat concatenates in another order: one, three, five in caffe, and three, one, five in pytorch"
    assert kinds["concatenation"] == text
    assert "concatenation" not in {kind for kind, _ in told(inception(), inception(seed=seed))}


def test_of_a_long_concatenation_the_first_other_input_is_named():
    def net(order):
        made = Net()
        return made.normal(made.join("Concat", [made.conv("x", f"conv{i}", 4) for i in order], "cat"))

    ((kind, text),) = told(net(range(9)), net([0, 1, 3, 2, *range(4, 9)]))
    assert kind == "concatenation"
    assert text.endswith("9 tensors, number 3 conv2 in caffe, and 9 tensors, number 3 conv3 in pytorch")


def two_heads(outputs, seed=0):
    net = Net(seed=seed)
    stem = net.conv("x", "stem", 8)
    heads = {name: net.conv(stem, name, 4) for name in ("y", "z", "v")}
    return net.normal(*(heads[o] for o in outputs))


def test_outputs_that_are_swapped():
    ((kind, text),) = told(two_heads("yz"), two_heads("zy"))
    assert kind == "outputs"
    assert text.startswith("outputs y.out and z.out are swapped")
    assert told(two_heads("yz"), two_heads("yz")) == []
    assert not match(two_heads("yz"), two_heads("zy")).equal
    ((_, text),) = told(two_heads("yzv"), two_heads("vyz"))
    assert "in another order" in text
    *_, (_, text) = told(two_heads("yz"), two_heads("y"))
    assert text == "caffe has 2 outputs (y.out, z.out), and pytorch 1 (y.out)"


def test_an_output_from_another_layer():
    def net(end):
        made = Net()
        x = made.conv("x", "conv1", 4)
        made.point("Relu", x, "relu1")
        return made.normal(x, f"{end}.out", made.conv("relu1.out", "conv2", 4))

    ((kind, text),) = told(net("relu1"), net("conv2"))
    assert kind == "outputs"
    assert "relu1" in text
    assert "conv2" in text


def test_outputs_that_are_constants_or_inputs():
    def net(value, last):
        made = Net()
        made.weights["c"] = Weight(np.full(3, value, np.float32))
        return made.normal(made.conv("x", "conv1", 4), "c", last)

    assert match(net(1, "x"), net(1, "x")).equal
    ((kind, text),) = told(net(1, "x"), net(2, "x"))
    assert (kind, text.startswith("output c is made by constant")) == ("outputs", True)
    ((kind, text),) = told(net(1, "x"), net(1, "conv1.out"))
    assert text == "output x is made by input x in caffe, and by conv1 in pytorch"
    ((kind, _),) = told(net(1, "c"), net(1, "x"))
    assert kind == "outputs"


def test_swapped_outputs_are_seen_past_a_layer_that_only_one_has():
    def net(order, extra):
        made = Net()
        heads = {name: made.conv("x", name, 4) for name in "yz"}
        heads["y"] = made.point("Softmax", heads["y"], "prob", axis=1) if extra else heads["y"]
        return made.normal(*(heads[o] for o in order))

    assert [kind for kind, _ in told(net("yz", False), net("zy", True))] == ["structure", "outputs"]
    assert [kind for kind, _ in told(net("yz", False), net("yz", True))] == ["structure"]


def test_inputs_correspond_by_position():
    def net(op, order):
        made = Net(inputs=("left", "right"))
        return made.normal(made.join(op, [made.inputs[i] for i in order], "join"))

    assert match(net("Add", (0, 1)), net("Add", (1, 0))).equal
    ((kind, text),) = told(net("Sub", (0, 1)), net("Sub", (1, 0)))
    assert kind == "order of inputs"
    assert "input left, input right in caffe, and input right, input left in pytorch" in text
    ((kind, _),) = told(net("Add", (0, 1)), net("Add", (0, 0)))
    assert kind == "structure"


def test_a_constant_that_is_subtracted_from():
    def net(*inputs):
        made = Net()
        made.weights["c"], made.shapes["c"] = Weight(np.full((1, 3, 16, 16), 2, np.float32)), (1, 3, 16, 16)
        return made.normal(made.add("Sub", "minus", inputs, (1, 3, 16, 16)))

    assert match(net("c", "x"), net("c", "x")).equal
    ((kind, text),) = told(net("c", "x"), net("x", "c"))
    assert kind == "structure"
    assert text == "minus has its data as the second operand of Sub in caffe, and as the first operand in pytorch"


def test_a_gelu_written_out_in_two_ways():
    def net(tanh):
        made = Net()
        x = made.conv("x", "conv1", 4)
        y = made.point("Tanh" if tanh else "Erf", made.point("Mul", x, "scaled", factor=float(tanh)))
        return made.normal(made.conv(made.join("Mul", [x, y], "gate"), "conv2", 4))

    kinds = [kind for kind, _ in told(net(True), net(False))]
    assert "activation" in kinds


def test_dropout_left_in_training_mode():
    def net(training):
        made = Net()
        x = made.conv("x", "conv1", 4)
        if training:
            x = made.add("Dropout", "drop", x, made.shapes[x], (np.float32(0.5), np.array(True)))
        return made.normal(made.conv(x, "conv2", 4))

    ((kind, text),) = told(net(False), net(True))
    assert kind == "dropout in training mode"
    assert "between conv1 and conv2 pytorch drops elements at random" in text
    assert told(net(True), net(True)) == []


def test_what_is_the_same_in_many_layers_is_told_once():
    weights = residual().weights
    half = {
        n.name: {0: weights[f"{n.name}.0"].array.astype(np.float16)} for n in residual().graph.nodes if n.op == "Conv"
    }
    found = match(residual(), residual(change=half), NAMES)
    (only,) = found.differences
    assert only.text.startswith("stem: weights differ by float16")
    assert only.text.endswith("; likewise in 12 more layers (conv0_1, conv0_2, conv1_1, ...)")
    assert sum(len(p.differences) for p in found.pairs) == 13
    assert len(match(residual(2), residual(2, seed=1), NAMES).differences) == 10


def test_nothing_in_common():
    found = match(chain(), residual(seed=3), NAMES)
    assert not found.equal
    names = [p.a.name for p in found.pairs if p.a]
    assert names == [n.name for n in chain().graph.nodes]
    assert sorted(p.b.name for p in found.pairs if p.b) == sorted(n.name for n in residual().graph.nodes)


LAYERS = [n.name for n in residual().graph.nodes if n.op != "Add" and n.name != "pool"]


@settings(max_examples=15, deadline=None)
@given(
    skip=st.sets(st.sampled_from([n for n in LAYERS if n != "stem"]), max_size=3),
    extra=st.sets(st.sampled_from(LAYERS), max_size=3),
    seed=st.sampled_from([0, 1]),
)
def test_random_edits_are_found(skip, extra, seed):
    """Equal exactly if nothing was edited; every edit is told; no pair crosses another."""
    b = residual(skip=skip, extra=extra, seed=seed)
    found = match(residual(), b, NAMES)
    assert found.equal == (not skip and not extra and seed == 0)
    assert bool(found.differences) != found.equal
    back = match(b, residual(), NAMES)
    assert back.equal == found.equal
    if seed == 0:
        _, mine, theirs = edits(residual(), b)
        assert len(mine) - len(theirs) == len(skip) - len(extra)
        assert len(mine) + len(theirs) <= len(skip) + len(extra)


def long_chain(seed=0, change=None, skip=()):
    net = Net((1, 4, 4, 4), change=change, seed=seed)
    x = "x"
    for i in range(1000):
        x = net.conv(x, f"conv{i}", 4)
        x = x if i in skip else net.point("Relu", x, f"relu{i}")
    return net.normal(x)


@pytest.mark.parametrize(
    ("a", "b", "only_a"),
    [
        (lambda: long_chain(), lambda: long_chain(change={"conv0": {"pads": [0, 0, 2, 2]}}, skip=[700]), {"relu700"}),
        (lambda: residual(400), lambda: residual(400, skip=["conv200_2"]), {"conv200_2"}),
    ],
    ids=["chain", "residual"],
)
def test_two_thousand_nodes(a, b, only_a):
    """Quadratic work over them would take minutes, and be noticed."""
    found = match(a(), b(), NAMES)
    wrong, mine, theirs = partners(found)
    assert {k: v for k, v in wrong.items() if k != v} == {}
    assert (mine, theirs) == (only_a, set())
