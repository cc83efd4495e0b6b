"""Where the time of an ONNX Runtime session goes: its own profile, read.

A second session profiles, since one does so in all its runs or in none; it runs through bound inputs and outputs, as
the timed one. A pass's wall is that of a clock around the run, as a timed step's is: the event ``model_run`` leaves out
the call from Python. The profile's clock is the system's, which tells where in the pass the run began; where it is
another one the run is put into the middle of the pass. It counts whole microseconds. What profiling adds to a node is
for the most part in what is said of the node, which is told without it.

On a GPU the nodes are what the host was at, and the kernels are CUPTI's (``ort_gpu_profile``), unless this build of
ONNX Runtime lists them itself, after their node.
"""

import json
import platform
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xframe.backends import kinds, ort_profiler_cost
from xframe.backends.cupti_activity import Recorder, Recording
from xframe.backends.nodes import Nodes
from xframe.backends.ort_profiler_cost import GRAPH, Cost
from xframe.backends.ort_session import Bound, Settings
from xframe.errors import NotHonoured, XframeError
from xframe.frameworks import cupti
from xframe.types import Artifact, ConvSite, Kernel, Profile, Span

#: The CPU kernels pad channels up to a multiple of their vector block.
_BLOCK = 16
#: Below so many input channels of a group an image is read as it is, not in blocks of channels.
_SMALL_BLOCK = 8
_CONVOLUTIONS = ("Conv", "FusedConv")
#: Operators that run other nodes.
_PARENTS = ("If", "Loop", "Scan")
#: How the optimiser calls what computes on blocks of channels: after the output, made unique.
_BLOCKED = re.compile(r"_nchwc(_token_\d+)?$")
#: What it puts around the name of a node or an output that it takes over: the second where a scaling of channels became
#: a convolution.
_MADE = re.compile(r"^fused |(_nchwc)?(_token_\d+)?$"), re.compile(r"_(bn|mul)_nchwc(_token_\d+)?$")
_KERNEL = "_kernel_time"
#: Seconds of steps before the passes of a session that profiles, and how many at most: each leaves its events.
WARM, STEPS = 0.08, 10
#: Seconds after the first recorded step in which CUPTI's own threads may ask for buffers, which takes the interpreter:
#: ONNX Runtime keeps that while it waits for its outputs, and CUPTI may keep a lock which that waiting needs.
_BUFFERS = 0.02
CUDA = "CUDAExecutionProvider"
_MICRO, _NANO = 1e-6, 1e-9
#: Nanoseconds by which a node may end later than is said: its begin and its duration are cut to whole microseconds.
_CUT = 2000
_MACHINE = platform.machine()

Event = Mapping[str, Any]


class Pass(NamedTuple):
    """A profiled pass: seconds of the system's clock since the profile began when it started, and its wall."""

    began: float
    wall: float


def profiles(settings: Settings, artifact: Artifact, feeds: Sequence[np.ndarray], passes: int) -> list[Profile]:
    """So many profiled passes of one session that profiles, on a CPU, each after a step that is not looked at."""
    cost = ort_profiler_cost.of_a_node(settings.threads, tuple(settings.switches.items()))
    return taken(settings, artifact, feeds, passes, cost=cost)


def taken(
    settings: Settings,
    artifact: Artifact,
    feeds: Sequence[np.ndarray],
    passes: int,
    recorder: Recorder | None = None,
    cost: Cost | None = None,
) -> list[Profile]:
    """The same, of unknown cost where none is given. ``recorder`` records what runs on a GPU.

    Raises
    ------
    NotHonoured
        A GPU was asked for, and a node ran on the CPU.
    XframeError
        The profile does not have the runs that were made, or the recorder lost something.
    """
    with tempfile.TemporaryDirectory(prefix="xframe-ort-") as folder:
        bound = settings.open(str(Path(folder) / "profile"))
        bound.bind(artifact, feeds)
        start = bound.session.get_profiling_start_time_ns()
        timed = []
        warmups = _warmed(bound)
        if recorder is not None:
            recorder.start(lambda: time.time_ns() - start)
            bound.step()
            time.sleep(_BUFFERS)
            warmups += 1
        for _ in range(passes):
            bound.step()
            bound.sync()
            began, before = time.time_ns(), time.perf_counter()
            bound.step()
            bound.sync()
            timed.append(Pass((began - start) * _NANO, time.perf_counter() - before))
        recording = recorder.stop() if recorder is not None else None
        events = json.loads(Path(bound.session.end_profiling()).read_text(encoding="utf-8"))
    if settings.device != "cpu":
        _on_the_gpu(events, settings.device)
    join = Join(artifact, Nodes.read(artifact.path))
    return read(events, timed, join, recording, settings.on(GRAPH, default=False), warmups, cost)


def _warmed(bound: Bound) -> int:
    """Steps until a session that was just made is as warm as the timed one; how many. The first one allocates."""
    until, steps = time.perf_counter() + WARM, 0
    while not steps or (time.perf_counter() < until and steps < STEPS):
        bound.step()
        bound.sync()
        steps += 1
    return steps


def _on_the_gpu(events: Sequence[Event], device: str) -> None:
    """Raises NotHonoured with the names of nodes that another provider than CUDA's ran."""
    nodes = [e for e in events if e["cat"] == "Node" and e["name"].endswith(_KERNEL) and "provider" in e["args"]]
    strays = [e for e in nodes if e["args"]["provider"] != CUDA and e["args"]["op_name"] not in _PARENTS]
    if strays:
        names = ", ".join(
            dict.fromkeys(f"{_node(e)} ({e['args']['op_name']}) by {e['args']['provider']}" for e in strays)
        )
        raise NotHonoured(f"{device} was asked for and other providers ran nodes of the graph: {names}")


class Owner(NamedTuple):
    """What a kernel belongs to: the ONNX node, empty if that can't be told; the convolution, if it is one; its kind."""

    layer: str
    site: ConvSite | None
    kind: str


_NOBODY = Owner("", None, "")


class Join:
    """Which node of the ONNX graph each event of a run belongs to, and which convolution."""

    def __init__(self, artifact: Artifact, nodes: Nodes) -> None:
        self._sites, self._nodes = dict(artifact.conv_sites), nodes

    def __call__(self, events: Sequence[Event]) -> list[Owner]:
        """What each event of one run belongs to, in the order in which they ran."""
        left = list(self._sites)
        return [self._owner(e, left) for e in events]

    def _owner(self, event: Event, left: list[str]) -> Owner:
        operator = event["args"]["op_name"]
        if operator in _CONVOLUTIONS:
            if name := self._convolution(event, left):
                left.remove(name)
                return Owner(name, self._sites[name], "conv")
            name = self._known(_node(event))  # a batch normalisation, say
            return Owner(name, None, kinds.of_operator(self._nodes.operator(name) or operator))
        return Owner(self._known(_node(event)), None, kinds.of_operator(operator))

    def _convolution(self, event: Event, left: list[str]) -> str:
        """The convolution of ``left`` that an event is: the one of its name if its shape is that, too, else the only
        problem of that shape. Equal ones come in the order of the graph."""
        fits = [name for name in left if _fits(event["args"], self._sites[name])]
        named = [name for name in self._candidates(_node(event)) if name in fits]
        if named:
            return named[0]
        return fits[0] if len({self._sites[name] for name in fits}) == 1 else ""

    def _known(self, name: str) -> str:
        """The ONNX node that a node of the optimised graph is called after; empty if there is none."""
        names = (name, *(made.sub("", name) for made in _MADE))
        return next(filter(None, map(self._nodes.named, names)), "")

    def _candidates(self, name: str) -> Iterator[str]:
        """The convolutions that a node of the optimised graph may be called after, the most likely first: it keeps the
        name, has it as a part, or is called after the output of the last node that was fused into it."""
        if known := self._known(name):
            yield from self._nodes.before(known, "Conv")
        yield from sorted((s for s in self._sites if s in name), key=len, reverse=True)


def read(
    events: Sequence[Event],
    passes: Sequence[Pass],
    join: Join,
    recording: Recording | None = None,
    captures: bool = False,
    before: int = 1,
    cost: Cost | None = None,
) -> list[Profile]:
    """The profiles of ``passes``: every second run in ``events`` after the ``before`` first ones.

    ``recording``: what ran on a GPU, by the clock of the events. ``captures``: the first step may be several runs, as
    those that a CUDA graph is captured in.
    """
    runs, made = [e for e in events if e["name"] == "model_run"], before + 2 * len(passes)
    if len(runs) < made or (len(runs) > made and not captures):
        raise XframeError(f"the profile of ONNX Runtime has {len(runs)} runs, {made} were made")
    looked_at = runs[len(runs) - 2 * len(passes) :][1::2]
    return [_profile(events, run, one, join, recording, cost) for run, one in zip(looked_at, passes, strict=True)]


def _profile(
    events: Sequence[Event], run: Event, one: Pass, join: Join, recording: Recording | None, cost: Cost | None
) -> Profile:
    start, end = run["ts"], run["ts"] + run["dur"]
    inside = [e for e in events if start <= e["ts"] <= end]
    spare = one.wall - run["dur"] * _MICRO
    lead = start * _MICRO - one.began
    if not (same_clock := 0 <= lead <= spare):
        lead = spare / 2

    def seconds(e: Event) -> tuple[float, float]:
        return lead + (e["ts"] - start) * _MICRO, lead + (e["ts"] + e["dur"] - start) * _MICRO

    nodes = [e for e in inside if e["cat"] == "Node" and e["name"].endswith(_KERNEL)]
    nodes = [e for e in nodes if e["args"]["op_name"] not in _PARENTS]
    costs = [0.0 if cost is None else cost(ort_profiler_cost.touched(e)) for e in nodes]
    within = dict(zip(map(id, nodes), _within(nodes, costs, end), strict=True))
    owners = dict(zip(map(id, nodes), join(nodes), strict=True))
    kernels, spans = [], []
    owner = None
    for e in inside:
        if id(e) in owners:
            owner = owners[id(e)]
            if e["args"].get("provider") != CUDA:
                first, last = seconds(e)
                kernels.append(_on_the_cpu(e, owner, (first, max(first, last - within[id(e)]))))
            else:
                spans.append(Span(e["name"], *seconds(e), "dispatch"))
        elif e["cat"] == "Kernel" and owner is not None:  # those of a node on a GPU are listed after it
            kernels.append(_on_a_gpu(e["name"], owner, seconds(e)))
        elif e["cat"] == "Session":
            spans.append(Span(e["name"], *seconds(e), "dispatch"))
    if recording is not None:
        gpu = [e for e in nodes if e["args"].get("provider") == CUDA] if same_clock else []
        kernels += _recorded(recording, one, [(*_nanoseconds(e), e["tid"], owners[id(e)]) for e in gpu])
    first, last = seconds(run)
    spans += [Span("call", 0.0, first, "python"), Span("return", last, one.wall, "python")]
    kernels.sort(key=lambda k: k.start)
    return Profile(one.wall, tuple(kernels), tuple(sorted(spans, key=lambda s: (s.start, -s.end))), sum(costs))


def _within(nodes: Sequence[Event], costs: Sequence[float], end: int) -> list[float]:
    """Of what profiling costs at each node, the seconds that are in what it says of the node: those that were not spent
    between the node's end and the next one's start on its thread, or the ``end`` of the run."""
    following: dict[int, int] = {}
    within = [0.0] * len(nodes)
    for i in sorted(range(len(nodes)), key=lambda i: -nodes[i]["ts"]):
        node = nodes[i]
        after = following.get(node["tid"], end) - node["ts"] - node["dur"]
        within[i] = min(max(0.0, costs[i] - max(0, after) * _MICRO), node["dur"] * _MICRO)
        following[node["tid"]] = node["ts"]
    return within


def _nanoseconds(node: Event) -> tuple[int, int]:
    return node["ts"] * 1000, (node["ts"] + node["dur"]) * 1000 + _CUT


def _recorded(recording: Recording, one: Pass, nodes: Sequence[tuple[int, int, int, Owner]]) -> Iterator[Kernel]:
    """What ran on the GPU in a pass. GPU times are converted to the host's, and may be a little beside the pass."""
    for activity, owner in recording.owned(nodes):
        start, end = activity.start * _NANO - one.began, activity.end * _NANO - one.began
        if 0 <= (start + end) / 2 <= one.wall:
            yield _on_a_gpu(activity.name, owner or _NOBODY, (max(start, 0.0), min(end, one.wall)))


def _on_the_cpu(node: Event, owner: Owner, times: tuple[float, float]) -> Kernel:
    words = algorithm(_node(node), owner.site) if owner.site is not None else ""
    name = f"{node['args']['op_name']} {_node(node)}"
    return Kernel(name, *times, owner.site, "", owner.kind, owner.layer, words)


def _on_a_gpu(name: str, owner: Owner, times: tuple[float, float]) -> Kernel:
    """Of a convolution, its algorithm is told by the kernel's own name."""
    kind = cupti.kind(name, owner.kind)
    site = owner.site if kind == "conv" else None
    return Kernel(name, *times, site, "", kind, owner.layer, name if site is not None else "")


def on_gpu(profile: Profile) -> int:
    """Nodes that a GPU was asked for in a pass."""
    return sum(span.name.endswith(_KERNEL) for span in profile.host)


def _node(event: Event) -> str:
    return event["name"].removesuffix(_KERNEL)


def algorithm(node: str, site: ConvSite, machine: str = _MACHINE) -> str:
    """What computes a convolution on a CPU, as MLAS's sources choose it from the shape; empty where they may differ.

    ``node`` is the name of the node in the optimised graph. On blocks of channels it is always a direct convolution: of
    an image in blocks, one that is read as it is (few channels), of single channels, or of single pixels. Else it is,
    on x86, a product with the image (``gemm_direct``) or with its column matrix.
    """
    channels, outputs = site.in_channels // site.groups, site.out_channels // site.groups
    pixels = site.kernel == (1, 1) and not any(site.pads)
    if not _BLOCKED.search(node):
        if channels == 1 or machine not in ("x86_64", "AMD64"):
            return ""
        return "mlas:gemm_direct" if pixels and site.stride == (1, 1) else "mlas:im2col_gemm"
    if channels == outputs == 1:
        return "mlas:nchwc_depthwise"
    if channels < _SMALL_BLOCK:
        return "mlas:nchwc_from_nchw"
    if channels < _BLOCK:  # in blocks where a vector holds 8 numbers, not where it holds 16
        return "mlas:nchwc"
    return "mlas:nchwc_pointwise" if pixels else "mlas:nchwc_direct"


def _fits(args: Event, site: ConvSite) -> bool:
    """Whether a profiled node has the shapes of ``site``, its images in NCHW or, with ``prefer_nhwc``, in NHWC; its
    channels may have been padded to the block."""
    inputs, outputs = ([next(iter(t.values())) for t in args[k]] for k in ("input_type_shape", "output_type_shape"))
    if len(inputs) < 2 or not outputs or any(len(s) != 4 for s in (*inputs[:2], outputs[0])):
        return False
    x, w, y = inputs[0], inputs[1], outputs[0]
    return any(_same(a, b, c, site) for a, c in ((x, y), (_nchw(x), _nchw(y))) for b in (w, _nchw(w)))


def _nchw(shape: Sequence[int]) -> list[int]:
    return [shape[0], shape[3], *shape[1:3]]


def _same(x: Sequence[int], w: Sequence[int], y: Sequence[int], site: ConvSite) -> bool:
    (n, _, *in_hw), (out, per_group, *kernel), (_, _, *out_hw) = x, w, y

    def padded(actual: int, wanted: int) -> bool:
        return wanted <= actual < wanted + _BLOCK

    return (
        site.batch == n
        and site.in_hw == tuple(in_hw)
        and site.out_hw == tuple(out_hw)
        and site.kernel == tuple(kernel)
        and padded(out, site.out_channels)
        and padded(per_group, site.in_channels // site.groups)
    )
