"""What a profiler adds to a run, from a dummy that is run with and without it."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

#: Runs of the dummy, each way.
RUNS = 60


def added(
    plain: Callable[[], object],
    profiled: Callable[[], object],
    runs: int = RUNS,
    first: Callable[[], object] = lambda: None,
) -> float:
    """Seconds that ``profiled`` takes longer than ``plain``: the difference of their medians, run in turns.

    Noise may make it negative. ``first`` is run before each of them, and not timed.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for taken, run in zip(seconds, (plain, profiled), strict=True):
            first()
            before = time.perf_counter()
            run()
            taken.append(time.perf_counter() - before)
    return median(seconds[1]) - median(seconds[0])


def typical(run: Callable[[], object], runs: int = RUNS) -> float:
    """Seconds of a run: the median of so many."""
    seconds = []
    for _ in range(runs):
        before = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - before)
    return median(seconds)


def chain(operator: str, operands: int, nodes: int) -> bytes:
    """An ONNX model of so many nodes, one after the other, on 16 numbers: all the time goes to running nodes at all."""
    from onnx import TensorProto, helper

    shape = [1, 16]
    names = ["x", *(f"t{i}" for i in range(1, nodes)), "y"]
    graph = helper.make_graph(
        [
            helper.make_node(operator, [names[i], *["x"] * (operands - 1)], [names[i + 1]], f"n{i}")
            for i in range(nodes)
        ],
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def single(operator: str, shapes: tuple[tuple[int, ...], ...], **attributes: Any) -> bytes:
    """An ONNX model of one node that reads inputs ``x0``, ``x1``... of these shapes and gives ``y``."""
    from onnx import TensorProto, helper

    names = [f"x{i}" for i in range(len(shapes))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], "n", **attributes)],
        "single",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()
