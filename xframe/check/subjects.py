"""Everything that can be checked, opened: a file, a registered model's export, a model in this process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError

from xframe import exports, files, zoo
from xframe.check.interface import Interface, interface
from xframe.check.isolated import Isolated
from xframe.check.kinds import framework_of
from xframe.equivalence.result import Subject
from xframe.errors import ModelError, UsageError, XframeError
from xframe.normal import loading
from xframe.protocols import Live
from xframe.registry import ALL, FRAMEWORKS, LIVE, chosen, defaults, load_class, resolve
from xframe.subject import is_file

Feed = Sequence[np.ndarray]

#: Suffix of a file that another tool reads -> how.
_OTHERS = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".safetensors"), "make the torch.nn.Module, load its weights, and give it"),
    **dict.fromkeys((".keras", ".h5"), "give the model of keras.models.load_model"),
    ".tflite": "convert it with tf2onnx",
    ".pt2": "give the module of torch.export.load(...).module()",
}


@dataclass(frozen=True)
class Opened:
    """One of what is compared.

    Attributes
    ----------
    subject
        What it is, in words.
    graph
        Its raw graph, from the file ``path``.
    path
        Its ONNX file; a live model was exported into the work folder.
    interface
        What it takes and gives.
    make_live
        Makes ``live``; None for a plain file.
    """

    subject: Subject
    graph: loading.Raw
    path: Path
    interface: Interface
    make_live: Callable[[], Live] | None = None

    @cached_property
    def live(self) -> Live | None:
        """The model in its framework, which is imported when this is first asked for. Raises Unavailable."""
        return None if self.make_live is None else self.make_live()


def expand(things: Iterable[Any]) -> list[Any]:
    """The same, but a single registered model stands for its exports by all default frameworks, and ``alexnet@all`` for
    those by all others too."""
    found = list(things)
    if len(found) == 1 and isinstance(found[0], str) and found[0] in zoo.names():
        return [f"{found[0]}@{framework}" for framework in defaults(FRAMEWORKS)]
    return [one for thing in found for one in _everywhere(thing)]


def _everywhere(thing: Any) -> list[Any]:
    model, _, framework = thing.replace(":", "@", 1).partition("@") if isinstance(thing, str) else (None, "", "")
    if framework != ALL or model not in zoo.names():
        return [thing]
    return [f"{model}@{framework}" for framework in chosen(FRAMEWORKS, [ALL], "framework")]


def open_subject(
    thing: Any, name: str, folder: Path, feeds: Sequence[Feed] | None = None, sizes: Mapping[str, int] | None = None
) -> Opened:
    """Open one thing to compare.

    Parameters
    ----------
    thing
        The path of an ONNX file; an ``onnx.ModelProto``; a registered model, ``alexnet`` (its export by the first
        framework), ``alexnet@caffe`` or ``alexnet:jax``; or a live model: a torch ``nn.Module``, a Keras model, a
        ``tf.function``, ``tf.Module`` or concrete function, a JAX function of arrays, a pair ``(function, params)`` or
        ``(flax module, variables)``.
    name
        What results call it.
    folder
        Where what is no file yet is written.
    feeds
        In its own order and layout, for a live model that does not know the shapes of its inputs.
    sizes
        Open size -> the size that it takes, by default 1; ``batch`` is that of registered and live models.

    Raises
    ------
    UsageError
        It is nothing of these, or a live model's shapes are not known.
    ModelError
        A file that can't be used.
    Unavailable
        The framework is not installed.
    Unsupported, XframeError
        The framework can't export the model, with its words.
    """
    sizes = dict(sizes or {})
    if isinstance(thing, str | os.PathLike):
        path = Path(thing)
        if path.suffix in _OTHERS:
            raise UsageError(f"{path} is no ONNX file: {_OTHERS[path.suffix]}")
        if not isinstance(thing, str) or is_file(thing) or path.is_file():
            return _opened(Subject(name, "ONNX file"), path, sizes)
        return _registered(thing, name, feeds, sizes)
    if isinstance(thing, onnx.ModelProto):
        return _opened(Subject(name, "ONNX model in memory"), _written(thing, folder, name), sizes)
    return _live(live(thing), name, folder, feeds, sizes)


def live(thing: Any) -> Live:
    """A user's model behind the common contract. Raises UsageError, with what can be given, and Unavailable."""
    return load_class(LIVE, framework_of(thing))(thing)


def _registered(text: str, name: str, feeds: Sequence[Feed] | None, sizes: dict[str, int]) -> Opened:
    model, _, framework = text.replace(":", "@", 1).partition("@")
    try:
        spec = zoo.spec(model)
    except UsageError as e:
        raise UsageError(f"{e}; a file's name ends in .onnx") from None
    framework = resolve(FRAMEWORKS, framework or defaults(FRAMEWORKS)[0], "framework")
    weights = zoo.weights_file(spec)
    batch = len(feeds[0][0]) if feeds else sizes.get("batch", 1)
    made, _, _ = exports.export(framework, spec, weights, batch, os.cpu_count() or 1)
    row = FRAMEWORKS[framework]

    def make_live() -> Live:  # called when there is an opened one
        native: Live
        if row.environment:
            native = Isolated(framework, spec, weights, batch)
        else:
            with np.load(weights, allow_pickle=False) as data:
                values = {k: data[k] for k in data.files}
            native = load_class(LIVE, row.variant_of or framework).from_spec(spec, values, batch)
        native.place(opened.graph.constants)
        return native

    opened = _opened(Subject(name, f"{model} exported by {framework}"), Path(made.path), sizes, make_live)
    return opened


def _live(model: Live, name: str, folder: Path, feeds: Sequence[Feed] | None, sizes: dict[str, int]) -> Opened:
    feed = list(feeds[0]) if feeds else _zeros(model, name, sizes)
    path = _written(model.export(feed), folder, name)
    return _opened(Subject(name, model.kind, notes=tuple(model.notes)), path, sizes, lambda: model)


def _zeros(model: Live, name: str, sizes: Mapping[str, int]) -> list[np.ndarray]:
    shapes = model.shapes()
    if shapes is None:
        raise UsageError(f"{name}: a {model.kind} does not tell the shapes of its inputs: give inputs")
    found = []
    for i, shape in enumerate(shapes):
        if None in shape[1:]:
            raise UsageError(f"{name}: input {i} has the shape {shape}, where only the batch may be open: give inputs")
        found.append(np.zeros([sizes.get("batch", 1) if n is None else n for n in shape], np.float32))
    return found


def _written(model: onnx.ModelProto, folder: Path, name: str) -> Path:
    """The model as a file of its own in ``folder``, whose name no subject's name can lead out of it."""
    try:
        data = model.SerializeToString()
    except (ValueError, EncodeError, DecodeError) as e:  # protobuf's own limit
        raise ModelError(f"{name} is over the 2 GB of one ONNX file: save it with external data, give the path") from e
    stem = re.sub(r"[^\w.-]+", "_", name).strip(".") or "model"
    tries = (folder / f"{stem}{f'-{i}' if i else ''}.onnx" for i in range(10**6))
    path = next(p for p in tries if not p.exists())
    with files.atomic(path) as part:
        part.write_bytes(data)
    return path


def _opened(
    subject: Subject, path: Path, sizes: Mapping[str, int], make_live: Callable[[], Live] | None = None
) -> Opened:
    graph = loading.load(path, sizes)
    told = replace(subject, path=str(path), sha256=files.sha256(path), notes=(*subject.notes, *graph.notes))
    return Opened(told, graph, path, interface(subject.name, path, graph), make_live)


def open_all(
    subjects: Mapping[str, Any],
    folder: Path,
    feeds: Sequence[Feed] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> list[Opened]:
    """Open all that is compared, in its order. What one does not tell is taken from the others: the shapes of a live
    model's inputs, and the sizes that a file leaves open.

    Parameters
    ----------
    subjects
        Name -> thing, as :func:`open_subject` takes it.
    folder, sizes
        As there.
    feeds
        Given inputs, in the order and layout of the first subject.

    Raises
    ------
    UsageError, ModelError, Unavailable, Unsupported, XframeError
        As :func:`open_subject`.
    """
    first, *_ = subjects
    known: list[tuple[int, ...]] | None = [np.shape(x) for x in feeds[0]] if feeds else None
    sizes = dict(sizes or {})
    if known and known[0] and "batch" not in sizes:
        sizes["batch"] = known[0][0]
    found: dict[str, Opened] = {}
    waiting: dict[str, Live] = {}
    for name, thing in subjects.items():
        if _is_live(thing):
            model = live(thing)
            if model.shapes() is None and not (name == first and feeds):
                waiting[name] = model
            else:
                found[name] = _live(model, name, folder, feeds if name == first else None, sizes)
        else:
            found[name] = open_subject(thing, name, folder, None, sizes)
    if known is None:
        fixed = [o for o in found.values() if not any(p.free for p in o.interface.inputs)] or list(found.values())
        known = [p.shape or () for p in fixed[0].interface.inputs] if fixed else None
    if known is None:
        raise UsageError(f"{first}: a {waiting[first].kind} does not tell the shapes of its inputs: give inputs")
    for name, opened in found.items():
        asked = _sizes(opened.interface, known)
        if any(sizes.get(k, 1) != n for k, n in asked.items()):
            found[name] = _opened(replace(opened.subject, notes=()), opened.path, asked | sizes, opened.make_live)
    for name, model in waiting.items():
        found[name] = _live(model, name, folder, [_fitting(model, known)], sizes)
    return [found[name] for name in subjects]


def _is_live(thing: Any) -> bool:
    return not isinstance(thing, str | os.PathLike | onnx.ModelProto)


def _sizes(found: Interface, known: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """What the open sizes of a model must be for inputs of the ``known`` shapes; only the batch where the layout may be
    another one."""
    asked: dict[str, int] = {}
    for port, shape in zip(found.inputs, known, strict=False):
        if port.shape is None or len(port.shape) != len(shape):
            continue
        alike = all(i in port.free or n == m for i, (n, m) in enumerate(zip(port.shape, shape, strict=True)))
        for i, name in port.free.items():
            if name and (alike or i == 0):
                asked.setdefault(name, shape[i])
    return asked


def _fitting(model: Live, known: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Zeros of the known shapes; with the channels at the other end where the model runs on no others."""
    reason: XframeError | None = None
    for axes in ((0, 1, 2, 3), (0, 3, 1, 2), (0, 2, 3, 1)):
        feed = [np.zeros([s[i] for i in axes] if len(s) == 4 else s, np.float32) for s in known]
        try:
            model.run(feed)
        except XframeError as e:
            reason = reason or e
        else:
            return feed
    assert reason is not None
    raise reason
