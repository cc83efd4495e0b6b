"""The calls of NVIDIA's libraries are what their headers say, where those are installed."""

import ctypes
import functools
import importlib.util
import re
from pathlib import Path

import pytest

from xframe.backends import cudnn_graph
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
    **{f"CUDNN_BACKEND_{name}_DESCRIPTOR": value for name, value in cudnn_graph.DESCRIPTORS.items()},
    **{f"CUDNN_TYPE_{name}": value for name, (value, _) in cudnn_graph.TYPES.items()},
    **{f"CUDNN_ATTR_{name}": value for name, (value, _) in cudnn_graph.ATTRIBUTES.items()},
    **{f"CUDNN_NUMERICAL_NOTE_{name}": value for name, value in cudnn_graph.NOTES.items()},
    **{f"CUDNN_HEUR_MODE_{name}": value for name, value in cudnn_graph.HEURISTICS.items()},
    "CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION": cudnn_graph.COMPILED_AT_RUN_TIME,
    "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED": library._NO_LIBRARY,
    "CUDNN_STATUS_INTERNAL_ERROR": library._BROKEN[0],
    "CUDNN_STATUS_EXECUTION_FAILED": library._BROKEN[1],
    **{f"CUDNN_SEV_{name}": value for name, value in library.SEVERITIES.items()},
    "CUDNN_STATUS_BAD_PARAM": 2000,
    "CUDNN_STATUS_NOT_SUPPORTED": library.NOT_SUPPORTED,
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED": 4003,
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": 4004,
}
RUNTIME = {
    "cudaMemcpyHostToDevice": library.TO_DEVICE,
    "cudaMemcpyDeviceToHost": library.TO_HOST,
    "cudaErrorMemoryAllocation": library.OUT_OF_MEMORY,
    "cudaErrorNotReady": library.NOT_READY,
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


def folders():
    """Where headers may be: in NVIDIA's packages, the toolkit, and what TensorFlow was built with."""
    spec = importlib.util.find_spec("nvidia")
    yield from map(Path, (spec and spec.submodule_search_locations) or ())
    yield Path("/usr/local/cuda")
    spec = importlib.util.find_spec("tensorflow")
    yield from (Path(f) / "include/third_party/gpus" for f in (spec and spec.submodule_search_locations) or ())


@functools.cache
def texts(begin):
    """The text of the headers of one library, of the first place that has them; skips where none has."""
    for folder in folders():
        found = [p for name in HEADERS[begin][0] for p in sorted(folder.glob(f"**/include/{name}"))]
        text = "\n".join(p.read_text(errors="replace") for p in found)
        major = re.search(r"#define CUDNN_GRAPH_MAJOR (\d+)", text)
        if found and (not major or major[1] == "9"):
            return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    return ""


def headers(begin):
    text = texts(begin)
    if not text:
        pytest.skip(f"the headers of {begin} are not installed: {HEADERS[begin][0][0]}")
    return text


def enumerators(text):
    """Name -> value of all enumerations; those without a number go on from the one before."""
    found = {}
    for body in re.findall(r"\benum\b[^{;]*\{(.*?)\}", text, re.DOTALL):
        value = -1
        for part in body.split(","):
            name, _, given = (" ".join(x.replace("CUDNN_DEPRECATED_ENUM", "").split()) for x in part.partition("="))
            if name:
                value = found.get(given, value + 1) if not given or given in found else _number(given, value)
                found[name] = value
    return found


def _number(text, before):
    try:
        return int(text, 0)
    except ValueError:  # an expression, of a kind that no value here has
        return before + 1


def letter(argument):
    """What :data:`library.SIGNATURES` calls an argument of a prototype."""
    words = argument.replace("const", " ").split("=")[0].strip()
    if re.search(r"[*\[]|(Descriptor|Handle|Stream|Event|Graph|GraphExec|Callback)_t\b", words):
        return "p"
    if words.startswith("unsigned long long"):
        return "z"  # as large on 64 bits
    kind = words.split()[0] if not words.startswith("unsigned") else "unsigned"
    return {"size_t": "z", "double": "d", "unsigned": "u", "int64_t": "l"}.get(kind, "i")


@pytest.mark.parametrize("begin", HEADERS)
def test_signatures_are_those_of_the_header(begin):
    text, checked = headers(begin), 0
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
    text = headers(begin)
    defined = {name: int(value, 0) for name, value in re.findall(r"#define (\w+)\s+(0x[0-9a-fA-F]+|\d+)\s", text)}
    known = {**defined, **enumerators(text)}
    for name, expected in HEADERS[begin][1].items():
        assert known.get(name) == expected, name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("typedef enum { A = 3, B, C CUDNN_DEPRECATED_ENUM = 0x10, D, } e_t;", {"A": 3, "B": 4, "C": 16, "D": 17}),
        ("enum e { A, B = A, C } ; enum { D = B }", {"A": 0, "B": 0, "C": 1, "D": 0}),
    ],
)
def test_enumerations_are_read_as_c_counts_them(text, expected):
    assert enumerators(text) == expected


def test_the_record_of_an_algorithm_is_that_of_the_header():
    body = re.search(r"typedef struct cudnnConvolutionFwdAlgoPerfStruct\s*\{(.*?)\}", headers("cudnn"), re.DOTALL)[1]
    fields = re.findall(r"(\w+)\s+(\w+)(\[\d+\])?\s*;", body)
    assert [name.replace("mathType", "math") for _, name, _ in fields] == [n for n, _ in library.Performance._fields_]
    sizes = {"float": ctypes.c_float, "size_t": ctypes.c_size_t}
    for (kind, _, extent), (_, mine) in zip(fields, library.Performance._fields_, strict=True):
        assert mine == (ctypes.c_int * 3 if extent else sizes.get(kind, ctypes.c_int))
