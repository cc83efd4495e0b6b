"""Framework -> ONNX, in a worker process and kept: the same export is made once."""

import functools
import hashlib
import importlib.util
import json
import logging
from importlib import metadata
from pathlib import Path

from xframe import artifact, files
from xframe.errors import ModelError
from xframe.registry import FRAMEWORKS, Row, resolve
from xframe.types import Artifact, ModelSpec
from xframe.worker.host import Worker, plugin_row

_LIMIT = 900.0  # seconds for one export


@functools.lru_cache(maxsize=32)
def _file_hash(path: Path, size: int, changed_ns: int) -> str:
    return files.sha256(path)


def _versions(row: Row) -> dict[str, str | None]:
    """Versions of what the plugin needs, without importing it; None where a module is no distribution's name."""
    out: dict[str, str | None] = {}
    for name in row.needs:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = None
    return out


def _sources(row: Row) -> str:
    """Hash over the Python files beside the plugin (the exporter and its helpers), and of the one that stamps."""
    digest = hashlib.sha256()
    spec = importlib.util.find_spec(row.where.partition(":")[0])
    if spec is not None and spec.origin:
        for source in [*sorted(Path(spec.origin).parent.glob("*.py")), Path(artifact.__file__)]:
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
    framework, weights_path = resolve(FRAMEWORKS, framework, "framework"), Path(weights_path)
    path = files.home() / "exports" / f"{key(framework, spec, weights_path, batch)}.onnx"
    if path.exists():
        try:
            return artifact.load(path), 0.0, True
        except ModelError as e:
            logging.getLogger(__name__).warning("a cached export can't be used, exporting again: %s", e)
    with Worker(threads) as worker:
        reply = worker.call(
            "export",
            _LIMIT,
            plugin=plugin_row(FRAMEWORKS, framework),
            spec=spec.to_json(),
            weights=weights_path,
            batch=batch,
            path=path,
        )
    return artifact.load(path), reply["seconds"]["export"] + reply["seconds"]["save"], False
