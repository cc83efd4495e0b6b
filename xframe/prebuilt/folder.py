"""The folder of compiled networks: what is in it, and what their outputs must be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xframe import files
from xframe.backends import tvm_parameters
from xframe.equivalence.reference import Judged
from xframe.errors import UsageError
from xframe.types import Artifact, ConvSite, Plan
from xframe.worker import wire

MANIFEST, EXPECTED, PARAMETERS = "manifest.json", "expected.npz", tvm_parameters.FOLDER
SCHEMA = 2
#: Different images in a batch, at most: what is exact of them judges all of it (:func:`xframe.subject.repeated`). At
#: batch 128 what is exact of a convolution takes a minute in float64, of 8 images none.
IMAGES = 8


@dataclass(frozen=True)
class Entry:
    """One compiled network, in the subfolder ``name``. ``inputs``: (shape, seed) of each input of each feed, with the
    different images of the batch alone.

    ``site``: the convolution of ``model`` that is all of it; empty for the whole network. ``artifact``: its path is
    that of the graph without weights, in the folder.

    ``reason``: why it could not be made; then nothing else is there.
    """

    name: str
    model: str
    framework: str | None
    batch: int
    plan: Plan
    artifact: Artifact | None = None
    inputs: tuple[tuple[tuple[tuple[int, ...], int], ...], ...] = ()
    digest: str = ""
    reason: str = ""
    site: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "plan": self.plan.to_json(), "artifact": wire.plain(self.artifact)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Entry:
        inputs = tuple(tuple((tuple(shape), seed) for shape, seed in feed) for feed in data["inputs"])
        plan, artifact = Plan.from_json(data["plan"]), wire.artifact_of(data["artifact"])
        return Entry(**{**data, "plan": plan, "artifact": artifact, "inputs": inputs})


def digest(feeds: Sequence[Sequence[np.ndarray]]) -> str:
    """SHA-256 of all inputs: another version of numpy must not make others of the same seeds."""
    found = hashlib.sha256()
    for feed in feeds:
        for array in feed:
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def save_expected(path: Path, judged: Sequence[Sequence[Judged]]) -> None:
    """Exact outputs and their bounds, of each feed."""
    arrays = {}
    for i, outputs in enumerate(judged):
        for j, one in enumerate(outputs):
            arrays[f"{i}:{j}:{one.name}:value"], arrays[f"{i}:{j}:{one.name}:bound"] = one.value, one.bound
    with open(path, "wb") as f:
        np.savez(f, **arrays)  # type: ignore[arg-type]


def load_expected(path: Path) -> list[list[Judged]]:
    """The inverse of :func:`save_expected`."""
    found: dict[int, list[Judged]] = {}
    with np.load(path, allow_pickle=False) as data:
        for key in data.files:
            i, _, rest = key.split(":", 2)
            name, _, what = rest.rpartition(":")
            if what == "value":
                bound = data[f"{key.removesuffix('value')}bound"]
                found.setdefault(int(i), []).append(Judged(name, data[key], bound))
    return [found[i] for i in sorted(found)]


def write(folder: Path, target: str, entries: Sequence[Entry]) -> Path:
    """The list of what is in the folder; written again after each entry, so that what is there can be used."""
    path = folder / MANIFEST
    data = {"schema": SCHEMA, "target": target, "entries": [e.to_json() for e in entries]}
    with files.atomic(path) as part:
        part.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path


def read(folder: Path) -> tuple[str, list[Entry]]:
    """The target and the entries of a folder. Raises UsageError where it is none."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"it is of version {data['schema']}, not {SCHEMA}")
        return data["target"], [Entry.from_json(e) for e in data["entries"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UsageError(f"{folder} holds no compiled networks ({e}): make it with xframe build -o {folder}") from e


def sites(entry: Entry) -> list[ConvSite]:
    return [site for _, site in entry.artifact.conv_sites] if entry.artifact else []
