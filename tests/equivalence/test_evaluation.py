"""A graph evaluated node by node: what is seen, kept, let go and given from outside."""

import numpy as np
import pytest
from small_nets import alexlike, images, residual, weights

from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Evaluation, Graph, Node, from_spec, run, steps
from xframe.equivalence.reference import OPERATORS
from xframe.errors import ModelError


@pytest.fixture(params=[alexlike(softmax=True), residual()], ids=lambda s: s.name)
def net(request):
    spec = request.param
    return from_spec(spec, weights(spec)), {"input": images(spec, 2)}


def test_observers_see_every_tensor_once(net):
    graph, feeds = net
    seen = {}
    (output,) = run(graph, feeds, OPERATORS, {}, lambda name, q: seen.update({name: q}))
    assert list(seen) == [n.outputs[0] for n in graph.nodes]
    assert seen[graph.outputs[0]] is output
    for node, given in steps(graph, feeds, OPERATORS, {}):
        (name,) = given
        assert name == node.outputs[0]
        np.testing.assert_array_equal(given[name].value, seen[name].value)
        np.testing.assert_array_equal(given[name].bound, seen[name].bound)


def test_values_alone_are_the_same_values(net):
    graph, feeds = net
    found = {}
    run(graph, feeds, OPERATORS, {}, lambda name, q: found.update({name: q}))
    for _, given in steps(graph, feeds, OPERATORS, None):
        for name, q in given.items():
            np.testing.assert_allclose(q.value, found[name].value, rtol=1e-12, atol=1e-14)
            assert q.variance is None


def test_the_error_state_of_the_caller_is_left_alone():
    graph = Graph((Node("n", "Log", ("x",), ("y",)),), {}, ("x",), ("y",), ((1,),))
    before = np.geterr()
    for _, given in steps(graph, {"x": np.zeros(1)}, OPERATORS, {}):
        assert np.geterr() == before
        assert given["y"].value[0] == -np.inf


DIAMOND = Graph(
    (
        Node("a", "Exp", ("x",), ("a",)),
        Node("b", "Neg", ("a",), ("b",)),
        Node("c", "Abs", ("a",), ("c",)),
        Node("d", "Add", ("b", "c"), ("d",)),
    ),
    {},
    ("x",),
    ("d",),
    ((3,),),
)


def test_any_order_and_results_from_outside():
    a, b, c, d = DIAMOND.nodes
    evaluation = Evaluation(DIAMOND, {"x": np.arange(3.0)}, OPERATORS, None, ["b"])
    evaluation.step(a)
    evaluation.step(c, [Quantity(np.full(3, 5.0))])
    assert "a" in evaluation.tensors
    evaluation.step(b)
    assert "a" not in evaluation.tensors
    evaluation.step(d)
    assert set(evaluation.tensors) == {"b", "d"}
    evaluation.release("b")
    assert set(evaluation.tensors) == {"d"}
    np.testing.assert_allclose(evaluation.output("d").value, 5 - np.exp(np.arange(3)))


def test_what_can_not_be_had_is_said():
    evaluation = Evaluation(DIAMOND, {"x": np.arange(3.0)}, {}, {})
    with pytest.raises(ModelError, match="operator Exp"):
        evaluation.step(DIAMOND.nodes[0])
    with pytest.raises(ModelError, match="no node gives z"):
        evaluation.output("z")
    pool = Node("p", "MaxPool", ("x",), ("y", "at"), {"kernel_shape": [2]})
    for outputs in (("at",), ("y", "at")):
        graph = Graph((pool,), {}, ("x",), outputs, ((1, 1, 4),))
        with pytest.raises(ModelError, match=r"node p \(MaxPool\).* does not compute its output at"):
            run(graph, {"x": np.ones((1, 1, 4))}, OPERATORS, {})
    after = Graph((pool, Node("q", "Neg", ("at",), ("z",))), {}, ("x",), ("z",), ((1, 1, 4),))
    with pytest.raises(ModelError, match=r"node q \(Neg\).*does not compute"):
        run(after, {"x": np.ones((1, 1, 4))}, OPERATORS, {})


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Add", ("x", "y"), {}),
        ("Concat", ("x", "y"), {"axis": 0}),
        ("Reshape", ("x", "shape"), {}),
        ("Transpose", ("x",), {"perm": [0, 5]}),
        ("Gather", ("x", "shape"), {}),
        ("LRN", ("x",), {}),
        ("Conv", ("x", ""), {}),
        ("Range", ("zero", "shape", "zero"), {}),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(op, inputs, attrs):
    constants = {"y": np.ones((4, 5)), "shape": np.array([7, 7]), "zero": np.array(0)}
    graph = Graph((Node("it", op, inputs, ("z",), attrs),), constants, ("x",), ("z",), ((2, 3),))
    with pytest.raises(ModelError, match=rf"node it \({op}\)"):
        run(graph, {"x": np.ones((2, 3))}, OPERATORS, {})
