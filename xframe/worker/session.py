"""The worker's commands over one executable. Each takes and gives what JSON can hold."""

import contextlib
import gc
import math
import os
import sys
import time
from typing import Any, Dict, List

import numpy as np

from xframe import neutral, registry
from xframe.errors import Unsupported, XframeError
from xframe.protocols import DEFAULTS
from xframe.types import ModelSpec, Plan, gpu_index
from xframe.worker import wire
from xframe.worker.alone import without_frameworks
from xframe.worker.device_clock import DeviceClock
from xframe.worker.timing import quartiles, sample


def peak_bytes() -> int:
    """Peak resident memory of this process.

    ``VmHWM`` where there is one: ``ru_maxrss`` of a child starts at what its parent had when it was started.
    """
    try:
        with open("/proc/self/status") as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


#: Commands that need no executable, and those to one.
_ANYTIME = ("open", "export", "convert", "gradients")
_OPENED = ("run", "time", "time_by_device", "fetch", "profile")
#: Least time of the unprofiled steps before, and after, a visit's profiled passes.
PLAIN_SECONDS = 0.08
#: Most steps of a visit that are timed once more by a GPU's own clock.
DEVICE_STEPS = 100


class Session:
    """Holds the one executable of this process.

    A job says ``plugin`` (of a registry row: name, where, needs, extra, environment), ``runner`` (``native`` or
    ``backend``) and what that plugin's method takes. The host sends the row, so that a plugin registered there is known
    here.
    """

    def __init__(self) -> None:
        self.executable = None  # type: Any
        self.artifact = None  # type: Any
        self.step_s = 0.0  # of the last step on its own
        self.seconds = []  # type: List[float]  # of the last visit
        self.gpu = None  # type: Any
        self.clock = None  # type: Any
        self.no_clock = ""  # why a GPU's own clock can't be read

    def handle(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Carry out one request. Raises what the plugin raises, XframeError for a command out of order."""
        fields = dict(request)
        cmd = fields.pop("cmd")
        if cmd not in _ANYTIME + _OPENED:
            raise XframeError("the worker knows no command %r" % cmd)
        if cmd in _OPENED and self.executable is None:
            raise XframeError("the worker was told to %s before anything was opened" % cmd)
        reply = getattr(self, "do_" + cmd)(**fields)
        return dict(reply, ok=True, peak_bytes=peak_bytes())

    def _plugin(self, row: List[Any]) -> Any:
        name, made = registry.received(row)
        return registry.load({name: made}, name)

    def do_open(
        self,
        plugin,
        runner,
        device,
        batch,
        threads,
        options=DEFAULTS,
        spec=None,
        weights=None,
        artifact=None,
        plan=None,
    ):
        """Build natively, or compile an artifact under a plan. What was open before is closed."""
        self.close()
        self.gpu = None if device == "cpu" else gpu_index(device)
        started = time.perf_counter()
        with contextlib.ExitStack() as alone:
            if runner != "native":
                alone.enter_context(without_frameworks())
            made = self._plugin(plugin)
            imported = time.perf_counter()
            if runner == "native":
                tensors = _arrays(weights)
                built = time.perf_counter()
                self.executable = made.build(ModelSpec.from_json(spec), tensors, device, batch, threads, options)
            else:
                self.artifact = wire.artifact_of(artifact)
                built = time.perf_counter()
                self.executable = made.compile(self.artifact, Plan.from_json(plan), device, threads, options)
        seconds = {"import": imported - started, "build": time.perf_counter() - built}
        seconds.update(self.executable.seconds)
        _settled()
        environment = {
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "threads": threads,
            "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        }
        environment.update(self.executable.environment)
        return {
            "seconds": wire.plain(seconds),
            "sites": wire.plain(self.executable.sites),
            "environment": wire.plain(environment),
            "notes": wire.plain(self.executable.notes),
        }

    def do_run(self, feeds, outputs):
        """Bind feeds from an npz file, run one step, write its outputs; both canonical."""
        self.executable.bind(self._inward(wire.load_arrays(feeds)))
        started = time.perf_counter()
        self.executable.step()
        self.executable.sync()
        self.step_s = time.perf_counter() - started
        self.do_fetch(outputs)
        return {"first_s": self.step_s}

    def do_time(self, min_samples, min_seconds, max_seconds, noise):
        """Time the bound feeds. A step that alone was as long as the cap of a visit is not warmed up again."""
        before = time.process_time()
        warm_up = self.step_s < max_seconds
        visit = sample(
            self.executable.step, self.executable.sync, min_samples, min_seconds, max_seconds, noise, warm_up
        )
        used = time.process_time() - before  # all threads: what the machine did beyond it was someone else's
        self.seconds = visit.seconds
        return {"seconds": visit.seconds, "warmups": visit.warmups, "settled": visit.settled, "cpu_s": used}

    def do_time_by_device(self, longest):
        """Time more steps, as many as the last visit had, by the GPU itself; a reason where it can't be done."""
        before = time.process_time()
        readings = self._by_device(self.seconds, longest)
        return dict(readings, cpu_s=time.process_time() - before)

    def _by_device(self, seconds, longest):
        if self.no_clock:
            return {"no_device_time": self.no_clock}
        ask = getattr(self.executable, "ask", self.executable.step)
        count = min(len(seconds), DEVICE_STEPS)
        try:
            self.clock = self.clock or DeviceClock(self.gpu)
            readings = self.clock.read(ask, self.executable.sync, quartiles(seconds)[1], count, longest)
        except Exception as e:  # of whatever kind: what the host has timed is not lost, and is verified next
            self.no_clock = str(e) if isinstance(e, XframeError) else "%s: %s" % (type(e).__name__, e)
            return {"no_device_time": self.no_clock}
        clock = {"how": readings.how, "empty_s": self.clock.empty_s}
        return {"device_seconds": readings.seconds, "device_clock": clock}

    def do_fetch(self, outputs):
        """Write the outputs of the last step."""
        wire.save_arrays(outputs, self._outward([np.asarray(a) for a in self.executable.fetch()]))
        return {}

    def do_profile(self, passes):
        """Profiled passes; before them, and after, at least as many steps without a profiler."""
        before = self._plain(passes)
        collecting = gc.isenabled()
        gc.disable()
        try:
            profiles = self.executable.profile(passes)
        finally:
            if collecting:
                gc.enable()
        return {"profiles": wire.plain(profiles), "plain": before + self._plain(passes)}

    def _plain(self, count):
        """As warm as timed ones: threads that slept take a few steps until they spin."""
        steps = (self.executable.step, self.executable.sync)
        return sample(*steps, count, PLAIN_SECONDS, math.inf, math.inf).seconds if count else []

    def do_export(self, plugin, spec, weights, batch, path, raw):
        """Export through the framework's own route; the model goes where :func:`_written` says."""
        started = time.perf_counter()
        framework = self._plugin(plugin)
        imported = time.perf_counter()
        tensors, parsed = _arrays(weights), ModelSpec.from_json(spec)
        loaded = time.perf_counter()
        model = framework.export(parsed, tensors, batch)
        exported = time.perf_counter()
        reply = _written(model, _stamps(plugin, framework, parsed.name), path, raw)
        seconds = {
            "import": imported - started,
            "export": exported - loaded,
            "save": time.perf_counter() - exported,
        }
        return dict(reply, seconds=seconds)

    def do_convert(self, plugin, files, batch, model, path, raw):
        """Convert a model in files of the framework's own; the result goes where :func:`_written` says."""
        framework = self._plugin(plugin)
        if not hasattr(framework, "convert"):
            raise Unsupported("%s has no files of its own that can be converted here" % plugin[0])
        started = time.perf_counter()
        made = framework.convert(files, batch)
        converted = time.perf_counter()
        reply = _written(made, _stamps(plugin, framework, model), path, raw)
        seconds = {"export": converted - started, "save": time.perf_counter() - converted}
        return dict(reply, seconds=seconds)

    def do_gradients(self, plugin, spec, weights, batch, feeds, cotangents, outputs):
        """Gradients of the sum of cotangents times outputs, written in the order of the names in the reply."""
        framework, parsed = self._plugin(plugin), ModelSpec.from_json(spec)
        if not hasattr(framework, "gradients"):
            raise Unsupported("gradients of %s can't be asked for here" % plugin[0])
        given = wire.load_arrays(feeds), wire.load_arrays(cotangents)
        found = framework.gradients(parsed, _arrays(weights), batch, *given)
        wire.save_arrays(outputs, found.values())
        return {"names": list(found)}

    def close(self) -> None:
        """Free the executable."""
        clock, self.clock, self.no_clock = self.clock, None, ""
        if clock is not None:
            with contextlib.suppress(XframeError):  # a GPU that failed is of no use to anyone in this process
                clock.close()
        if self.executable is not None:
            self.executable.close()
        self.executable = self.artifact = None
        if hasattr(gc, "unfreeze"):
            gc.unfreeze()

    def _inward(self, arrays):
        return arrays if self.artifact is None else _converted(wire.to_layout, arrays, self.artifact.inputs, "inputs")

    def _outward(self, arrays):
        return (
            arrays if self.artifact is None else _converted(wire.from_layout, arrays, self.artifact.outputs, "outputs")
        )


def _settled():
    """Objects of a framework are here to stay: collecting garbage, which each visit begins with, need not walk them."""
    gc.collect()
    if hasattr(gc, "freeze"):  # from Python 3.7 on
        gc.freeze()


def _stamps(plugin, framework, model):
    """What is noted in an exported file of where it came from."""
    return {
        "model": model,
        "framework": plugin[0],
        "framework_version": framework.version,
        "layout": framework.layout,
    }


def _written(model, stamps, path, raw):
    """Write what a framework exported, and say what it is.

    An ONNX model is stamped and written to ``path``. What a framework without ``onnx`` gives is written to ``raw`` as
    it is, for the host to make a model of: a neutral graph, or the bytes of a file that it wrote itself.
    """
    form = "onnx"
    if isinstance(model, neutral.Graph):
        form = "graph"
        neutral.save(model, raw)
    elif isinstance(model, bytes):
        form = "bytes"
        with open(raw, "wb") as f:
            f.write(model)
    else:
        from xframe import artifact  # needs onnx, which the framework has then

        artifact.save(model, path, **stamps)
    return {"form": form, "stamps": wire.plain(stamps)}


def _arrays(path):
    with np.load(path, allow_pickle=False) as data:
        return {name: data[name] for name in data.files}


def _converted(convert, arrays, infos, what):
    if len(arrays) != len(infos):
        raise XframeError("the model has %d %s, there are %d arrays for them" % (len(infos), what, len(arrays)))
    return [convert(array, infos[i].layout) for i, array in enumerate(arrays)]
