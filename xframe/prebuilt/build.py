"""``xframe build``: compile a network for another machine, with what it takes to judge its outputs there."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xframe import artifact, environment, exports, planning
from xframe.errors import UsageError, XframeError
from xframe.prebuilt import convolution, folder, roofs
from xframe.prebuilt.folder import Entry
from xframe.subject import Subject, repeated
from xframe.types import Artifact, Device, Plan, SiteRecord
from xframe.worker import wire

Progress = Callable[[str], None]


def build(
    model: str,
    framework: str,
    batches: Sequence[int],
    lowerings: Sequence[str],
    target: str,
    output: Path,
    fallback: str | None = "direct",
    seed: int = 0,
    sites: bool = True,
    progress: Progress = lambda line: None,
) -> list[Entry]:
    """Compile ``model`` at each batch under each lowering for ``target`` (``sm_90``, ``cuda -arch=sm_90`` or a CPU's).

    ``sites``: and each of its convolutions by itself at the largest batch, without ``fallback``. What can't be compiled
    is an entry with its reason. The weights are beside the code, each once. Kernels of a GPU are scheduled as those
    logs say that are of any GPU of its architecture, and what measures its roofs is there, too.

    Raises
    ------
    UsageError, ModelError
        The request or the model makes no sense.
    Unavailable
        There is no TVM here, or no compiler for the target.
    """
    subject = Subject.of(model)
    if subject.spec is None or subject.weights is None:
        raise UsageError(f"xframe build takes a registered model, and {model} is a file")
    entries: list[Entry] = []

    def add(entry: Entry, made: Callable[[Entry], Entry]) -> None:
        progress(f"{entry.name}: compile for {target}")
        try:
            entries.append(made(entry))
        except XframeError as e:
            entries.append(replace(entry, reason=str(e)))
        folder.write(output, target, entries)

    for batch in batches:
        progress(f"{framework}: export, batch {batch}")
        found = exports.export(framework, subject.spec, subject.weights, batch, len(environment.allowed_cpus()))[0]
        for label in lowerings:
            entry = Entry(f"{model}-b{batch}-{label}", model, framework, batch, Plan(label))
            add(entry, functools.partial(_network, subject, found, target, output, fallback, seed))
    with tempfile.TemporaryDirectory() as scratch:
        batch = max(batches)
        for layer in (x.name for x in subject.spec.layers if sites and x.op == "conv"):
            path = convolution.write(subject.spec, layer, batch, Path(scratch) / f"{layer}.onnx")
            found = artifact.load(path)
            for label in lowerings:
                entry = Entry(f"{model}-{layer}-b{batch}-{label}", model, None, batch, Plan(label), site=layer)
                add(entry, functools.partial(_site, found, target, output))
    _write_roofs(target, output, progress)
    return entries


def _write_roofs(target: str, output: Path, progress: Progress) -> None:
    """What measures the peak of a GPU there; nothing for a CPU."""
    from xframe.backends import tvm_driverless, tvm_prebuilt
    from xframe.lowering.target import Gpu

    if arch := tvm_prebuilt.arch(target):
        progress(f"roofs: compile for {target}")
        tvm_driverless.ready()
        tvm_driverless.check(roofs.write(Gpu.named(arch), output))


def schedules(output: Path, entry: Entry) -> list[str]:
    """By which records the kernels of a compiled entry are scheduled, or why not, in words; none for templates."""
    from xframe.backends import tvm
    from xframe.lowering.tasks import FIXED, TEMPLATE

    path = output / entry.name / tvm.META
    if entry.reason or not path.is_file():
        return []
    sites = wire.sites_of(json.loads(path.read_text(encoding="utf-8"))["sites"])
    return [f"{s.name}: {s.schedule}" for s in sites if s.schedule not in ("", TEMPLATE, FIXED)]


def _site(found: Artifact, target: str, output: Path, entry: Entry) -> Entry:
    """A compiled convolution; what its outputs must be is found where it runs, as they are large and it is small."""
    return _compiled(entry, found, target, output, None)[0]


def _network(
    subject: Subject, found: Artifact, target: str, output: Path, fallback: str | None, seed: int, entry: Entry
) -> Entry:
    """The compiled network, with the inputs by which it is judged and what its outputs must be."""
    entry, records = _compiled(entry, found, target, output, fallback)
    order = repeated(entry.batch, folder.IMAGES, 0)
    feeds = subject.feeds(entry.batch, seed, order)
    places = slice(None) if order is None else np.unique(order, return_index=True)[1]
    images = [[x[places] for x in feed] for feed in feeds]
    sites = [replace(s, site=replace(s.site, batch=len(images[0][0]))) for s in records]
    folder.save_expected(output / entry.name / folder.EXPECTED, [subject.exact(feed, sites) for feed in images])
    seeds = tuple(tuple((tuple(x.shape), seed + k) for x in feed) for k, feed in enumerate(images))
    return replace(entry, inputs=seeds, digest=folder.digest(feeds))


def _compiled(
    entry: Entry, found: Artifact, target: str, output: Path, fallback: str | None
) -> tuple[Entry, Sequence[SiteRecord]]:
    from xframe.backends import tvm_prebuilt
    from xframe.lowering.target import Gpu

    sites, arch = [site for _, site in found.conv_sites], tvm_prebuilt.arch(target)
    device = Device("cuda", "cuda", target, arch, 0) if arch else None
    plan = planning.plan(entry.plan.label, sites, device or environment.cpu_device(), fallback)
    if arch:
        plan = planning.Schedules(device=arch).tuned(plan, Gpu.named(arch).multiprocessors)
    plan = replace(plan, target=target)
    records = tvm_prebuilt.write(found, plan, target, output, entry.name)
    kept = replace(found, path=os.path.join(entry.name, tvm_prebuilt.GRAPH))
    return replace(entry, plan=plan, artifact=kept), records
