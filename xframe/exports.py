"""Framework -> ONNX, in worker processes and kept: the same export is made once."""

import contextlib
import functools
import hashlib
import importlib.util
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from xframe import artifact, environment, files, launch, neutral, onnx_folding, onnx_writer
from xframe.environments import recipes
from xframe.errors import ModelError, XframeError
from xframe.registry import FRAMEWORKS, Row, resolve
from xframe.types import Artifact, ModelSpec
from xframe.worker import wire
from xframe.worker.host import Worker, plugin_row

#: Exports made at the same time; one alone leaves most processors idle.
AT_ONCE = 2
_LIMIT = 900.0  # seconds for one export
_RAW = "export"  # the file in a worker's folder with what is no ONNX model yet


@functools.lru_cache(maxsize=32)
def _file_hash(path: Path, size: int, changed_ns: int) -> str:
    return files.sha256(path)


def _versions(row: Row) -> dict[str, str | None]:
    """Versions of what the plugin needs, without importing it; None where a module is no distribution's name. An
    isolated environment is what its recipe says."""
    if row.environment:
        return {row.environment: recipes.digest(row.environment)}
    out: dict[str, str | None] = {}
    for name in row.needs:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = None
    return out


def _sources(row: Row) -> str:
    """Hash over the Python files beside the plugin (the exporter and its helpers), and of those that write models.

    What takes in models of the user's (``*_live.py``) has no part in exports of ours.
    """
    digest = hashlib.sha256()
    spec = importlib.util.find_spec(row.where.partition(":")[0])
    if spec is not None and spec.origin:
        beside = [p for p in sorted(Path(spec.origin).parent.glob("*.py")) if not p.stem.endswith("_live")]
        for source in [*beside, *(Path(m.__file__ or "") for m in (artifact, neutral, onnx_folding, onnx_writer))]:
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def key(framework: str, spec: ModelSpec, weights_path: Path, batch: int) -> str:
    """What an export depends on, as a hex digest: network, weights, batch, the exporter and its versions."""
    stat, row = weights_path.stat(), FRAMEWORKS[framework]
    parts = [
        framework,
        spec.to_json(),
        _file_hash(weights_path, stat.st_size, stat.st_mtime_ns),
        batch,
        _versions(row),
        _sources(row),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Exports:
    """Exports under way in workers of their own, :data:`AT_ONCE` at a time in the given order; cached ones are there.

    A context manager: leaving it stops those whose result nobody waited for.
    """

    def __init__(self, given: Iterable["Export"]):
        self._exports = {one.framework: one for one in given}
        self._begin_more()

    @property
    def frameworks(self) -> tuple[str, ...]:
        return tuple(self._exports)

    def result(self, framework: str) -> tuple[Artifact, float, bool]:
        """Wait for an export. Returns and raises what :func:`export` does."""
        try:
            return self._exports[framework].result()
        finally:
            self._begin_more()

    def __enter__(self) -> "Exports":
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self._exports.values():
            one.stop()

    def _begin_more(self) -> None:
        for one in self._exports.values():
            if sum(e.worker is not None for e in self._exports.values()) < AT_ONCE and not one.ended:
                with contextlib.suppress(XframeError):  # who asks for its result will see it
                    one.begin()


class Export:
    """One export, cached or made by ``worker``; the parameters are those of :func:`export`, aliases apart.

    ``ended``: there is nothing to begin any more.
    """

    def __init__(self, framework: str, spec: ModelSpec, weights_path: Path, batch: int, threads: int):
        self.framework = framework
        self.worker: Worker | None = None
        self._threads = threads
        self._path = files.home() / "exports" / f"{key(framework, spec, weights_path, batch)}.onnx"
        self._fields: dict[str, Any] = {
            "plugin": plugin_row(FRAMEWORKS, framework),
            "spec": spec.to_json(),
            "weights": weights_path,
            "batch": batch,
            "path": self._path,
        }
        self._cached = _cached(self._path)
        self.ended = self._cached is not None

    def begin(self) -> None:
        if self.worker is None and self._cached is None:
            self.worker = launch.worker(FRAMEWORKS, self.framework, self._threads)
            self.worker.send("export", raw=self.worker.place(_RAW), **self._fields)

    def result(self) -> tuple[Artifact, float, bool]:
        if self._cached is not None:
            return self._cached, 0.0, True
        self.ended = True
        try:
            self.begin()
            assert self.worker is not None
            seconds = _finished(self.worker, self._path, self._fields["batch"])
        finally:
            self.stop()
        return _described(self._path), seconds, False

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.close()
            self.worker = None


def _finished(worker: Worker, path: Path, batch: int | None) -> float:
    """Wait until a worker has exported, and write the model where it could not: seconds that both took."""
    reply = worker.receive(_LIMIT)
    began = time.perf_counter()
    if reply["form"] != "onnx":
        model = onnx_writer.model(reply["form"], worker.place(_RAW), batch)
        artifact.save(model, path, **reply["stamps"])
    return reply["seconds"]["export"] + reply["seconds"]["save"] + time.perf_counter() - began


def _cached(path: Path) -> Artifact | None:
    """The artifact of a cached export: as it was described when it was made, if the file is still the same."""
    if not path.exists():
        return None
    try:
        known = wire.artifact_of(json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))
        if known is not None and known.sha256 == files.sha256(path):
            return replace(known, path=str(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no description, or one of another version
        pass
    try:
        return _described(path)
    except ModelError as e:
        logging.getLogger(__name__).warning("a cached export can't be used, exporting again: %s", e)
        return None


def _described(path: Path) -> Artifact:
    """Load an export, and write beside it what was found."""
    loaded = artifact.load(path)
    with files.atomic(path.with_suffix(".json")) as part:
        part.write_text(json.dumps(wire.plain(loaded)), encoding="utf-8")
    return loaded


def export(
    framework: str, spec: ModelSpec, weights_path: Path, batch: int, threads: int
) -> tuple[Artifact, float, bool]:
    """The network as exported by ``framework``, from the cache or made now.

    Parameters
    ----------
    framework
        A name or alias registered in FRAMEWORKS.
    weights_path
        The npz file with the weights of ``spec``.
    batch
        Fixed in the exported graph.
    threads
        Of the worker that exports.

    Returns
    -------
    artifact, seconds, cached
        ``seconds`` is what exporting and writing took, imports apart; 0 when ``cached``.

    Raises
    ------
    XframeError
        What the framework said, Unavailable where it is not installed.
    """
    framework = resolve(FRAMEWORKS, framework, "framework")
    with Exports([Export(framework, spec, Path(weights_path), batch, threads)]) as under_way:
        return under_way.result(framework)


def convert(framework: str, given: Sequence[Path], output: Path, batch: int | None = None) -> Artifact:
    """Convert a model in a framework's own files to ONNX.

    Parameters
    ----------
    framework
        A name or alias registered in FRAMEWORKS.
    given
        The files, in the order in which the framework takes them.
    output
        The ONNX file to write.
    batch
        To fix it at; None: that of the files.

    Raises
    ------
    ModelError
        The files can't be used.
    XframeError
        What the framework said: Unsupported for what has no ONNX form, Unavailable where it is not installed.
    """
    framework = resolve(FRAMEWORKS, framework, "framework")
    with launch.worker(FRAMEWORKS, framework, len(environment.allowed_cpus())) as worker:
        worker.send(
            "convert",
            plugin=plugin_row(FRAMEWORKS, framework),
            files=[str(Path(path).absolute()) for path in given],
            batch=batch,
            model=Path(given[0]).stem,
            path=Path(output).absolute(),
            raw=worker.place(_RAW),
        )
        _finished(worker, output, batch)
    return artifact.load(output)
