"""The calls of NVIDIA's libraries are what their headers say, where those are installed."""

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from xframe.backends import cudnn_library as library

ENUMS = {
    **{f"CUDNN_CONVOLUTION_FWD_ALGO_{name.upper()}": value for name, value in library.ALGORITHMS.items()},
    "CUDNN_DATA_FLOAT": library.FLOAT,
    "CUDNN_TENSOR_NCHW": library.NCHW,
    "CUDNN_CROSS_CORRELATION": library.CROSS_CORRELATION,
    "CUDNN_PROPAGATE_NAN": library.PROPAGATE_NAN,
    **{f"CUDNN_{name.upper()}_MATH": library.MATH[name] for name in ("default", "tensor_op", "fma")},
    "CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION": library.MATH["tensor_op_allow_conversion"],
    "CUDNN_ACTIVATION_SIGMOID": library.ACTIVATIONS["Sigmoid"],
    "CUDNN_ACTIVATION_RELU": library.ACTIVATIONS["Relu"],
    "CUDNN_ACTIVATION_TANH": library.ACTIVATIONS["Tanh"],
    "CUDNN_ACTIVATION_CLIPPED_RELU": library.ACTIVATIONS["Clip"],
    "CUDNN_POOLING_MAX": library.POOLING["max"],
    "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING": library.POOLING["average_with_padding"],
    "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING": library.POOLING["average"],
    **{f"CUDNN_OP_TENSOR_{name.upper()}": value for name, value in library.BINARY.items()},
    "CUDNN_SOFTMAX_ACCURATE": library.SOFTMAX_ACCURATE,
    "CUDNN_SOFTMAX_MODE_CHANNEL": library.SOFTMAX_CHANNEL,
    "CUDNN_BATCHNORM_SPATIAL": library.BATCHNORM_SPATIAL,
    "CUDNN_LRN_CROSS_CHANNEL_DIM1": library.LRN_CROSS_CHANNEL,
    "CUDNN_STATUS_BAD_PARAM": 2000,
    "CUDNN_STATUS_NOT_SUPPORTED": 3000,
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED": 4003,
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": 4004,
}
RUNTIME = {
    "cudaMemcpyHostToDevice": library.TO_DEVICE,
    "cudaMemcpyDeviceToHost": library.TO_HOST,
    "cudaErrorMemoryAllocation": library.OUT_OF_MEMORY,
    "cudaStreamNonBlocking": library.NON_BLOCKING,
}
CUBLAS = {
    "CUBLAS_OP_N": library.OP_N,
    "CUBLAS_OP_T": library.OP_T,
    "CUBLAS_DEFAULT_MATH": library.CUBLAS_DEFAULT_MATH,
    "CUBLAS_TF32_TENSOR_OP_MATH": library.CUBLAS_TF32_MATH,
}
HEADERS = {
    "cudnn": (("cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h"), ENUMS),
    "cuda": (("cuda_runtime_api.h", "driver_types.h"), RUNTIME),
    "cublas": (("cublas_api.h", "cublas_v2.h"), CUBLAS),
}


def texts(begin):
    """The text of the headers of one library; skips where they are not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = [*((spec and spec.submodule_search_locations) or ()), "/usr/local/cuda"]
    found = [p for f in folders for name in HEADERS[begin][0] for p in sorted(Path(f).glob(f"**/include/{name}"))]
    if not found:
        pytest.skip(f"the headers of {begin} are not installed: {HEADERS[begin][0][0]}")
    text = "\n".join(p.read_text(errors="replace") for p in found)
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def letter(argument):
    """What :data:`library.SIGNATURES` calls an argument of a prototype."""
    words = argument.replace("const", " ").split("=")[0].strip()
    if "*" in words or "[" in words or re.search(r"(Descriptor|Handle|Stream|Event|Graph|GraphExec)_t\b", words):
        return "p"
    if words.startswith("unsigned long long"):
        return "z"  # as large on 64 bits
    kind = words.split()[0] if not words.startswith("unsigned") else "unsigned"
    return {"size_t": "z", "double": "d", "unsigned": "u"}.get(kind, "i")


@pytest.mark.parametrize("begin", HEADERS)
def test_signatures_are_those_of_the_header(begin):
    text, checked = texts(begin), 0
    for name, expected in library.SIGNATURES.items():
        if not name.startswith(begin):
            continue
        prototype = re.search(rf"\b{name}\s*\(([^;{{]*?)\)\s*;", text)
        assert prototype, name
        arguments = [a for a in prototype[1].split(",") if a.strip() not in ("", "void")]
        arguments = [re.sub(r"__dv\([^)]*\)?", "", a) for a in arguments]
        assert "".join(map(letter, arguments)) == expected, name
        checked += 1
    assert checked > 4


@pytest.mark.parametrize("begin", HEADERS)
def test_values_are_those_of_the_header(begin):
    text = texts(begin)
    for name, expected in HEADERS[begin][1].items():
        value = re.search(rf"\b{name}\b(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=?\s*(0x[0-9a-fA-F]+|\d+)", text)
        assert value, name
        assert int(value[1], 0) == expected, name


def test_the_record_of_an_algorithm_is_that_of_the_header():
    body = re.search(r"typedef struct cudnnConvolutionFwdAlgoPerfStruct\s*\{(.*?)\}", texts("cudnn"), re.DOTALL)[1]
    fields = re.findall(r"(\w+)\s+(\w+)(\[\d+\])?\s*;", body)
    assert [name.replace("mathType", "math") for _, name, _ in fields] == [n for n, _ in library.Performance._fields_]
    sizes = {"float": ctypes.c_float, "size_t": ctypes.c_size_t}
    for (kind, _, extent), (_, mine) in zip(fields, library.Performance._fields_, strict=True):
        assert mine == (ctypes.c_int * 3 if extent else sizes.get(kind, ctypes.c_int))
