"""cuDNN with a forced algorithm, beside TVM's forced lowerings.

Each convolution is one call of cuDNN: of its legacy interface, which takes the algorithm as an argument, or of its
graph interface, whose engines declare how they compute, by the fastest of a kind (``cudnn_engines``). It is the plan's,
or refused in cuDNN's own words. All of the network runs on the GPU in one stream; what is no convolution runs through
the library function that does it alone (bias, ReLU, pooling, LRN and softmax by cuDNN, dense layers by cuBLAS), so that
two rows with different algorithms differ in their convolutions and in nothing else. Whole rows are no claim about what
an engine could reach with the same libraries, which would fuse the bias and ReLU: sites are what to compare. A
site's kernel is the convolution alone, where TVM's last kernel has its bias and ReLU too.

Layouts and constants are put into normal form first (``xframe.normal``): images are NCHW, batch normalisation has
passed into the weights before it.

Switches: ``fallback`` is the algorithm of sites that refuse the plan's; ``algorithm_search`` how a site without a plan
is given one of the legacy interface: by cuDNN's own measurement, or by its heuristics; ``use_tf32`` lets products round
their operands to TF32; with ``cuda_graph`` a step is one launch of all calls, which are profiled one by one as without
it.
"""

import ctypes
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from xframe.backends.cudnn_channels_last import ChannelsLast
from xframe.backends.cudnn_convolution import Interface, Problem
from xframe.backends.cudnn_device import Gpu
from xframe.backends.cudnn_engines import KINDS, NHWC
from xframe.backends.cudnn_graph_convolution import GraphConvolution
from xframe.backends.cudnn_library import ALGORITHMS, CallFailed, Libraries
from xframe.backends.cudnn_network import Network, Site
from xframe.errors import NotHonoured, Unsupported, UsageError, XframeError
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, ConvSite, Kernel, Plan, Profile, SiteRecord

#: What a plan can name: the algorithms of the legacy interface, and the kinds of engines of the graph interface.
NAMES = (*ALGORITHMS, *KINDS)
#: Of profiled passes that the device began before they were queued as a whole, however long it was kept busy.
UNGATED = "kernels were timed without a gate: the host's gaps are in their times"


class Cudnn:
    """Compiles an artifact into calls of cuDNN and cuBLAS."""

    def __init__(self) -> None:
        self.version = Libraries().version

    def compile(
        self, artifact: Artifact, plan: Plan, device: str, threads: int, options: Mapping[str, str] = DEFAULTS
    ) -> "CudnnExecutable":
        """The network on a GPU, its convolutions by the algorithms of ``plan``.

        Raises
        ------
        Unsupported
            The device is no GPU, an operator has no function in cuDNN, the plan names what is no algorithm of cuDNN, or
            cuDNN refuses one at a site, and the ``fallback``, too, or there is none.
        Unavailable
            A library does not load, or there is no driver or no such GPU.
        """
        match = re.fullmatch(r"cuda(?::(\d+))?", device)
        if not match:
            raise (Unsupported if device == "cpu" else UsageError)(
                f"the cudnn backend was asked for on {device}: it runs on cuda or cuda:<number> only"
            )
        named = {name for _, name in plan.lowerings} | ({plan.label} if plan.label != "auto" else set())
        if plan.lowerings and (unknown := {name for _, name in plan.lowerings} - set(NAMES)):
            raise Unsupported(f"cuDNN has no algorithm {', '.join(sorted(unknown))}; it has: {', '.join(NAMES)}")
        if not plan.lowerings and named:
            raise Unsupported(
                f"the plan asks for {plan.label}: the cudnn backend takes an algorithm for each site, or auto"
            )
        return CudnnExecutable(artifact, plan, int(match[1] or 0), options)


class CudnnExecutable:
    """The calls of a network, with its tensors on the device."""

    def __init__(self, artifact: Artifact, plan: Plan, index: int, options: Mapping[str, str]) -> None:
        from xframe.normal.canonical import canonical  # they need onnx, which the worker's import does not
        from xframe.normal.loading import load

        started = time.perf_counter()
        axes = {i.name: (0, 2, 3, 1) for i in artifact.inputs if i.layout == "NHWC" and len(i.shape) == 4}
        ends = {o.name: (0, 2, 3, 1) for o in artifact.outputs if o.layout == "NHWC" and len(o.shape) == 4}
        normal = canonical(load(artifact.path), inputs=axes, outputs=ends)
        self._artifact, self._axes, self._ends = artifact, axes, ends
        self._tf32 = options.get("use_tf32", "off") == "on"
        self._gpu = Gpu(index, self._tf32)
        try:
            read = time.perf_counter()
            self._network = Network(self._gpu, normal)
            self._owners = self._joined()
            with self._gpu.api.listening():
                chosen = _Chosen(self._network, self._owners, plan, options)
            self.sites: Sequence[SiteRecord] = chosen.records
            self.notes: Sequence[str] = (*normal.notes, *chosen.notes)
            self._choices = {s.node: s.choice for s in self._network.sites if s.choice}
            self._place_workspace()
            self._gpu.sync()
            self._steps: list[Callable[[], None]] = [call.run for call in self._network.calls]
            self._launches = self._steps
            if options.get("cuda_graph", "off") == "on":
                self.step()
                self._gpu.sync()
                self._launches = [self._gpu.captured(self._steps)]
        except BaseException:
            self._gpu.close()
            raise
        self.seconds: Mapping[str, float] = {"read": read - started, "place": time.perf_counter() - read}
        self.environment: Mapping[str, Any] = {
            "cudnn": self._gpu.api.version,
            "cudart": _runtime(self._gpu),
            "device_index": index,
            "math": self._gpu.math,
            "tf32": self._tf32,
            "cuda_graph": options.get("cuda_graph", "off"),
            "device_bytes": self._gpu.bytes,
            "workspace_bytes": {s.name: chosen.workspace[s.name] for s in chosen.records},
            "algorithms": chosen.found,
            "refusals": chosen.refusals,
        }

    def _joined(self) -> dict[str, tuple[str, ConvSite]]:
        """Node of a convolution in the normal form -> the artifact's node that it stands for, and its site."""
        known, owners = dict(self._artifact.conv_sites), {}
        for site in self._network.sites:
            names = [n for n in self._network.normal.sources.get(site.node, ()) if n in known]
            if not names:
                raise NotHonoured(
                    f"the convolution {site.node} of the normal form stands for none of {self._artifact.path}: its"
                    " algorithm can't be told"
                )
            owners[site.node] = (names[0], known[names[0]])
        return owners

    def _place_workspace(self) -> None:
        """One workspace for all: the calls run one after another. Raises Unsupported where it can't be had."""
        sites = self._network.sites
        most = max((s.choice.workspace for s in sites if s.choice), default=0)
        try:
            room = self._gpu.room(most)
        except CallFailed as e:
            if not e.refusal:
                raise
            raise Unsupported(
                f"the algorithms need a workspace of {most} bytes, which the GPU has no more: {e.words}; take a smaller"
                " batch, another algorithm, or fewer rows at once"
            ) from e
        for site in sites:
            assert site.choice is not None
            workspace = room if site.choice.workspace else 0
            site.run = site.choice.call(site.x, site.w, workspace, site.y)
            if site.choice.around:
                self._network.surround(site, *site.choice.around(site.x, site.y))

    def bind(self, feeds: list[np.ndarray]) -> None:
        """Copy the inputs to the device, as NCHW. Raises XframeError when they are too few or too many."""
        names = self._network.normal.graph.inputs
        if len(feeds) != len(names):
            raise XframeError(f"{self._artifact.path} has inputs {', '.join(names)}; {len(feeds)} were given")
        for name, feed in zip(names, feeds, strict=True):
            image = np.asarray(feed, dtype=np.float32)
            image = image.transpose(0, 3, 1, 2) if name in self._axes else image
            if image.shape != self._network.shape(name):
                raise XframeError(f"the input {name} is {self._network.shape(name)}, and {image.shape} was given")
            self._gpu.upload(image, self._network.place[name])

    def step(self) -> None:
        """Queue one forward pass."""
        for run in self._launches:
            run()

    def sync(self) -> None:
        """Wait for the stream."""
        self._gpu.sync()

    def fetch(self) -> list[np.ndarray]:
        """Copies of the outputs of the last step, in the artifact's layout."""
        found = []
        for name, info in zip(self._network.normal.graph.outputs, self._artifact.outputs, strict=True):
            array = self._gpu.download(self._network.place[name], self._network.shape(name))
            found.append(array.transpose(0, 2, 3, 1).copy() if info.name in self._ends else array)
        return found

    def profile(self, passes: int) -> list[Profile]:
        """Passes with events around each call.

        A pass runs twice. Where a call begins is taken from a pass as it is; how long it takes from one that was queued
        as a whole while the device was kept busy, so that waiting for the host is in no kernel.
        """
        return [self._profiled() for _ in range(passes)]

    def _profiled(self) -> Profile:
        self.step()
        queued = self._gpu.timeline(self._steps, gated=True)
        self.sync()
        before = time.perf_counter()
        free = self._gpu.timeline(self._steps, gated=False).times
        wall = time.perf_counter() - before
        lead = max(0.0, wall - free[-1]) / 2  # before the first event came, and after the last
        kernels = []
        for i, call in enumerate(self._network.calls):
            start = lead + free[i]
            end = min(start + queued.times[i + 1] - queued.times[i], lead + free[i + 1])
            layer, site = self._owners.get(call.node, (call.node, None))
            name, words = call.name, ""
            if call.kind == "conv":
                choice = self._choices[call.node]
                name, words = name if choice.algorithm in ALGORITHMS else "cudnnBackendExecute", choice.words
            mine = site if call.kind == "conv" or call.role == "pad" else None  # padding is part of what it takes
            kernels.append(Kernel(name, start, max(start, end), mine, call.role, call.kind, layer, words))
        return Profile(max(wall, lead + free[-1]), tuple(kernels), note="" if queued.gated else UNGATED)

    def close(self) -> None:
        """Free the device's memory and the handles."""
        self._gpu.close()


class _Chosen:
    """An algorithm for every convolution, as the plan and the switches say; and what there is to tell of them."""

    def __init__(
        self,
        network: Network,
        owners: Mapping[str, tuple[str, ConvSite]],
        plan: Plan,
        options: Mapping[str, str],
    ) -> None:
        self.records: list[SiteRecord] = []
        self.notes: list[str] = []
        self.workspace: dict[str, int] = {}
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.refusals: dict[str, str] = {}
        self._gpu = network.gpu
        self._graphs: dict[tuple[Problem, bool], GraphConvolution | ChannelsLast] = {}
        self._named: dict[str, list[GraphConvolution | ChannelsLast]] = {}
        self._exhaustive = options.get("algorithm_search", "exhaustive") == "exhaustive"
        fallback = options.get("fallback", "none")
        others, unresolved = [] if fallback == "none" else [fallback], {}
        for site in network.sites:
            name, problem = owners[site.node]
            asked = plan[problem]
            if plan.lowerings and asked is None:
                raise NotHonoured(f"the plan names no algorithm for {name} ({problem.key})")
            refused: dict[str | None, CallFailed] = {}
            for algorithm in dict.fromkeys((asked, *others)):
                try:
                    self._choose(site, name, algorithm)
                except CallFailed as e:
                    if not self._gpu.survives(e):
                        raise
                    refused[algorithm] = e
                else:
                    self._record(site, name, problem, algorithm)
                    break
            else:
                too = (f", and the fallback {x}: {refused[x].words}" for x in others if x != asked)
                unresolved[problem] = "".join([refused[asked].words, *too])
                continue
            if refused:
                self.refusals[name] = refused[asked].words
                why = f"cuDNN refuses {asked or plan.label}: {refused[asked].brief}"
                self.notes.append(f"{name}: {algorithm}, because {why}")
        for name, graphs in self._named.items():
            self.found[name] = [engine.told() for graph in graphs for engine in graph.engines]
        if unresolved:
            said: dict[str, list[str]] = {}
            for problem, words in unresolved.items():
                said.setdefault(words, []).append(problem.key)
            why = "; ".join(f"{', '.join(keys)}: {words}" for words, keys in said.items())
            count = len({p for _, p in owners.values()})
            raise Unsupported(
                f"cuDNN {network.gpu.api.version} refuses {plan.label} at {len(unresolved)} of {count} convolutions"
                f" ({why}); name another algorithm for those with --fallback"
            )

    def _choose(self, site: Site, name: str, algorithm: str | None) -> None:
        place = site.x, site.w, site.y
        if algorithm is not None:
            site.choice = self._interface(site, name, algorithm).forced(algorithm, *place)
            return
        found = site.convolution.found(self._exhaustive)
        self.found[name] = [asdict(f) for f in found]
        site.choice = site.convolution.best(found, *place)

    def _interface(self, site: Site, name: str, algorithm: str) -> Interface:
        """The one that has ``algorithm``. Convolutions that are alike share engines, told under the first's name."""
        if algorithm in ALGORITHMS:
            return site.convolution
        key = site.problem, algorithm == NHWC
        if key not in self._graphs:
            self._graphs[key] = (ChannelsLast if algorithm == NHWC else GraphConvolution)(self._gpu, site.problem)
            self._named.setdefault(name, []).append(self._graphs[key])
        return self._graphs[key]

    def _record(self, site: Site, name: str, problem: ConvSite, requested: str | None) -> None:
        choice = site.choice
        assert choice is not None
        self.workspace[name] = choice.workspace
        words = f"workspace {choice.workspace} bytes"
        words = words if choice.algorithm in ALGORITHMS else f"{choice.words}, {words}"
        self.records.append(SiteRecord(problem, name, requested, choice.algorithm, words, choice.rounding(problem)))


def _runtime(gpu: Gpu) -> str:
    number = ctypes.c_int()
    gpu.api.cudaRuntimeGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
