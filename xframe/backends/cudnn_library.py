"""NVIDIA's libraries by ``ctypes``: the CUDA runtime, cuBLAS, and the calls of cuDNN 9, with their own words.

Of cuDNN's two interfaces the legacy one is deprecated and still there: it alone takes an algorithm as an argument. What
the other's values are is in ``cudnn_graph``. Signatures and values here are those of ``cuda_runtime_api.h``,
``cublas_v2.h``, ``cudnn_graph.h``, ``cudnn_ops.h`` and ``cudnn_cnn.h``.
"""

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any

from xframe.errors import Unavailable, XframeError
from xframe.nvidia import load

FLOAT = 0  # CUDNN_DATA_FLOAT
NCHW = 0  # CUDNN_TENSOR_NCHW
CROSS_CORRELATION = 1  # what networks call a convolution
PROPAGATE_NAN = 1
#: ``cudnnMathType_t``. Default math may round float32 products to TF32's 10 bits; FMA may not.
MATH = {"default": 0, "tensor_op": 1, "tensor_op_allow_conversion": 2, "fma": 3}
#: ``cudnnConvolutionFwdAlgo_t``, by the names that a plan calls them: those of the legacy interface.
#: ``gemm`` writes the column matrix.
ALGORITHMS = {
    "implicit_gemm": 0,
    "implicit_precomp_gemm": 1,
    "gemm": 2,
    "direct": 3,
    "fft": 4,
    "fft_tiling": 5,
    "winograd": 6,
    "winograd_nonfused": 7,
}
ACTIVATIONS = {"Sigmoid": 0, "Relu": 1, "Tanh": 2, "Clip": 3}  # ``cudnnActivationMode_t``; 3 is the clipped ReLU
POOLING = {"max": 0, "average_with_padding": 1, "average": 2}  # ``cudnnPoolingMode_t``
BINARY = {"Add": 0, "Mul": 1, "Min": 2, "Max": 3}  # ``cudnnOpTensorOp_t``
SOFTMAX_ACCURATE, SOFTMAX_CHANNEL = 1, 1
BATCHNORM_SPATIAL = 1
LRN_CROSS_CHANNEL = 0
#: ``cublasOperation_t`` and ``cublasMath_t``.
OP_N, OP_T = 0, 1
CUBLAS_DEFAULT_MATH, CUBLAS_TF32_MATH = 0, 3
TO_DEVICE, TO_HOST = 1, 2  # ``cudaMemcpyKind``
NON_BLOCKING = 1  # ``cudaStreamNonBlocking``
THREAD_LOCAL = 1  # ``cudaStreamCaptureModeThreadLocal``
#: Statuses that are a refusal: bad parameters for this algorithm (2000), not supported (3000), and no memory for it.
NOT_SUPPORTED = 3000
_REFUSALS, _NO_MEMORY = (2000, NOT_SUPPORTED), (4003, 4004)
#: Statuses that may be of one algorithm alone, or of a device that is lost: its library does not load (1008), internal
#: errors (4000), and that it does not run (5000).
_NO_LIBRARY, _BROKEN = 1008, (4000, 5000)
#: ``cudnnCallback_t``: severity, what was given, what is known of the call, and its text.
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
#: ``cudnnSeverity_t`` of what is listened to, which a mask has as bits.
SEVERITIES = {"ERROR": 1, "WARNING": 2}
#: Lines of one text of cuDNN's that are read at most.
_LINES = 64
OUT_OF_MEMORY, NOT_READY = 2, 600  # ``cudaErrorMemoryAllocation``, ``cudaErrorNotReady``

_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint, "z": ctypes.c_size_t, "d": ctypes.c_double,
    "l": ctypes.c_int64,
}  # fmt: skip
#: Function -> its arguments: p any pointer or handle, i int or enum, u unsigned, z size_t, l int64_t, d double. Each
#: gives a status.
SIGNATURES = {
    "cudaGetDeviceCount": "p",
    "cudaSetDevice": "i",
    "cudaRuntimeGetVersion": "p",
    "cudaMalloc": "pz",
    "cudaFree": "p",
    "cudaMemcpy": "ppzi",
    "cudaMemsetAsync": "pizp",
    "cudaDeviceSynchronize": "",
    "cudaStreamCreateWithFlags": "pu",
    "cudaStreamSynchronize": "p",
    "cudaStreamDestroy": "p",
    "cudaStreamBeginCapture": "pi",
    "cudaStreamEndCapture": "pp",
    "cudaGraphInstantiate": "ppz",
    "cudaGraphLaunch": "pp",
    "cudaGraphDestroy": "p",
    "cudaGraphExecDestroy": "p",
    "cudaEventCreateWithFlags": "pu",
    "cudaEventRecord": "pp",
    "cudaEventQuery": "p",
    "cudaEventElapsedTime": "ppp",
    "cudaEventDestroy": "p",
    "cublasCreate_v2": "p",
    "cublasDestroy_v2": "p",
    "cublasSetStream_v2": "pp",
    "cublasSetMathMode": "pi",
    "cublasSgemm_v2": "piiiiippipippi",
    "cudnnCreate": "p",
    "cudnnDestroy": "p",
    "cudnnSetCallback": "upp",
    "cudnnSetStream": "pp",
    "cudnnCreateTensorDescriptor": "p",
    "cudnnDestroyTensorDescriptor": "p",
    "cudnnSetTensor4dDescriptorEx": "piiiiiiiii",
    "cudnnCreateFilterDescriptor": "p",
    "cudnnDestroyFilterDescriptor": "p",
    "cudnnSetFilter4dDescriptor": "piiiiii",
    "cudnnCreateConvolutionDescriptor": "p",
    "cudnnDestroyConvolutionDescriptor": "p",
    "cudnnSetConvolution2dDescriptor": "piiiiiiii",
    "cudnnSetConvolutionGroupCount": "pi",
    "cudnnSetConvolutionMathType": "pi",
    "cudnnGetConvolution2dForwardOutputDim": "ppppppp",
    "cudnnGetConvolutionForwardAlgorithmMaxCount": "pp",
    "cudnnGetConvolutionForwardAlgorithm_v7": "pppppipp",
    "cudnnFindConvolutionForwardAlgorithm": "pppppipp",
    "cudnnGetConvolutionForwardWorkspaceSize": "pppppip",
    "cudnnConvolutionForward": "pppppppipzppp",
    "cudnnBackendCreateDescriptor": "ip",
    "cudnnBackendDestroyDescriptor": "p",
    "cudnnBackendSetAttribute": "piilp",
    "cudnnBackendFinalize": "p",
    "cudnnBackendGetAttribute": "piilpp",
    "cudnnBackendExecute": "ppp",
    "cudnnAddTensor": "ppppppp",
    "cudnnTransformTensor": "ppppppp",
    "cudnnCreateOpTensorDescriptor": "p",
    "cudnnDestroyOpTensorDescriptor": "p",
    "cudnnSetOpTensorDescriptor": "piii",
    "cudnnOpTensor": "ppppppppppp",
    "cudnnCreateActivationDescriptor": "p",
    "cudnnDestroyActivationDescriptor": "p",
    "cudnnSetActivationDescriptor": "piid",
    "cudnnActivationForward": "pppppppp",
    "cudnnCreatePoolingDescriptor": "p",
    "cudnnDestroyPoolingDescriptor": "p",
    "cudnnSetPooling2dDescriptor": "piiiiiiii",
    "cudnnPoolingForward": "pppppppp",
    "cudnnCreateLRNDescriptor": "p",
    "cudnnDestroyLRNDescriptor": "p",
    "cudnnSetLRNDescriptor": "puddd",
    "cudnnLRNCrossChannelForward": "ppipppppp",
    "cudnnSoftmaxForward": "piipppppp",
    "cudnnBatchNormalizationForwardInference": "pipppppppppppd",
}
#: Library -> the begin of its functions' names.
BEGINS = {"cudart": "cuda", "cublas": "cublas", "cudnn": "cudnn"}


class Performance(ctypes.Structure):
    """``cudnnConvolutionFwdAlgoPerf_t``: what cuDNN says of one algorithm. ``time`` in ms, below 0 where unmeasured."""

    _fields_ = (
        ("algo", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


class CallFailed(XframeError):
    """A call of one of the libraries gave another status than success. ``words`` are the library's own; ``brief``:
    what of them fits into a sentence."""

    def __init__(self, function: str, status: int, words: str):
        super().__init__(f"{function} failed: {words}")
        self.status, self.words, self.brief = status, words, words
        cudnn = function.startswith("cudnn")
        self.refusal = cudnn and (status // 1000 * 1000 in _REFUSALS or status in _NO_MEMORY)
        self.refusal = self.refusal or (function == "cudaMalloc" and status == OUT_OF_MEMORY)
        #: Whether it may be of this algorithm alone, if the device still answers.
        self.doubtful = cudnn and (status // 1000 * 1000 in _BROKEN or status == _NO_LIBRARY)


class Libraries:
    """The functions of all three by name: each is called with its arguments, and anything but success is raised.

    Raises
    ------
    Unavailable
        One does not load, or cuDNN is older than 9, whose statuses mean something else.
    CallFailed
        By each function that fails.
    """

    def __init__(self) -> None:
        self._loaded = {begin: load(name) for name, begin in BEGINS.items()}
        self.version = self._cudnn_version()
        self._heard: list[str] | None = None

    def _cudnn_version(self) -> str:
        function = self._loaded["cudnn"].cudnnGetVersion
        function.restype = ctypes.c_size_t
        number = function()
        if number < 90000:
            raise Unavailable(f"the cudnn backend needs cuDNN 9, and cuDNN {number} is here: pip install -U it")
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def raw(self, name: str) -> Callable[..., int]:
        """The function as it is: for calls in a loop that looks at the status itself."""
        begin = next(b for b in self._loaded if name.startswith(b))
        function = getattr(self._loaded[begin], name)
        function.argtypes = [_TYPES[letter] for letter in SIGNATURES[name]]
        function.restype = ctypes.c_int
        return function

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in SIGNATURES:
            raise AttributeError(name)
        function = self.raw(name)

        def checked(*args: Any) -> None:
            if self._heard:
                self._heard.clear()
            status = function(*args)
            if status:
                raise self.failure(name, status)

        setattr(self, name, checked)
        return checked

    def failure(self, function: str, status: int) -> CallFailed:
        """The error for a status that is not success."""
        return CallFailed(function, status, self.words(function, status))

    def words(self, function: str, status: int) -> str:
        """What the library that has ``function`` calls the status of its last call, and what cuDNN adds to that."""
        name = self.name(function, status)
        more = self._reason(function).removeprefix(f"{name.split()[0]}, ") if function.startswith("cudnn") else ""
        return name + (f": {more}" if more else "")

    def name(self, function: str, status: int) -> str:
        """What the library that has ``function`` calls a status."""
        begin = next(b for b in self._loaded if function.startswith(b))
        name = {"cuda": "cudaGetErrorString", "cublas": "cublasGetStatusString", "cudnn": "cudnnGetErrorString"}[begin]
        tell = getattr(self._loaded[begin], name)
        tell.restype, tell.argtypes = ctypes.c_char_p, [ctypes.c_int]
        return f"{(tell(status) or b'').decode(errors='replace')} ({status})"

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, cuDNN's refusals have its reasons. It tells them to a callback alone: its last error's text has none
        of warnings, as they are, and may be of a call that succeeded long ago. Within, nothing is to be timed by the
        host's clock, as a call may take longer."""
        heard: list[str] = []

        def hear(severity: int, user: int, debug: int, text: int) -> None:  # strings, of which the last is empty
            for _ in range(_LINES):
                line = ctypes.string_at(text)
                if not line:
                    return
                heard.append(line.decode(errors="replace"))
                text += len(line) + 1

        callback = _CALLBACK(hear)
        self.cudnnSetCallback(sum(1 << s for s in SEVERITIES.values()), None, ctypes.cast(callback, ctypes.c_void_p))
        self._heard = heard
        try:
            yield
        finally:
            self._heard = None
            self.cudnnSetCallback(0, None, None)

    def _reason(self, function: str) -> str:
        """What cuDNN has told since ``function`` was called: the first reason of its text, which is the innermost."""
        *_, text = re.split(rf"(?m)^.*\b{function}\(\) called:", "\n".join(self._heard or ()))
        found = re.search(r"(CUDNN_STATUS_\w+); Reason: (.+)", text)
        return f"{found[1]}, {' '.join(found[2].split())}" if found else ""
