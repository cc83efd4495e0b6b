"""Inputs in files: arrays of numpy, and the test data that come with ONNX models. Nothing is unpickled."""

from __future__ import annotations

import itertools
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from xframe.errors import UsageError

ADVICE = (
    "give an array, a list or dict of arrays, a list of such, a generator of them, or the path of an .npy, .npz or .pb "
    "file or of a folder test_data_set_0"
)
#: What numpy, zip archives and protobuf raise on files that are none of theirs.
_UNREADABLE = (
    OSError, ValueError, EOFError, TypeError, KeyError, RuntimeError, MemoryError, DecodeError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


class Many(list[Any]):
    """Several feeds, where a list of arrays would be one."""


def read(path: Path) -> Any:
    """What a file or folder holds: an array, a list or dict of arrays (one feed), or Many. Raises UsageError."""
    try:
        if path.is_dir():
            return _folder(path)
        if path.suffix == ".pb":
            return _tensors(path.parent) if re.fullmatch(r"input_\d+\.pb", path.name) else [_tensor(path)]
        if path.suffix not in (".npy", ".npz"):
            raise UsageError(f"{path} is no .npy, .npz or .pb file, and no folder: {ADVICE}")
        with path.open("rb") as f:  # numpy leaves its own open where it fails
            loaded = np.load(f, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file of inputs") from None
    except _UNREADABLE as e:
        raise UsageError(f"{path} can't be read as arrays, and pickled objects are refused: {e}") from e


def _folder(path: Path) -> Any:
    if (path / "input_0.pb").is_file():
        return _tensors(path)
    sets = [p for p in path.glob("test_data_set_*") if (p / "input_0.pb").is_file()]
    if not sets:
        raise UsageError(f"{path} has no input_0.pb and no test_data_set_0 with one: {ADVICE}")
    return Many(_tensors(p) for p in sorted(sets, key=lambda p: (len(p.name), p.name)))


def _tensors(folder: Path) -> list[np.ndarray]:
    files = itertools.takewhile(Path.is_file, (folder / f"input_{i}.pb" for i in itertools.count()))
    return [_tensor(p) for p in files]


def _tensor(path: Path) -> np.ndarray:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise UsageError(f"{path} keeps its data in another file: save the tensor with its data inside")
    return onnx.numpy_helper.to_array(tensor)
