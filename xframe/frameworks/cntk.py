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

from xframe.errors import NotHonoured, Unsupported, UsageError, XframeError
from xframe.frameworks import cntk_graph, cntk_profile
from xframe.frameworks.shapes import Network, cpu_only, sites
from xframe.protocols import DEFAULTS
from xframe.types import ModelSpec, Profile

C.device.try_set_default_device(C.device.cpu())


#: What ``mkl_serv_cpu_detect`` says -> the code that MKL runs. Processors that are not Intel's get the generic one.
_CODES = {4: "AVX", 5: "AVX2", 7: "AVX-512"}
#: The switch ``mkl_cpu`` -> that code, and the processor's flag that it needs.
_ASKED = {"avx2": ("AVX2", "avx2"), "avx512": ("AVX-512", "avx512f")}


def _mkl() -> Tuple[str, str]:
    """Version of the MKL that CNTK brings, and the code that it picked; ``?`` where it does not tell."""
    text = ctypes.create_string_buffer(200)
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(C.__file__), "libs", "libmklml_intel.so"))
        library.MKL_Get_Version_String(text, len(text))
        code = _CODES.get(library.mkl_serv_cpu_detect(), "generic")
    except (OSError, AttributeError):
        return "?", "?"
    words = text.value.decode("ascii", "replace").split()
    return words[words.index("Version") + 1] if "Version" in words[:-1] else "?", code


def _check_code(asked: str) -> None:
    """Raise Unsupported where the processor can't run the code that ``mkl_cpu`` asks for, NotHonoured where MKL took
    another."""
    if asked not in _ASKED:
        return
    code, flag = _ASKED[asked]
    with open("/proc/cpuinfo") as f:
        if flag not in f.read().split():
            raise Unsupported("cntk with mkl_cpu=%s: this processor has no %s; use mkl_cpu=auto" % (asked, code))
    if _mkl()[1] != code:
        raise NotHonoured(
            "cntk with mkl_cpu=%s: MKL took its %s code; it reads MKL_DEBUG_CPU_TYPE once, so use a new process"
            % (asked, _mkl()[1])
        )


class _Network(Network):
    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, threads: int, options: Mapping[str, str]
    ) -> None:
        told, (mkl, code) = C.cntk_py.get_max_num_cputhreads(), _mkl()
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
            "mkl_code": code,
            "cpueval_optimization": options.get("cpueval_optimization", "on"),
            "threads": told,
            "convolution": "direct, DNN primitives of MKL %s, %s code" % (mkl, code),
        }
        super().__init__(spec, batch, environment, notes)
        self._sites = sites(spec, batch)
        kinds = cntk_profile.COMPOSED
        self._composed = {item.name: kinds[item.op] for item in spec.layers if item.op in kinds}
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
        return cntk_profile.profiles(
            self.step, passes, self._graph.owners, self._graph.kinds, self._sites, self._composed
        )


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

        Threads are set for the whole process, and so are the options: ``cpueval_optimization`` (ReLU and sums by MKL's
        primitives too), ``mkl_cpu`` (which code MKL runs).

        Raises
        ------
        UsageError
            The spec, the weights or the name of the device make no sense.
        Unavailable
            ``device`` is a GPU.
        Unsupported
            The processor has not what ``mkl_cpu`` asks for.
        NotHonoured
            MKL was started with another ``mkl_cpu`` here.
        """
        cpu_only("cntk", device)
        _check_code(options.get("mkl_cpu", "auto"))
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
            The spec or the weights make no sense, or the feeds or the cotangents do not fit them.
        """
        graph = cntk_graph.network(spec, weights, cntk_graph.TRAIN)
        x = Network(spec, batch, {}).checked(feeds)
        wanted_shape = (batch, *graph.output.shape)
        if [c.shape for c in cotangents] != [wanted_shape]:
            raise UsageError(
                "gradients of %s need one cotangent of shape %s, got %s"
                % (spec.name, wanted_shape, ", ".join(str(c.shape) for c in cotangents) or "nothing")
            )
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
            The saver failed; the message has its words. Or its file is cut short.
        """
        graph = cntk_graph.network(spec, weights, cntk_graph.EXPORT)
        folder = tempfile.mkdtemp(prefix="xframe-cntk-")
        path = os.path.join(folder, "model.onnx")
        try:
            graph.output.save(path, format=C.ModelFormat.ONNX)
            with open(path, "rb") as f:
                data = f.read()
        except (RuntimeError, ValueError, OSError) as e:
            raise XframeError(
                "CNTK %s could not save %s as ONNX: %s" % (self.version, spec.name, " ".join(str(e).split())[:300])
            ) from e
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        least = sum(int(np.prod(p.shape)) * 4 for p in graph.output.parameters)
        if len(data) < least:  # the saver does not look whether it could write
            raise XframeError(
                "CNTK %s wrote %d bytes of %s as ONNX, whose weights alone are %d: make room in %s"
                % (self.version, len(data), spec.name, least, tempfile.gettempdir())
            )
        return data
