"""The compiled networks of a folder as jobs of the one measuring loop, judged by what the folder says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xframe import files, registry, zoo
from xframe.equivalence.verdict import Verdict, judge
from xframe.errors import XframeError
from xframe.jobs import Job
from xframe.prebuilt import folder, seeds
from xframe.prebuilt.folder import Entry
from xframe.subject import Feed, Judge, Subject, repeated
from xframe.types import Case, SiteRecord

RUNNER = "tvm"
#: Feeds, the judge of the outputs for them, and whether exact outputs differ between them.
Judged = tuple[Sequence[Feed], Judge, bool]


@contextlib.contextmanager
def running(where: Path) -> Iterator[None]:
    """Within the block the rows of ``tvm`` run what is compiled in ``where``, whose weights are there, too.

    Weights that were left out, as they are seeded, are made there first. Raises XframeError where they are others.
    """
    seeds.restore(where)
    row = registry.BACKENDS[RUNNER]
    registry.BACKENDS[RUNNER] = row._replace(where="xframe.backends.tvm_prebuilt:Prebuilt")
    try:
        with files.home_at(where):
            yield
    finally:
        registry.BACKENDS[RUNNER] = row


def job(where: Path, entry: Entry, device: str, threads: int = 1, judged: Judged | None = None) -> Job:
    """What measures one entry on ``device``, judged as ``judged`` says, which is :func:`of_site` for a convolution.

    None: a network, by the exact outputs that are kept with it, for the inputs that they are of.

    Raises
    ------
    XframeError
        It was not made, or the seeds of its inputs make others here.
    """
    if entry.reason or entry.artifact is None:
        raise XframeError(f"{entry.name} was not compiled: {entry.reason or 'nothing is there'}")
    artifact = replace(entry.artifact, path=str((where / entry.artifact.path).resolve()))
    case = Case(entry.model, entry.framework, RUNNER, entry.plan, device, entry.batch, threads, artifact)
    feeds, verdict, differ = judged or _kept(where, entry)
    return Job(case, None, None, feeds, verdict, differ)


def of_site(path: Path, batch: int) -> Judged:
    """What judges every entry of the convolution that the file holds: a reference that is made of its seeds."""
    subject, order = Subject.of(str(path)), repeated(batch, folder.IMAGES, 0)
    feeds = subject.feeds(batch, 0, order)
    return feeds, *subject.judge(feeds, order)


def _kept(where: Path, entry: Entry) -> Judged:
    feeds = [[zoo.inputs(shape, seed) for shape, seed in feed] for feed in entry.inputs]
    expected = folder.load_expected(where / entry.name / folder.EXPECTED)
    order = repeated(entry.batch, len(feeds[0][0]), 0)
    if order is not None:
        feeds = [[x[order] for x in feed] for feed in feeds]
        expected = [[replace(j, value=j.value[order], bound=j.bound[order]) for j in each] for each in expected]
    if folder.digest(feeds) != entry.digest:
        raise XframeError(
            f"{entry.name}: numpy {np.__version__} makes other inputs of its seeds than where it was built"
        )
    differ = any(not np.array_equal(a.value, b.value) for a, b in zip(expected[0], expected[-1], strict=True))

    def verdict(outputs: list[list[np.ndarray]], sites: Sequence[SiteRecord]) -> Verdict:
        found = [judge(got, want) for got, want in zip(outputs, expected, strict=True)]
        return max(found, key=lambda v: (not v.ok, v.ratio or 0.0))

    return feeds, verdict, differ
