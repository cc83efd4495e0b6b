"""What crosses the pipe between host and worker: JSON for records, npz files for arrays (never pickle)."""

import dataclasses
import enum
from typing import Any, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from xframe.types import Artifact, ConvSite, Kernel, Plan, Profile, Rounding, SiteRecord, Span, TensorInfo


def plain(value: Any) -> Any:
    """``value`` as what JSON can hold: a site becomes its key, a record a dict, numpy numbers Python's."""
    if isinstance(value, ConvSite):
        return value.key
    if isinstance(value, Plan):
        return value.to_json()
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def artifact_of(data: Optional[Mapping[str, Any]]) -> Optional[Artifact]:
    """The inverse of :func:`plain` for an artifact; None passes through."""
    if data is None:
        return None

    def tensors(rows):
        return tuple(TensorInfo(r["name"], tuple(r["shape"]), r["dtype"], r["layout"]) for r in rows)

    fields = dict(data)
    fields["inputs"], fields["outputs"] = tensors(data["inputs"]), tensors(data["outputs"])
    fields["conv_sites"] = tuple((name, ConvSite.parse(key)) for name, key in data["conv_sites"])
    return Artifact(**fields)


def sites_of(rows: Iterable[Mapping[str, Any]]) -> Tuple[SiteRecord, ...]:
    """The inverse of :func:`plain` for site records."""

    def record(row):
        fields = dict(row, site=ConvSite.parse(row["site"]))
        if row.get("rounding") is not None:
            fields["rounding"] = Rounding(**dict(row["rounding"], reach=tuple(row["rounding"]["reach"])))
        return SiteRecord(**fields)

    return tuple(record(row) for row in rows)


def kernels_of(rows: Iterable[Mapping[str, Any]]) -> Tuple[Kernel, ...]:
    """The inverse of :func:`plain` for kernels."""
    return tuple(Kernel(**dict(r, site=ConvSite.parse(r["site"]) if r["site"] else None)) for r in rows)


def profiles_of(rows: Iterable[Mapping[str, Any]]) -> Tuple[Profile, ...]:
    """The inverse of :func:`plain` for profiles."""

    def profile(row):
        spans = tuple(Span(**s) for s in row["host"])
        return Profile(**dict(row, kernels=kernels_of(row["kernels"]), host=spans))

    return tuple(profile(row) for row in rows)


def save_arrays(path: str, arrays: Iterable[Any]) -> None:
    """Write a list of arrays to an npz file, in order."""
    with open(path, "wb") as f:
        np.savez(f, *[np.asarray(a) for a in arrays])


def load_arrays(path: str) -> List[Any]:
    """Read what :func:`save_arrays` wrote."""
    with np.load(path, allow_pickle=False) as data:
        return [data["arr_%d" % i] for i in range(len(data.files))]


def to_layout(array: Any, layout: str) -> Any:
    """A canonical (NCHW) array in ``layout``; only a 4-D one can differ."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if layout == "NHWC" and array.ndim == 4 else array


def from_layout(array: Any, layout: str) -> Any:
    """The inverse of :func:`to_layout`."""
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if layout == "NHWC" and array.ndim == 4 else array
