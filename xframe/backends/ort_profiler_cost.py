"""What ONNX Runtime's profiling costs: by chains of nodes of which next to nothing but the cost remains."""

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xframe.backends import profiler_cost
from xframe.backends.ort_session import Settings

#: The chain by which the cost of profiling is told: its nodes, and what it reads.
NODES, FEEDS = 100, {"x": np.ones((1, 16), np.float32)}
#: Nodes after which the profiler finds less and less of its own code and data in the caches: operator, shapes of what
#: it reads, attributes. The last reads more than any cache holds.
BEFORE: tuple[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]], ...] = (
    ("Conv", ((1, 256, 13, 13), (384, 256, 3, 3)), {"pads": [1, 1, 1, 1]}),
    ("MatMul", ((1, 4096), (4096, 1024)), {}),
    ("MatMul", ((1, 4096), (4096, 4096)), {}),
)
#: Operators whose constant operand is packed, and then counts no more to what they read.
_PRODUCTS = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul")
#: With it a run reads its inputs where those of the first one lay.
GRAPH = "enable_cuda_graph"
#: From the bytes that a node reads and writes to the seconds that profiling adds to it.
Cost = Callable[[float], float]


def chain(settings: Settings, nodes: int = NODES) -> Settings:
    """Of a session like it, all of whose time goes to running nodes of three inputs, as a convolution has."""
    switches = {name: value for name, value in settings.switches.items() if name != GRAPH}
    model = profiler_cost.chain("Sum", 3, nodes)
    return replace(settings, path=model, level="disabled", switches=switches)


@functools.cache
def of_a_node(threads: int, switches: tuple[tuple[str, str], ...]) -> Cost:
    """What profiling adds to a node in sessions on a CPU with these settings.

    It builds text, with much code: after a node that went through more memory than the caches hold, all of that comes
    from memory again, and takes several times as long.
    """
    settings = Settings("", threads, "cpu", switches=dict(switches))
    sizes, seconds = [0.0], [_added(settings, NODES) / NODES]
    for operator, shapes, attributes in BEFORE:
        feeds = {f"x{i}": np.full(s, 0.01, np.float32) for i, s in enumerate(shapes)}
        other = replace(settings, path=profiler_cost.single(operator, shapes, **attributes)).open().session
        (made,) = other.run(None, feeds)
        sizes.append(sum(x.nbytes for x in (made, *feeds.values())))
        seconds.append(_added(settings, 1, functools.partial(other.run, None, feeds)))
    return lambda size: float(np.interp(size, sizes, seconds))


def _added(settings: Settings, nodes: int, first: Callable[[], object] = lambda: None) -> float:
    """Seconds that profiling adds to a run of the chain, each right after ``first``."""
    plain = chain(settings, nodes)
    with tempfile.TemporaryDirectory(prefix="xframe-ort-") as folder:
        usual, profiling = plain.open().session, plain.open(str(Path(folder) / "profile")).session
        seconds = profiler_cost.added(lambda: usual.run(None, FEEDS), lambda: profiling.run(None, FEEDS), first=first)
        profiling.end_profiling()
    return seconds


def touched(node: Mapping[str, Any]) -> int:
    """Bytes that a profiled node reads and writes."""
    args = node["args"]
    read, written, constant = (int(args.get(f"{k}_size", 0)) for k in ("activation", "output", "parameter"))
    if args["op_name"] in _PRODUCTS and read and written:
        a, c = (next(iter(args[k][0].values())) or [1] for k in ("input_type_shape", "output_type_shape"))
        constant = max(constant, 4 * a[-1] * c[-1])
    return read + written + constant
