"""The compile table in Markdown: a summary of each network, and its kernels."""

from collections.abc import Iterable, Sequence

from benchmarks.rows import Row, table


def spills(r: Row) -> int:
    """Bytes."""
    return r["spill_stores"] + r["spill_loads"]


def text(found: Sequence[Row]) -> str:
    """The summary of all networks; then for each model and lowering its kernels."""
    different = len({r["code"] for r in found})
    lines = [
        f"{len(found)} kernels of {len(_groups(found, 'model', 'batch', 'lowering', 'arch'))} networks;"
        f" {different} are different.",
        "",
        _summary(found),
    ]
    for (model, lowering), some in _groups(found, "model", "lowering").items():
        lines += ["", f"### {model}, {lowering}", "", _kernels(some)]
    return "\n".join(lines)


def _summary(found: Sequence[Row]) -> str:
    head = ("network", "batch", "lowering", "for", "kernels", "most registers", "most shared", "fewest warps", "stack")
    body = [
        [
            *(str(x) for x in key),
            str(len(some)),
            *(str(most(r[what] for r in some)) for what, most in _EXTREMES.items()),
            str(max(r["stack"] for r in some)),
            str(sum(map(spills, some))),
            "all" if all(r["legal"] for r in some) else "not all",
        ]
        for key, some in _groups(found, "model", "batch", "lowering", "arch").items()
    ]
    return table((*head, "spills", "legal"), body)


_EXTREMES = {"registers": max, "shared": max, "warps": min}


def _kernels(some: Sequence[Row]) -> str:
    """A row a kernel, a column a batch and architecture, with what :func:`_cell` says."""
    columns = _groups(some, "batch", "arch")
    named = {key: {r["name"]: r for r in mine} for key, mine in columns.items()}
    head = ["kernel", *(f"{batch}, {arch}" for batch, arch in columns)]
    names = dict.fromkeys(r["name"] for r in some)
    body = [[n.removesuffix("_kernel"), *(_cell(mine.get(n)) for mine in named.values())] for n in names]
    return table(head, body)


def _cell(r: Row | None) -> str:
    """Threads, registers, shared memory and warps, and what is amiss."""
    if r is None:
        return ""
    parts = [r["threads"], r["registers"], r["shared"], r["warps"]]
    flaws = [f"stack {r['stack']}"] if r["stack"] else []
    flaws += [f"spills {spills(r)}"] if spills(r) else []
    flaws += [] if r["legal"] else ["not legal"]
    return ", ".join([" ".join(map(str, parts)), *flaws])


def _groups(found: Iterable[Row], *keys: str) -> dict[tuple, list[Row]]:
    groups: dict[tuple, list[Row]] = {}
    for r in found:
        groups.setdefault(tuple(r[k] for k in keys), []).append(r)
    return groups
