"""The tables of a report's page: every row, why some have no time, all raw samples, what they depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xframe.analysis.labels import words
from xframe.report.algorithm_words import by_site
from xframe.report.page_html import esc, items, table, tag
from xframe.report.page_rows import Entry, Group, counted, ms, options_words
from xframe.results import Machine, Run
from xframe.store import row

#: Samples, and kernel times, that a page holds at most, as text; the others are in the run.json alone, and it says so.
LISTED = 60_000
HEAD = ("#", "framework", "backend", "lowering", "options", "verdict", "median ms", "IQR ms", "n", "x fastest", "error",
        "of bound", "compile s", "peak MB", "prediction ms")  # fmt: skip
#: The column of what a GPU's own clock says, where a row has it.
BY_DEVICE = "device ms"


def origin(run: Run, name: str, sha256: str) -> str:
    """Where the numbers are from."""
    command = " ".join(str(part) for part in run.command)
    lines = [f"from {esc(name)}, SHA-256 {esc(sha256)}", f"made {esc(run.created)}"]
    lines += [f"by {tag('code', esc(command))}"] if command else []
    return tag("p", "; ".join(lines), cls="origin")


def rows(group: Group) -> str:
    """All rows of a group in the order of the run, whatever became of them."""
    fastest = group.ranked[0].median if group.ranked else None
    head = (*HEAD, BY_DEVICE) if any(e.measurement.device_samples for e in group.entries) else HEAD
    cells = [_cells(e, None if e.number in group.apart else fastest)[: len(head)] for e in group.entries]
    return tag("h3", esc(group.title)) + table(head, cells, (0, *range(6, len(head))), f"rows: {group.title}")


def _cells(entry: Entry, fastest: float | None) -> Sequence[str]:
    m, flat = entry.measurement, row(entry.measurement)
    start = [
        _link(entry),
        *(esc(flat[k] or "-") for k in ("framework", "backend", "lowering")),
        esc(options_words(entry.case) or "-"),
        tag("span", esc(m.outcome.value), cls="verdict"),
    ]
    timed = ["-"] * 4
    if entry.ok:
        times = f"{entry.median / fastest:.2f}" if fastest else "-"
        timed = [ms(entry.median), ms(flat["iqr_s"]), str(flat["samples"]), times]
    end = [
        "-" if m.error is None else f"{m.error:.1e}",
        "-" if m.error_ratio is None else f"{m.error_ratio:.2g}",
        "-" if flat["compile_s"] is None else f"{flat['compile_s']:.2f}",
        "-" if m.peak_bytes is None else f"{m.peak_bytes / 1e6:.0f}",
        ms(m.prediction.get("total_s")),
        ms(flat["device_median_s"]),
    ]
    return [*start, *timed, *end]


def notes(groups: Sequence[Group]) -> str:
    """Every reason and note in full; equal ones once, with the rows that they are of."""
    found: dict[str, list[Entry]] = {}
    for group in groups:
        for entry in group.entries:
            for text in texts(entry, group):
                found.setdefault(text, []).append(entry)
    return items(f"{_links(entries)}: {esc(text)}" for text, entries in found.items()) or tag("p", "There are none.")


def texts(entry: Entry, group: Group) -> Iterator[str]:
    """What there is to say of a row of a group."""
    m, flat = entry.measurement, row(entry.measurement)
    if m.reason:
        yield f"{m.outcome.value}: {m.reason}"
    if entry.number in group.apart:
        yield f"not ranked with the others: {group.apart[entry.number]}"
    yield from m.notes
    if by := by_site(m):
        yield f"convolutions: {by}"
    if flat["device_clock"]:
        yield f"{BY_DEVICE}: {flat['device_clock']}"
    refused: dict[str, list[str]] = {}
    for site, why in m.case.plan.fallback:
        refused.setdefault(why, []).append(words(site))
    for why, sites in refused.items():
        yield f"the fallback ran at {'; '.join(sites)}: {why}"
    schedules: dict[str, list[str]] = {}
    for one in flat["schedules"]:
        schedules.setdefault(one["schedule"], []).append(one["name"])
    for schedule, names in schedules.items():
        yield f"schedule of {', '.join(names)}: {schedule}"


def _links(entries: Sequence[Entry]) -> str:
    by_number = {e.number: _link(e) for e in entries}
    return f"row{'s' * (len(by_number) > 1)} {', '.join(by_number.values())}"


def _link(entry: Entry) -> str:
    """The number of a row; it leads to its samples where it has any."""
    number = str(entry.number)
    return tag("a", number, href=f"#row-{number}") if entry.measurement.samples else number


def raw(groups: Sequence[Group]) -> str:
    """Each row's samples in the order in which they were taken, by round, and its profiled passes."""
    entries = [e for g in groups for e in g.entries if e.measurement.samples]
    total = sum(len(e.measurement.samples) for e in entries)
    each = None if total <= LISTED else max(LISTED // len(entries), 1)
    kernels = sum(len(p.kernels) for e in entries for p in e.measurement.profiles)
    passes = None if kernels <= LISTED else LISTED / kernels
    told = "ms, to the nanosecond, in the order in which they were taken; a round is a visit to the row's process."
    body = "".join(_raw(g, e, each, passes) for g in groups for e in g.entries if e.measurement.samples)
    return tag("div", tag("p", told) + body, cls="raw-rows") if entries else ""


def _raw(group: Group, entry: Entry, most: int | None, part: float | None) -> str:
    """``most``: samples of a row; ``part``: of its profiled passes, whose kernels are listed; None: all of them."""
    m = entry.measurement
    title = f"{entry.number}. {entry.name}, {group.title}: {counted(len(m.samples), 'sample')} in"
    title += f" {counted(len(m.rounds), 'round')}"
    parts = [] if entry.ok else [tag("p", esc(f"{m.outcome.value}: these times are of no valid result."))]
    for number, samples in enumerate(m.rounds, 1):
        kept = samples if most is None else samples[: max(most // len(m.rounds), 1)]
        rest = len(samples) - len(kept)
        more = f" and {rest} more, in rows[{entry.number - 1}].rounds_s of the run.json" if rest else ""
        parts.append(tag("p", f"<b>round {number}</b> ({len(samples)}): {_ns(kept)}{more}", cls="raw"))
    if m.device_samples:
        parts.append(tag("p", f"<b>by the device</b> ({len(m.device_samples)}): {_ns(m.device_samples)}", cls="raw"))
    if m.profiles:
        parts.append(
            tag("p", f"<b>profiled passes</b> ({len(m.profiles)}): {_ns([p.wall for p in m.profiles])}", cls="raw")
        )
        parts.append(tag("p", f"<b>of which the profiler</b>: {_ns([p.cost for p in m.profiles])}", cls="raw"))
        parts.append(_kernels(entry, part))
    if m.plain:
        parts.append(tag("p", f"<b>unprofiled steps beside them</b> ({len(m.plain)}): {_ns(m.plain)}", cls="raw"))
    return tag("details", tag("summary", esc(title)) + "".join(parts), id=f"row-{entry.number}")


def _kernels(entry: Entry, part: float | None) -> str:
    """What each kernel of the profiled passes took, one value a pass, in the order of the kernels."""
    profiles = entry.measurement.profiles
    kept = profiles if part is None else profiles[: max(int(part * len(profiles)), 1)]
    found: dict[tuple[str, str, int], list[float]] = {}
    for profile in kept:
        seen: Counter[tuple[str, str]] = Counter()
        for k in profile.kernels:
            found.setdefault((k.layer, k.name, seen[k.layer, k.name]), []).append(k.end - k.start)
            seen[k.layer, k.name] += 1
    lines = (
        tag("p", f"<b>{esc(f'{layer}: {name}' if layer else name)}</b>: {_ns(times)}", cls="raw")
        for (layer, name, _), times in found.items()
    )
    rest = len(profiles) - len(kept)
    more = f"; of {rest} more passes in rows[{entry.number - 1}].profiles of the run.json" if rest else ""
    title = f"{counted(len(found), 'kernel')} of {counted(len(kept), 'profiled pass', 'profiled passes')}{more}"
    return tag("details", tag("summary", title) + "".join(lines)) if found else ""


def _ns(samples: Sequence[float]) -> str:
    return " ".join(f"{s * 1e3:.6f}" for s in samples)


def environment(run: Run) -> str:
    """The machine, its state and the versions, each fact on a line; then what is of single rows."""
    facts = [(k, v) for k, v in flat(run.environment) if not k.startswith("request.")]
    asked = [(k, v) for k, v in flat(run.environment) if k.startswith("request.")]
    machines = [(f"{counted(threads, 'thread')} reach", _reaches(m)) for threads, m in run.machines.items()]
    own: dict[tuple[str, str], list[int]] = {}
    for number, m in enumerate(run.measurements, 1):
        for fact in flat(m.environment):
            own.setdefault(fact, []).append(number)
    count = len(run.measurements)
    of_rows = [(k, v, "all" if len(n) == count else ", ".join(map(str, n))) for (k, v), n in own.items()]
    body = table(("fact", "value"), [[esc(k), esc(v)] for k, v in (*facts, *machines)], label="environment")
    for title, head, cells in (
        ("the request", ("fact", "value"), asked), ("facts of single rows", ("fact", "value", "rows"), of_rows)
    ):  # fmt: skip
        if cells:
            shown = table(head, [[esc(c) for c in line] for line in cells], label=title)
            body += tag("details", tag("summary", title) + shown)
    return body


def _reaches(machine: Machine) -> str:
    """The roofs, and how far they can be trusted."""
    parts = [f"{machine.flop_per_s / 1e9:.1f} GFLOP/s"]
    parts += [f"{level.name} {level.bytes_per_s / 1e9:.1f} GB/s" for level in machine.levels]
    parts += [f"measured while other processes used {machine.load:.1f} CPUs"] if machine.load >= 0.05 else []
    return ", ".join(parts)


def flat(facts: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, str]]:
    """``{"versions": {"jax": "0.10"}}`` -> ``("versions.jax", "0.10")``: every fact by its path."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{start}{key}.")
        else:
            many = isinstance(value, Sequence) and not isinstance(value, str)
            yield f"{start}{key}", ", ".join(map(str, value)) if many else "-" if value is None else str(value)
