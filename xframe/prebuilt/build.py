"""``xframe build``: compile a network for another machine, with what it takes to judge its outputs there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from xframe import environment, exports, planning
from xframe.errors import UsageError, XframeError
from xframe.prebuilt import folder, roofs
from xframe.prebuilt.folder import Entry
from xframe.subject import Subject
from xframe.types import Artifact, Device, Plan
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
    progress: Progress = lambda line: None,
) -> list[Entry]:
    """Compile ``model`` at each batch under each lowering for ``target`` (``sm_90``, ``cuda -arch=sm_90`` or a CPU's).

    What can't be compiled is an entry with its reason. The weights are beside the code, each once. Kernels of a GPU are
    scheduled as those logs say that are of any GPU of its architecture, and what measures its roofs is there, too.

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
    for batch in batches:
        progress(f"{framework}: export, batch {batch}")
        found = exports.export(framework, subject.spec, subject.weights, batch, len(environment.allowed_cpus()))[0]
        for label in lowerings:
            entry = Entry(f"{model}-b{batch}-{label}", model, framework, batch, Plan(label))
            progress(f"{entry.name}: compile for {target}")
            try:
                entries.append(_made(entry, subject, found, target, output, fallback, seed))
            except XframeError as e:
                entries.append(replace(entry, reason=str(e)))
            folder.write(output, target, entries)
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


def _made(
    entry: Entry, subject: Subject, found: Artifact, target: str, output: Path, fallback: str | None, seed: int
) -> Entry:
    from xframe.backends import tvm_prebuilt
    from xframe.lowering.target import Gpu

    sites, arch = [site for _, site in found.conv_sites], tvm_prebuilt.arch(target)
    device = Device("cuda", "cuda", target, arch, 0) if arch else None
    plan = planning.plan(entry.plan.label, sites, device or environment.cpu_device(), fallback)
    if arch:
        plan = planning.Schedules(device=arch).tuned(plan, Gpu.named(arch).multiprocessors)
    plan = replace(plan, target=target)
    records = tvm_prebuilt.write(found, plan, target, output, entry.name)
    feeds = subject.feeds(entry.batch, seed)
    folder.save_expected(output / entry.name / folder.EXPECTED, [subject.exact(feed, records) for feed in feeds])
    seeds = tuple(tuple((tuple(x.shape), seed + k) for x in feed) for k, feed in enumerate(feeds))
    kept = replace(found, path=os.path.join(entry.name, os.path.basename(found.path)))
    return replace(entry, plan=plan, artifact=kept, inputs=seeds, digest=folder.digest(feeds))
