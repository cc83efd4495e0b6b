"""What can be plugged in: name -> where its class is, what it needs, how to get that.

A new framework, backend or lowering is one file and one row here. Standard library only, Python 3.6 upwards.
"""

import difflib
import importlib
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from xframe.errors import Unavailable, Unsupported, UsageError

#: Stands for everything in a table, where names are asked for.
ALL = "all"
PIP = "pip install 'xframe-eval[%s]'"
#: Kinds of devices: either, and one alone.
_ANY, _CPU, _CUDA = ("cpu", "cuda"), ("cpu",), ("cuda",)


class Switch(NamedTuple):
    """An option of a plugin. ``values``: the default first. ``env``: value -> environment variables that it takes
    before the plugin is imported; variables that end in ``_FLAGS`` are added to what is there. ``devices``: the kinds
    of devices on which it changes what runs; on others it is refused."""

    name: str
    values: Tuple[str, ...]
    env: Tuple[Tuple[str, Tuple[Tuple[str, str], ...]], ...] = ()
    devices: Tuple[str, ...] = _ANY


class Row(NamedTuple):
    """``where`` is ``module:Class``; ``needs`` the modules it imports; ``extra`` the pip extra that brings them;
    ``opt_in``: it is only in a comparison that names it; ``switches``: what can be turned on and off; ``variant_of``:
    the one that this is another way to run; ``environment``: of ``xframe.environments``, the isolated one that it
    runs in; none for those that this interpreter has; ``algorithms``: what a backend can be told to compute a
    convolution by; ``general``: that of them which takes any; ``absent``: those that are declared and on no device, so
    that the general one takes their place as a fallback; ``where_named``: those that are in no comparison that does not
    name them; ``devices``: the kinds of devices that it runs on; ``products``: the type that a lowering rounds the
    operands of products to, empty where they stay float32."""

    where: str
    needs: Tuple[str, ...]
    extra: str
    aliases: Tuple[str, ...] = ()
    opt_in: bool = False
    switches: Tuple[Switch, ...] = ()
    variant_of: str = ""
    environment: str = ""
    algorithms: Tuple[str, ...] = ()
    general: str = ""
    absent: Tuple[str, ...] = ()
    where_named: Tuple[str, ...] = ()
    devices: Tuple[str, ...] = _ANY
    products: str = ""


#: Of the process that PyTorch runs in: threads that do not spin while they wait; large tensors in huge pages.
_TORCH = (
    Switch("omp_wait", ("default", "passive"), (("passive", (("OMP_WAIT_POLICY", "passive"),)),), _CPU),
    Switch("huge_pages", ("off", "on"), (("on", (("THP_MEM_ALLOC_ENABLE", "1"),)),), _CPU),
)
_TORCH_EAGER = (
    Switch("channels_last", ("off", "on")),
    Switch("mkldnn", ("on", "off"), devices=_CPU),
    Switch("grad_mode", ("inference", "no_grad", "grad")),
    Switch("cudnn_benchmark", ("off", "on"), devices=_CUDA),
    *_TORCH,
)
_TORCH_COMPILED = (Switch("freezing", ("on", "off")), Switch("cpp_wrapper", ("off", "on")), *_TORCH)

#: ``weights``: which are constants of the graph; ``mixed``: all but those of fc.
_TENSORFLOW = (
    Switch(
        "onednn",
        ("auto", "on", "off"),
        (("on", (("TF_ENABLE_ONEDNN_OPTS", "1"),)), ("off", (("TF_ENABLE_ONEDNN_OPTS", "0"),))),
        _CPU,
    ),
    Switch("xla", ("off", "on")),
    Switch("data_format", ("NHWC", "NCHW")),
    Switch("weights", ("mixed", "constants", "arguments")),
    Switch("inter_op_threads", ("1", "2")),
)
_JAX = (
    Switch("jit", ("on", "off")),
    Switch("matmul_precision", ("highest", "default")),
    Switch("layout", ("NHWC", "NCHW")),
    Switch("fast_math", ("off", "on"), devices=_CPU),
    Switch("ynnpack", ("on", "off"), devices=_CPU),
)
#: ``mkl_cpu``: MKL 2018 leaves its generic code on Intel's processors alone, unless told.
_CNTK = (
    Switch(
        "mkl_cpu",
        ("auto", "avx2", "avx512"),
        (("avx2", (("MKL_DEBUG_CPU_TYPE", "5"),)), ("avx512", (("MKL_DEBUG_CPU_TYPE", "7"),))),
        _CPU,
    ),
    Switch("cpueval_optimization", ("on", "off"), devices=_CPU),
)

FRAMEWORKS: Dict[str, Row] = {
    "pytorch": Row(
        "xframe.frameworks.pytorch:PyTorch", ("torch", "onnxscript"), "torch", ("torch",), switches=_TORCH_EAGER
    ),
    "torch.compile": Row(
        "xframe.frameworks.pytorch:Compiled",
        ("torch", "onnxscript"),
        "torch",
        opt_in=True,
        switches=_TORCH_COMPILED,
        variant_of="pytorch",
    ),
    "tensorflow": Row(
        "xframe.frameworks.tensorflow:TensorFlow",
        ("tensorflow", "tf2onnx"),
        "tensorflow",
        ("tf",),
        switches=_TENSORFLOW,
    ),
    "jax": Row("xframe.frameworks.jax:Jax", ("jax",), "jax", switches=_JAX),
    "caffe": Row("xframe.frameworks.caffe:Caffe", ("caffe",), "", opt_in=True, environment="caffe"),
    "cntk": Row("xframe.frameworks.cntk:Cntk", ("cntk",), "", opt_in=True, switches=_CNTK, environment="cntk"),
    "theano": Row("xframe.frameworks.theano:Theano", ("theano",), "", opt_in=True, environment="theano"),
    "paddle": Row("xframe.frameworks.paddle:Paddle", ("paddle",), "", opt_in=True, environment="paddle"),
}

#: Of ONNX Runtime; the last seven are those of its CUDA provider.
_ORT = (
    Switch("graph_optimization_level", ("all", "disabled", "basic", "extended")),
    Switch("cpu_mem_arena", ("on", "off"), devices=_CPU),
    Switch("mem_pattern", ("on", "off")),
    Switch("spinning", ("on", "off")),
    Switch("execution_mode", ("sequential", "parallel")),
    Switch("denormal_as_zero", ("off", "on"), devices=_CPU),
    Switch("nchwc", ("on", "off"), devices=_CPU),
    Switch("cudnn_conv_algo_search", ("exhaustive", "heuristic", "default"), devices=_CUDA),
    Switch("prefer_nhwc", ("off", "on"), devices=_CUDA),
    Switch("use_tf32", ("off", "on"), devices=_CUDA),
    Switch("cudnn_conv_use_max_workspace", ("on", "off"), devices=_CUDA),
    Switch("enable_cuda_graph", ("off", "on"), devices=_CUDA),
    Switch("fuse_conv_bias", ("off", "on"), devices=_CUDA),
    Switch("gpu_mem_limit", ("none", "1GiB", "4GiB", "16GiB"), devices=_CUDA),
)
#: What cuDNN can be told: of its legacy interface the forward algorithms, where ``gemm`` writes the column matrix; of
#: its graph interface kinds of engines, where ``graph_plain`` is that without transforms, ``graph_nhwc`` any with its
#: channels last.
_CUDNN_KINDS = ("graph_plain", "graph_winograd", "graph_fft")
_CUDNN_ALGORITHMS = (
    *("implicit_gemm", "implicit_precomp_gemm", "gemm", "direct"),
    *("fft", "fft_tiling", "winograd", "winograd_nonfused"),
    *("graph_fastest", "graph_nhwc", *_CUDNN_KINDS),
)
_CUDNN = (
    Switch("fallback", ("none", *_CUDNN_ALGORITHMS)),
    Switch("algorithm_search", ("exhaustive", "heuristic")),
    Switch("use_tf32", ("off", "on")),
    Switch("cuda_graph", ("off", "on")),
)
_OPENVINO = (
    Switch("performance_hint", ("latency", "throughput")),
    Switch("cpu_pinning", ("off", "on")),
    Switch("denormal_as_zero", ("off", "on")),
)

BACKENDS: Dict[str, Row] = {
    "ort": Row("xframe.backends.ort:OnnxRuntime", ("onnxruntime",), "ort", ("onnxruntime",), switches=_ORT),
    # Its own file must be the first to import it: it keeps OpenVINO from reporting over the network.
    "openvino": Row(
        "xframe.backends.openvino:OpenVino",
        ("xframe.backends.openvino",),
        "openvino",
        opt_in=True,
        switches=_OPENVINO,
    ),
    "tvm": Row("xframe.backends.tvm:Tvm", ("tvm_ffi",), "tvm"),
    "cudnn": Row(
        "xframe.backends.cudnn:Cudnn",
        (),
        "cudnn",
        opt_in=True,
        switches=_CUDNN,
        algorithms=_CUDNN_ALGORITHMS,
        general="implicit_gemm",
        absent=("direct",),
        where_named=_CUDNN_KINDS,
        devices=_CUDA,
    ),
}

#: Models that live in this process, by the framework that they are of; their classes are made of such a model.
LIVE: Dict[str, Row] = {
    "pytorch": FRAMEWORKS["pytorch"]._replace(where="xframe.frameworks.pytorch_live:Module"),
    "tensorflow": FRAMEWORKS["tensorflow"]._replace(where="xframe.frameworks.tensorflow_live:Model"),
    "jax": FRAMEWORKS["jax"]._replace(where="xframe.frameworks.jax_live:Function"),
}

#: Of tensor cores: in no comparison that does not name it.
_NARROW = Row("", ("tvm",), "tvm", opt_in=True, devices=_CUDA)

LOWERINGS: Dict[str, Row] = {
    "gemm": Row("xframe.lowering.gemm:Gemm", ("tvm",), "tvm", ("im2col",)),
    "direct": Row("xframe.lowering.direct:Direct", ("tvm",), "tvm"),
    "winograd": Row("xframe.lowering.winograd:Winograd", ("tvm",), "tvm"),
    "fft": Row("xframe.lowering.fft:Fft", ("tvm",), "tvm"),
    "gemm_explicit": Row(
        "xframe.lowering.gemm:ExplicitGemm", ("tvm",), "tvm", opt_in=True, variant_of="gemm", devices=_CUDA
    ),
    "gemm_tf32": _NARROW._replace(where="xframe.lowering.gemm_tf32:GemmTf32", variant_of="gemm", products="tf32"),
    "gemm_fp16": _NARROW._replace(where="xframe.lowering.gemm_fp16:GemmFp16", variant_of="gemm", products="float16"),
}


def defaults(table: Dict[str, Row]) -> Tuple[str, ...]:
    """The names of what is compared when nothing is named."""
    return tuple(name for name, row in table.items() if not row.opt_in)


def chosen(table: Dict[str, Row], names: Optional[Iterable[str]], what: str) -> Tuple[str, ...]:
    """The registered names for what was asked, each once: the defaults for None; ``all`` stands for every row that is
    not another way to run one of them. Raises UsageError as :func:`resolve` does."""
    if names is None:
        return defaults(table)
    found = []  # type: List[str]
    for name in names:
        if name.lower() == ALL:
            found += [key for key, row in table.items() if not row.variant_of]
        else:
            found.append(resolve(table, name, what))
    return tuple(dict.fromkeys(found))


def resolve(table: Dict[str, Row], name: str, what: str) -> str:
    """The registered name for ``name`` or one of its aliases. Raises UsageError with the close names."""
    for key, row in table.items():
        if name.lower() == key or name.lower() in row.aliases:
            return key
    known: List[str] = [*table, *(a for row in table.values() for a in row.aliases)]
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = "did you mean %s?" % " or ".join(close) if close else "there are: %s" % ", ".join(table)
    raise UsageError("unknown %s %r: %s" % (what, name, hint))


def received(parts: Iterable[Any]) -> Tuple[str, Row]:
    """The name and the row of a plugin that came from another process (``worker.host.plugin_row``)."""
    name, where, needs, extra, environment = parts
    return name, Row(where, tuple(needs), extra, environment=environment)


def variables(table: Dict[str, Row], name: str, options: Iterable[Tuple[str, str]], device: str) -> Dict[str, str]:
    """The environment variables that a worker of the plugin ``name`` takes with these options.

    Raises
    ------
    UsageError
        There is no such switch, or it has no such value.
    Unsupported
        It changes nothing on this device, so that its row would be that of the default.
    """
    switches = {switch.name: switch for switch in table[name].switches}
    found = {}  # type: Dict[str, str]
    for option, value in options:
        if option not in switches:
            raise UsageError("%s has no switch %r; it has: %s" % (name, option, ", ".join(switches) or "none"))
        if value not in switches[option].values:
            values = ", ".join(switches[option].values)
            raise UsageError("the switch %s of %s can't be %r; it can be: %s" % (option, name, value, values))
        kinds = switches[option].devices
        if device.partition(":")[0] not in kinds and value != switches[option].values[0]:
            raise Unsupported(
                "%s=%s was asked for on %s: this switch of %s changes what runs on %s only; leave it out there"
                % (option, value, device, name, " and ".join(kinds))
            )
        for variable, text in dict(switches[option].env).get(value, ()):
            found[variable] = " ".join(filter(None, (found.get(variable), text)))
    return found


def load(table: Dict[str, Row], name: str) -> Any:
    """An instance of the plugin registered as ``name``. Raises Unavailable as :func:`load_class` does."""
    return load_class(table, name)()


def load_class(table: Dict[str, Row], name: str) -> Any:
    """The class of the plugin registered as ``name``.

    Raises
    ------
    Unavailable
        A module that it needs is not installed; the message holds the exact line that installs it.
    """
    row = table[name]
    for module in row.needs:
        try:
            importlib.import_module(module)
        except ImportError as e:
            how = "xframe env create %s" % row.environment if row.environment else PIP % row.extra
            raise Unavailable(
                "%s needs the Python module %s, which does not import here (%s): %s" % (name, module, e, how)
            ) from e
    module, cls = row.where.split(":")
    return getattr(importlib.import_module(module), cls)
