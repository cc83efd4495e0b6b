"""The compiled networks of a folder as jobs of the one measuring loop, judged by what the folder says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xframe import registry, zoo
from xframe.equivalence.verdict import Verdict, judge
from xframe.errors import XframeError
from xframe.jobs import Job
from xframe.prebuilt import folder
from xframe.prebuilt.folder import Entry
from xframe.types import Case, SiteRecord

RUNNER = "tvm"


@contextlib.contextmanager
def running(where: Path) -> Iterator[None]:
    """Within the block the rows of ``tvm`` run what is compiled in ``where``, whose weights are there, too."""
    row, home = registry.BACKENDS[RUNNER], os.environ.get("XFRAME_HOME")
    registry.BACKENDS[RUNNER] = row._replace(where="xframe.backends.tvm_prebuilt:Prebuilt")
    os.environ["XFRAME_HOME"] = str(where.resolve())
    try:
        yield
    finally:
        registry.BACKENDS[RUNNER] = row
        os.environ.pop("XFRAME_HOME")
        if home is not None:
            os.environ["XFRAME_HOME"] = home


def job(where: Path, entry: Entry, device: str, threads: int = 1) -> Job:
    """What measures one entry on ``device``. Raises XframeError where it was not made, or has other inputs here."""
    if entry.reason or entry.artifact is None:
        raise XframeError(f"{entry.name} was not compiled: {entry.reason or 'nothing is there'}")
    feeds = [[zoo.inputs(shape, seed) for shape, seed in feed] for feed in entry.inputs]
    if folder.digest(feeds) != entry.digest:
        raise XframeError(
            f"{entry.name}: numpy {np.__version__} makes other inputs of its seeds than where it was built"
        )
    expected = folder.load_expected(where / entry.name / folder.EXPECTED)
    differ = any(not np.array_equal(a.value, b.value) for a, b in zip(expected[0], expected[-1], strict=True))

    def verdict(outputs: list[list[np.ndarray]], sites: Sequence[SiteRecord]) -> Verdict:
        found = [judge(got, want) for got, want in zip(outputs, expected, strict=True)]
        return max(found, key=lambda v: (not v.ok, v.ratio or 0.0))

    artifact = replace(entry.artifact, path=str((where / entry.name).resolve()))
    case = Case(entry.model, entry.framework, RUNNER, entry.plan, device, entry.batch, threads, artifact)
    return Job(case, None, None, feeds, verdict, differ)
