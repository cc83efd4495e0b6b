"""What was reduced, as files for a bug report: valid ONNX models with test data, and a sentence."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import numpy_helper

from xframe.check import emit
from xframe.equivalence.graph import Graph
from xframe.equivalence.result import Statistics
from xframe.errors import UsageError, XframeError

MODEL, DATA, README = "model.onnx", "test_data_set_0", "README.txt"
#: All that may lie in the folder of a model: what was written there before is replaced, anything else is not touched.
_OURS = {MODEL, f"{MODEL}.data", DATA}


@dataclass(frozen=True)
class Side:
    """One model to write: into the subfolder ``place``, or the folder itself where that is empty. ``outputs``: the
    exact ones, float64."""

    place: str
    graph: Graph
    feeds: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]


@dataclass(frozen=True)
class Reduction:
    """What was written. ``sentence`` says what is wrong there; ``models`` are the ONNX files; ``nodes`` how many each
    has; ``inputs`` the shapes of their inputs, which they share."""

    sentence: str
    folder: Path
    models: tuple[Path, ...]
    nodes: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    statistics: Statistics | None = None


def write(
    folder: Path, sides: Sequence[Side], sentence: str, names: Sequence[str], statistics: Statistics | None = None
) -> Reduction:
    """Write all of it, or nothing: each model with its inputs and its exact outputs, rounded to float32.

    Raises
    ------
    UsageError
        Something else lies where it would go.
    XframeError
        The folder can't be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".reduce-", dir=folder))
    except OSError as e:
        raise XframeError(f"can't write to {folder}: {e.strerror or e}; choose another folder") from e
    try:
        for side in sides:
            _write_side(part / side.place, side)
        (part / README).write_text(_readme(sides, sentence, names), encoding="utf-8")
        moves = [(p, folder / p.name) for p in sorted(part.iterdir())]
        for _, target in moves:
            _check(target)
        for source, target in moves:
            _clear(target)
            os.replace(source, target)
    except OSError as e:
        raise XframeError(f"can't write to {folder}: {e.strerror or e}; choose another folder") from e
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Reduction(
        sentence,
        folder,
        tuple(folder / side.place / MODEL for side in sides),
        tuple(len(side.graph.nodes) for side in sides),
        tuple(x.shape for x in sides[0].feeds),
        statistics,
    )


def _write_side(folder: Path, side: Side) -> None:
    emit.save(side.graph, folder / MODEL)
    (folder / DATA).mkdir()
    for what, names, arrays in (
        ("input", side.graph.inputs, side.feeds),
        ("output", side.graph.outputs, side.outputs),
    ):
        for i, (name, array) in enumerate(zip(names, arrays, strict=True)):
            kept = array.astype(np.float32) if array.dtype.kind == "f" else array
            data = numpy_helper.from_array(np.ascontiguousarray(kept).reshape(array.shape), name).SerializeToString()
            (folder / DATA / f"{what}_{i}.pb").write_bytes(data)


def _check(target: Path) -> None:
    """Whether ``target`` may be replaced. Raises UsageError."""
    if target.is_dir() and not target.is_symlink():
        others = sorted(p.name for p in target.iterdir() if p.name not in _OURS and not p.name.endswith(".pb"))
        if others:
            raise UsageError(f"{target} holds {others[0]}, which is not ours to replace: choose another folder")


def _clear(target: Path) -> None:
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)


def _readme(sides: Sequence[Side], sentence: str, names: Sequence[str]) -> str:
    lines = [sentence, ""]
    for side, name in zip(sides, names, strict=True):
        where = f"{side.place}/" if side.place else ""
        shown = ", ".join(f"{n.name} ({n.op})" for n in side.graph.nodes)
        lines.append(f"{where}{MODEL}: {shown}, cut out of {name}.")
    lines += [
        f"{DATA} beside it has the inputs (input_0.pb and so on) and the exact outputs (output_0.pb and so on):",
        "evaluated in float64, rounded to float32. They are ONNX TensorProto messages.",
    ]
    return "\n".join(lines) + "\n"
