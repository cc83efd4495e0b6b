"""Channels that belong together, and problems made smaller by trying."""

from dataclasses import replace

import numpy as np
import pytest

from tests.equivalence import small_nets
from xframe.check import channels, emit
from xframe.check.shrink import Problem, shapes, shrink
from xframe.equivalence.graph import Graph, Node, from_spec
from xframe.equivalence.reference import Reference
from xframe.errors import ModelError


def network(spec):
    graph = from_spec(spec, small_nets.weights(spec, batch=2))
    return replace(graph, shapes=((2, *spec.input),)), [small_nets.images(spec, batch=2)]


@pytest.mark.parametrize("spec", [small_nets.alexlike(softmax=True), small_nets.residual()], ids=lambda s: s.name)
def test_whatever_channels_are_cut_the_network_still_runs(spec):
    graph, feeds = network(spec)
    found = channels.found([graph], [shapes(graph, feeds)])
    assert len(found) >= 3
    for one in found:
        half = one.size // 2 // one.step * one.step
        (small,), inputs = channels.cut([graph], feeds, one, half, one.size)
        Reference(small).evaluate(inputs)
        emit.model(small)
        weights = [sum(a.size for a in g.constants.values()) for g in (graph, small)]
        assert weights[1] < weights[0]


def test_channels_of_a_convolution_are_cut_where_they_are_made_and_where_they_are_read():
    graph, feeds = network(small_nets.alexlike())
    found = channels.found([graph], [shapes(graph, feeds)])
    sizes = {tuple(sorted((name, axis) for _, name, axis, _ in c.cuts)): c.step for c in found}
    assert (
        sizes[("conv1.bias", 0), ("conv1.weight", 0), ("conv2.bias", 0), ("conv2.weight", 0), ("conv3.weight", 1)] == 12
    )
    assert sizes[("conv3.bias", 0), ("conv3.weight", 0), ("fc4.weight", 1)] == 1
    assert sizes[("fc5.bias", 0), ("fc5.weight", 0)] == 1


def test_the_cut_rows_of_a_flattened_image_are_its_channels():
    graph, feeds = network(small_nets.alexlike())
    end = replace(graph, outputs=("fc4",))
    found = channels.found([end], [shapes(end, feeds)])
    one = next(c for c in found if ("conv3.weight", 0) in {(name, axis) for _, name, axis, _ in c.cuts})
    weight = graph.constants["fc4.weight"]
    per = weight.shape[1] // one.size
    (small,), _ = channels.cut([end], feeds, one, 3, 5)
    np.testing.assert_array_equal(small.constants["fc4.weight"], weight[:, 3 * per : 5 * per])
    np.testing.assert_array_equal(small.constants["conv3.weight"], graph.constants["conv3.weight"][3:5])


def test_what_mixes_channels_in_its_own_way_is_left_alone():
    nodes = (
        Node("cat", "Concat", ("x", "x"), ("c",), {"axis": 1}, 17),
        Node("relu", "Relu", ("c",), ("y",), {}, 17),
    )
    graph = Graph(nodes, {}, ("x",), ("y",), ((1, 8, 2, 2),))
    feeds = [np.ones((1, 8, 2, 2), np.float32)]
    assert channels.found([graph], [shapes(graph, feeds)]) == []


def test_one_element_is_found_in_a_large_problem():
    """The problem fails as long as the largest input is in it."""
    graph = Graph((Node("relu", "Relu", ("x",), ("y",), {}, 17),), {}, ("x",), ("y",), ((3, 7, 13, 11),))
    x = np.zeros((3, 7, 13, 11), np.float32)
    x[1, 4, 9, 2] = 5
    small = shrink(Problem.of((graph,), [x]), lambda p: float(p.feeds[0].max()) == 5)
    np.testing.assert_array_equal(small.feeds[0], [[[[5]]]])
    assert small.graphs[0].shapes == ((1, 1, 1, 1),)


def test_reshapes_follow_the_batch():
    nodes = (
        Node("split", "Reshape", ("x", "four"), ("s",), {}, 17),
        Node("flat", "Reshape", ("s", "two"), ("y",), {}, 17),
    )
    held = {"four": np.array([4, 2, 3, 2]), "two": np.array([4, 12])}
    graph = Graph(nodes, held, ("x",), ("y",), ((4, 6, 2),))
    feeds = [np.random.default_rng(0).standard_normal((4, 6, 2)).astype(np.float32)]

    def fails(problem):
        (exact,) = Reference(problem.graphs[0]).evaluate(problem.feeds)
        return exact.value.shape[1:] == (12,)

    assert shrink(Problem.of((graph,), feeds), fails).feeds[0].shape == (1, 6, 2)


def test_what_can_not_be_evaluated_does_not_fail():
    graph = Graph((Node("relu", "Relu", ("x",), ("y",), {}, 17),), {}, ("x",), ("y",), ((4, 4),))
    problem = Problem.of((graph,), [np.ones((4, 4), np.float32)])

    def fails(candidate):
        if candidate.feeds[0].shape != (4, 4):
            raise ModelError("it does not fit")
        return True

    assert shrink(problem, fails).feeds[0].shape == (4, 4)


def test_time_is_kept(monkeypatch):
    graph = Graph((Node("relu", "Relu", ("x",), ("y",), {}, 17),), {}, ("x",), ("y",), ((64, 64),))
    problem = Problem.of((graph,), [np.ones((64, 64), np.float32)])
    asked = []
    shrink(problem, lambda p: bool(asked.append(p)) or True, seconds=0.0)
    assert asked == []
