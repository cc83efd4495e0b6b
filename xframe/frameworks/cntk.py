"""CNTK 2.7, in an environment of its own (Python 3.6): NCHW, float32; export through its own ONNX saver."""

import ctypes
import os
import shutil
import tempfile
import time
import warnings
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it knows no Linux of today, and no GPU libraries are meant to be there
    import cntk as C

from xframe.errors import Unavailable, XframeError
from xframe.frameworks import cntk_graph, cntk_profile
from xframe.frameworks.shapes import Network, device_index, sites
from xframe.protocols import DEFAULTS
from xframe.types import ModelSpec, Profile

C.device.try_set_default_device(C.device.cpu())


class _MklVersion(ctypes.Structure):
    """What ``MKL_Get_Version`` fills in."""

    _fields_ = [(name, ctypes.c_int) for name in ("major", "minor", "update")] + [
        (name, ctypes.c_char_p) for name in ("status", "build", "processor", "platform")
    ]


def _mkl() -> Tuple[str, str]:
    """Version of the MKL that CNTK brings, and the instructions that it picked, in its words; empty where it does not
    tell."""
    found = _MklVersion()
    try:
        ctypes.CDLL(os.path.join(os.path.dirname(C.__file__), "libs", "libmklml_intel.so")).MKL_Get_Version(
            ctypes.byref(found)
        )
    except (OSError, AttributeError):
        return "", ""
    version = "%d.%d.%d" % (found.major, found.minor, found.update)
    return version, (found.processor or b"").decode("ascii", "replace")


class _Network(Network):
    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, threads: int, options: Mapping[str, str]
    ) -> None:
        told, (mkl, processor) = C.cntk_py.get_max_num_cputhreads(), _mkl()
        notes = []
        if any(item.op == "conv" and item["dilation"] != (1, 1) for item in spec.layers):
            notes.append(
                "CNTK has no dilated convolution on a CPU: those run with zeros between the taps of their kernels"
            )
        if told != threads:
            notes.append("CNTK runs on %d threads and can't change to %d" % (told, threads))
        environment = {
            "cntk": C.__version__,
            "mkl": mkl,
            "mkl_processor": processor,
            "cpueval_optimization": options.get("cpueval_optimization", "on"),
            "threads": told,
            "convolution": "direct, DNN primitives of MKL " + mkl,
        }
        super().__init__(spec, batch, environment, notes)
        self._sites = sites(spec, batch)
        self._norms = {item.name for item in spec.layers if item.op in ("lrn", "batchnorm")}
        self._graph = cntk_graph.network(spec, weights, cntk_graph.RUN)

    def bind(self, feeds: List[Any]) -> None:
        value = C.Value(np.ascontiguousarray(self.checked(feeds)))
        self._feeds, self._outputs = {self._graph.input: value}, [self._graph.output.output]

    def step(self) -> None:
        """One ``Function.forward``. CNTK copies the bound input into the network's own matrix; the output stays a
        reference into the network, converted by ``fetch``."""
        self._values = self._graph.output.forward(self._feeds, self._outputs, as_numpy=False)[1]

    def sync(self) -> None:
        """Nothing: on a CPU ``forward`` returns when it is done."""

    def fetch(self) -> List[np.ndarray]:
        (value,) = self._values.values()
        return [np.array(value.data.asarray())]

    def profile(self, passes: int) -> List[Profile]:
        """Through CNTK's own profiler, which times each operator.

        Raises
        ------
        XframeError
            It left no trace that can be read.
        """
        return cntk_profile.profiles(self.step, passes, self._graph.owners, self._graph.kinds, self._sites, self._norms)


class Cntk:
    """See :class:`xframe.protocols.Framework`."""

    layout = "NCHW"
    version = C.__version__

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> _Network:
        """The network as a graph that CNTK compiles in its first pass.

        Threads and ``cpueval_optimization`` (MKL's primitives for elementwise operators too) are set for the whole
        process; ``mkl_cpu`` is an environment variable that MKL reads.

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU.
        """
        if device_index(device) is not None:
            raise Unavailable(
                "cntk on %s: this environment has CNTK %s for CPUs; use --device cpu" % (device, self.version)
            )
        C.cntk_py.set_max_num_cputhreads(threads)
        if options.get("cpueval_optimization", "on") == "on":
            C.cntk_py.enable_cpueval_optimization()
        else:
            C.cntk_py.disable_cpueval_optimization()
        start = time.perf_counter()
        network = _Network(spec, weights, batch, threads, options)
        network.seconds = {"load": time.perf_counter() - start}
        return network

    def gradients(
        self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, feeds: List[Any], cotangents: List[Any]
    ) -> Dict[str, np.ndarray]:
        """Gradients of sum(cotangent * output) by the input and by the weights, in the spec's layouts.

        Batch normalisation's mean and variance are constants to CNTK.

        Raises
        ------
        UsageError
            The spec, the weights or the feeds make no sense.
        """
        graph = cntk_graph.network(spec, weights, cntk_graph.TRAIN)
        x = Network(spec, batch, {}).checked(feeds)
        cotangent = C.input_variable(graph.output.shape)
        total = C.reduce_sum(C.element_times(graph.output, cotangent))
        at = {graph.input: np.ascontiguousarray(x), cotangent: np.ascontiguousarray(cotangents[0], np.float32)}
        read = {variable.uid for variable in total.inputs}
        wanted = {name: p for name, p in graph.parameters.items() if p.uid in read}
        found = total.grad(at, wrt=[graph.input, *wanted.values()])
        if not wanted:  # of a single variable the gradient comes bare
            found = {graph.input: found}
        out = {name: np.zeros_like(weights[name]) for name in graph.parameters}
        out.update({name: np.array(graph.restored[name](found[p])) for name, p in wanted.items()})
        out["input"] = np.array(found[graph.input]).reshape(x.shape)
        return out

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> bytes:
        """The file that CNTK's own saver writes: opset 9, batch 1, weights among the inputs.

        Raises
        ------
        UsageError
            The spec or its weights make no sense.
        XframeError
            The saver failed; the message has its words.
        """
        graph = cntk_graph.network(spec, weights, cntk_graph.EXPORT)
        folder = tempfile.mkdtemp(prefix="xframe-cntk-")
        path = os.path.join(folder, "model.onnx")
        try:
            graph.output.save(path, format=C.ModelFormat.ONNX)
            with open(path, "rb") as f:
                return f.read()
        except (RuntimeError, ValueError, OSError) as e:
            raise XframeError(
                "CNTK %s could not save %s as ONNX: %s" % (self.version, spec.name, " ".join(str(e).split())[:300])
            ) from e
        finally:
            shutil.rmtree(folder, ignore_errors=True)
