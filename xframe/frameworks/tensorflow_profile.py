"""What ran in a step of TensorFlow, by layer: from its profiler's trace, and the names of oneDNN's algorithms.

The profiler's host events are used, not RunMetadata: they see the very call that is timed, where RunMetadata has no
times of eager functions any more and a session of its own would run the graph in another way; they are in picoseconds;
and an event costs a fraction of a microsecond, while RunMetadata follows every allocation. Level 3 is needed: below it,
nodes that TensorFlow has found cheap are missing.

oneDNN reads whether it should tell its algorithms from the environment when it is first used, and TensorFlow exports no
function to change that. So a process of its own runs a few steps with that variable set. It takes seconds, and what it
says depends on versions, processor and network alone: it is kept. Of its times, only proportions are used.

On a GPU the kernels are the device's. CUPTI's record of one names the node that launched it; all nodes are the host's.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xframe import environment, files, zoo
from xframe.errors import XframeError
from xframe.frameworks import cupti, onednn, traces, xla
from xframe.frameworks.tensorflow import tf
from xframe.frameworks.traces import Event
from xframe.types import Kernel, ModelSpec, Profile

#: Seconds that the process which asks oneDNN may take.
_LIMIT = 180
#: Steps of that process, after one in which oneDNN reorders constants that it keeps; what it prints before each.
_STEPS, _MARK = 5, "xframe: step"
#: Variables with these words in their names may change what oneDNN, or TensorFlow's use of it, chooses.
_DECISIVE = re.compile(r"DNN|MKL|^TF_|OMP_|^KMP_")
#: A node in the trace: its name and its op.
_NODE = re.compile(r"([A-Za-z0-9.][\w.\\/>-]*):([A-Z_]\w*)$")
#: Ops that compute nothing: values handed on, calls of functions.
_PASSIVE = re.compile(
    r"_?(Const|HostConst|Arg|DeviceArg|Retval|DeviceRetval|Identity|IdentityN|NoOp|Reshape|ExpandDims|Squeeze|Shape|"
    r"Placeholder|ReadVariableOp|PartitionedCall|StatefulPartitionedCall|XlaLaunch|XlaLaunchV2|XlaRun|XlaCompile|"
    r"XlaCompileOnDemand)$"
)
#: Op -> kind, the first that is found.
_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"Conv2[dD]", "conv"),
        (r"MatMul", "fc"),
        (r"Pool", "pool"),
        (r"BatchNorm|LRN", "norm"),
        (r"Softmax", "softmax"),
        (r"Relu|Elu|Sigmoid|Tanh", "activation"),
        (r"Transpose|MklToTf|Reorder|InputConversion", "layout"),
        (r"Pad|Concat|Copy|Slice|Tile|Fill|Broadcast|Cast|Split|Pack", "copy"),
        (r"Bias|Add|Mul|Sub|Div|Rsqrt|Sqrt|Square|Sum|Mean|Max|Min|Exp|Neg", "elementwise"),
    )
)
#: Op of a layer -> kind of its arithmetic.
_OF_LAYER = {
    "batchnorm": "norm", "lrn": "norm", "maxpool": "pool", "avgpool": "pool", "softmax": "softmax",
    "relu": "activation", "relu6": "activation",
}  # fmt: skip
_WAITING = ("WaitFor", "Notification", "Block", *cupti.WAITING)


def kernels(
    events: Iterable[Event], layers: Mapping[str, str], spec: ModelSpec, batch: int
) -> tuple[list[Kernel], list[Event]]:
    """The kernels of a CPU among the events of a step, and the others. ``layers``: scope in the graph -> layer."""
    events = list(events)
    nodes, sites = _nodes((e.name for e in events), layers, spec), zoo.sites(spec, batch)
    out = []
    for event in (e for e in events if e.name in nodes):
        kind, layer = nodes[event.name]
        site = sites.get(layer) if kind == "conv" else None
        algorithm = "eigen spatial convolution" if kind == "conv" and "Mkl" not in event.name else ""
        out.append(Kernel(event.name, event.start, event.end, site, "", kind, layer, algorithm))
    return out, [e for e in events if e.name not in nodes]


def on_device(events: Sequence[Event], layers: Mapping[str, str], spec: ModelSpec, batch: int) -> list[Kernel]:
    """The kernels that a GPU ran, from what ran there; of a copy for a node that computes nothing, too."""
    names = [str(e.stats.get("tf_op", "")) for e in events]
    nodes, sites = _nodes(names, layers, spec), zoo.sites(spec, batch)
    out = []
    for event, name in zip(events, names, strict=True):
        known, layer = nodes.get(name, ("", layers.get(_scope(name), "")))
        kind = cupti.kind(event.name, known)
        site, words = (sites.get(layer), event.name) if kind == "conv" else (None, "")
        out.append(Kernel(event.name, event.start, event.end, site, "", kind, layer, words))
    return out


def _nodes(names: Iterable[str], layers: Mapping[str, str], spec: ModelSpec) -> dict[str, tuple[str, str]]:
    """Kind and layer of each of the names that is a node which computes.

    A node that Grappler fused has the name of the last of what it holds: its layer is the nearest before that one which
    has the operator, and which is not computed elsewhere.
    """
    ops = {x.name: x.op for x in spec.layers}
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        node = _NODE.match(name)
        if node and not _PASSIVE.match(node.group(2)):
            layer = layers.get(_scope(name), "")
            found[name] = _kind(node.group(2), ops.get(layer, "")), layer
    taken = {layer for kind, layer in found.values() if ops.get(layer) == kind}
    for name, (kind, layer) in found.items():
        if kind in ("conv", "fc") and ops.get(layer) not in (kind, None):
            layer = _before(spec, ops, layer, kind, taken) or layer
            taken.add(layer)
            found[name] = kind, layer
    return found


def _scope(node: str) -> str:
    return node.partition(":")[0].partition("/")[0]


def _kind(op: str, layer_op: str) -> str:
    kind = next((kind for pattern, kind in _KINDS if pattern.search(op)), "")
    # A layer may be several nodes; a composition of unary operators says nothing else.
    return _OF_LAYER.get(layer_op, kind) if kind in ("elementwise", "") else kind


def _before(spec: ModelSpec, ops: Mapping[str, str], layer: str, op: str, taken: set[str]) -> str:
    sources, queue = spec.sources(), [layer]
    for name in queue:
        if ops.get(name) == op and name not in taken:
            return name
        queue += [s for s in sources.get(name, ()) if s not in queue]
    return ""


def told(run: Sequence[Kernel], said: Sequence[onednn.Primitive]) -> list[Kernel]:
    """The kernels of a step with what oneDNN said of the same step in another process: the algorithms of convolutions,
    matched by shape and order, and the share of a kernel in which it reorders its arguments, as a kernel before it."""
    left: list[tuple[onednn.Primitive, float]] = []
    reordering = 0.0
    for primitive in said:
        if primitive.kind == "reorder":
            reordering += primitive.seconds
            continue
        if primitive.kind == "convolution":
            left.append((primitive, reordering))
        reordering = 0.0
    out = []
    for kernel in run:
        site = kernel.site
        match = next((x for x in left if site and not kernel.algorithm and x[0].computes(site)), None)
        if match is None:
            out.append(kernel)
            continue
        left.remove(match)
        primitive, before = match
        start = kernel.start
        if before > 0:
            start += (kernel.end - kernel.start) * before / (before + primitive.seconds)
            out.append(Kernel(f"{kernel.name} (reorder)", kernel.start, start, None, "", "layout", kernel.layer))
        out.append(Kernel(kernel.name, start, kernel.end, site, "", "conv", kernel.layer, primitive.implementation))
    return out


def asked(spec: ModelSpec, batch: int, threads: int, options: Mapping[str, str]) -> list[onednn.Primitive]:
    """What oneDNN runs in a step of this network, by its own words, from a process of its own; the weights are random.

    It is kept in ``$XFRAME_HOME/onednn``.

    Raises
    ------
    XframeError
        The process failed.
    """
    request = {"spec": spec.to_json(), "batch": batch, "threads": threads, "options": dict(options)}
    info = environment.cpuinfo()
    facts = {
        "request": request,
        "tensorflow": tf.__version__,
        "network": [files.sha256(Path(__file__).parent / f"tensorflow{x}.py")[:12] for x in ("", "_nchw")],
        "cpu": [info.get(k) for k in ("vendor_id", "cpu family", "model", "stepping", "flags", "Features")],
        "cpus": len(environment.allowed_cpus()),
        "variables": {k: v for k, v in sorted(os.environ.items()) if _DECISIVE.search(k)},
        "steps": _STEPS,
    }
    path = files.place("onednn", facts)
    steps = files.kept(path, lambda content: [onednn.parse(text) for text in content["steps"]])
    if steps is None:
        texts = _said(request)
        steps = [onednn.parse(text) for text in texts]
        with contextlib.suppress(XframeError):  # a disk that is full costs the next one seconds, and no profile
            files.keep(path, facts, {"steps": texts})
    return onednn.typical(steps)


def _said(request: Mapping[str, Any]) -> list[str]:
    """What oneDNN prints in each step. Raises XframeError where there is none."""
    variables = {**os.environ, "ONEDNN_VERBOSE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=json.dumps(request), env=variables, capture_output=True,
            text=True, errors="replace", timeout=_LIMIT, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:
        raise XframeError(f"asking oneDNN for its algorithms took over {_LIMIT} s") from e
    except subprocess.CalledProcessError as e:
        last = e.stderr.strip().splitlines()[-1:] or [f"exit code {e.returncode}"]
        raise XframeError(f"asking oneDNN for its algorithms failed: {last[0][:200]}") from e
    return done.stdout.split(_MARK)[2:]


def main() -> None:
    """The process that :func:`asked` starts."""
    from xframe.frameworks.tensorflow import TensorFlow

    request = json.load(sys.stdin)
    spec, batch = ModelSpec.from_json(request["spec"]), request["batch"]
    rng = np.random.default_rng(0)
    # Small and positive: variances must be, and no value is worth folding away.
    weights = {name: rng.random(shape, np.float32) * 0.1 + 0.1 for name, shape in zoo.tensors(spec).items()}
    network = TensorFlow().build(spec, weights, "cpu", batch, request["threads"], request["options"])
    network.bind([rng.random((batch, *spec.input), np.float32)])
    for _ in range(1 + _STEPS):
        os.write(1, f"\n{_MARK}\n".encode())
        network.step()
        network.sync()


def record(function: Callable[[], None]) -> list[Event]:
    """The events of all host threads while ``function`` ran, and what ran on GPUs."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tf.profiler.experimental
    options = profiler.ProfilerOptions(host_tracer_level=3, python_tracer_level=0, device_tracer_level=1)
    with tempfile.TemporaryDirectory(prefix="xframe-trace-") as folder:
        profiler.start(folder, options)
        try:
            function()
        finally:
            profiler.stop()
        space = xplane_pb2.XSpace()
        for path in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(path.read_bytes())
    return read(space)


def read(space: Any) -> list[Event]:
    """The events of an XSpace: the host's, and what ran on GPUs; seconds from its first line on."""
    planes = [plane for plane in space.planes if plane.name.startswith(("/host:", cupti.PLANES))]
    first = min((line.timestamp_ns for plane in planes for line in plane.lines), default=0)
    return [event for plane in planes for event in _events(plane, first)]


def _events(plane: Any, first: int) -> Iterable[Event]:
    device = plane.name.startswith(cupti.PLANES)
    names = {key: value.name for key, value in plane.event_metadata.items()}
    keys = {key: value.name for key, value in plane.stat_metadata.items()}

    def value(stat: Any) -> Any:
        which = stat.WhichOneof("value")
        return keys.get(stat.ref_value) if which == "ref_value" else getattr(stat, which)

    for line in plane.lines:
        thread = f"{plane.name if device else ''}{line.name or line.display_name}/{line.id}"
        for event in line.events:
            start = (line.timestamp_ns - first) * 1e-9 + event.offset_ps * 1e-12
            stats = {keys[s.metadata_id]: value(s) for s in event.stats}
            if not device or cupti.ran(stats):
                yield Event(names[event.metadata_id], start, start + event.duration_ps * 1e-12, thread, stats, device)


def cost_of_an_event(device: str) -> float:
    """Seconds that the profiler adds for each event, from a graph of small nodes that do not fuse, on that device."""

    def chain(x: Any) -> Any:
        for _ in range(100):
            x = tf.nn.softmax(x)  # Grappler makes one node of element-wise ones
        return x

    with tf.device(device):
        signature = [tf.TensorSpec([1, 8], tf.float32)]
        function = tf.function(chain, input_signature=signature, autograph=False).get_concrete_function()
        x = tf.zeros([1, 8])

    def run() -> None:
        function(x)
        if "GPU" in device:
            tf.test.experimental.sync_devices()

    return traces.seconds_per_event(run, record)


class Profiler:
    """Profiled passes of a network.

    Parameters
    ----------
    step
        Runs it once, to its end.
    layers
        Scope in the graph -> layer.
    hlo
        The optimised HLO module, where XLA compiled it; else None.
    ask
        Gives what oneDNN says it runs; called once, by the first profile. None where oneDNN does not run.
    device
        TensorFlow's name of the device that it runs on.
    """

    def __init__(
        self,
        spec: ModelSpec,
        batch: int,
        step: Callable[[], None],
        layers: Mapping[str, str],
        hlo: Callable[[], str] | None,
        ask: Callable[[], list[onednn.Primitive]] | None,
        device: str,
    ):
        self._spec, self._batch, self._step, self._layers = spec, batch, step, layers
        self._gpu = "GPU" in device
        self._cost = cost_of_an_event(device)
        self._said = ask() if ask else []
        self._works = xla.program(hlo(), spec, batch, lambda op: layers.get(op.partition("/")[0], "")) if hlo else {}

    def passes(self, count: int) -> list[Profile]:
        return [self._profile() for _ in range(count)]

    def _profile(self) -> Profile:
        wall, thread, events = traces.step(traces.marked(self._step, record, tf.profiler.experimental.Trace))
        found, others = self._on_gpu(events) if self._gpu else self._on_cpu(events)
        host = traces.spans(others, wall, thread, _WAITING)
        ordered = sorted(found, key=lambda k: k.start)
        note = cupti.note(found) if self._gpu and self._works else ""
        return Profile(wall, tuple(ordered), tuple(host), self._cost * len(events), note)

    def _on_cpu(self, events: Sequence[Event]) -> tuple[list[Kernel], list[Event]]:
        found, others = xla.kernels(events, self._works)
        nodes, others = kernels(others, self._layers, self._spec, self._batch)
        return [*found, *told(nodes, self._said)], others

    def _on_gpu(self, events: Sequence[Event]) -> tuple[list[Kernel], list[Event]]:
        ran, others = cupti.split(events, "tensorflow")
        compiled: list[Event] = []
        nodes: list[Event] = []
        for event in ran:  # what XLA launched says so, or, in a CUDA graph, may say nothing
            ours = self._works and ("hlo_module" in event.stats or "tf_op" not in event.stats)
            (compiled if ours else nodes).append(event)
        found = on_device(nodes, self._layers, self._spec, self._batch)
        return [*xla.on_device(compiled, self._works), *found], others


if __name__ == "__main__":
    main()
