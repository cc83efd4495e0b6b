"""What a network computes according to ONNX Runtime, unoptimised: a witness that shares no code with the checker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime

from tests.generator.net import Net, Rng
from xframe.equivalence.graph import from_proto
from xframe.equivalence.reference import Reference

Feed = list[np.ndarray]


def feeds(net: Net, r: Rng, count: int = 2) -> list[Feed]:
    return [[r.standard_normal(s).astype(np.float32) for s in net.inputs.values()] for _ in range(count)]


def outputs(proto: onnx.ModelProto, fed: Sequence[Feed], axes: tuple[int, ...] = ()) -> list[list[np.ndarray]]:
    """The outputs for each feed, the inputs transposed by ``axes`` first."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_inputs()]
    moved = [[np.ascontiguousarray(x.transpose(axes)) if axes else x for x in feed] for feed in fed]
    return [session.run(None, dict(zip(names, feed, strict=True))) for feed in moved]


def bounds(net: Net, fed: Sequence[Feed]) -> list[list[np.ndarray]]:
    """Largest error of a correct float32 run of ``net``, per feed, output and element."""
    reference = Reference(from_proto(net.checked()))
    return [[judged.bound for judged in reference.evaluate(feed)] for feed in fed]


def lively(found: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether outputs are finite, vary from element to element, depend on the input, and are not saturated."""
    first, last = found[0], found[-1]
    return all(
        np.isfinite(a).all()
        and a.std() > 1e-2 * np.abs(a).max() > 1e-6
        and np.abs(a - b).max() > 1e-3 * np.abs(a).max()
        for a, b in zip(first, last, strict=True)
    )


def distance(
    first: Sequence[Sequence[np.ndarray]],
    second: Sequence[Sequence[np.ndarray]],
    allowed: Sequence[Sequence[np.ndarray]],
) -> float:
    """The largest deviation as a multiple of its element's bound; infinite for outputs of another shape."""
    worst = 0.0
    for a, b, limit in zip(first, second, allowed, strict=True):
        for x, y, most in zip(a, b, limit, strict=True):
            if x.shape != y.shape:
                return float("inf")
            worst = max(worst, float((np.abs(x.astype(np.float64) - y) / most).max()))
    return worst
