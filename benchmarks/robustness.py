"""The checker of equivalence held against pairs with a known answer: planted differences and equal rewrites."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.generator import pairs
from tests.generator.pairs import Pair
from xframe.check.api import check_equivalence
from xframe.equivalence.result import Check, State
from xframe.errors import XframeError

#: Share of equal pairs that may be called different; of planted differences, none may be called equivalent.
FALSE_DIFFERENT = 0.01
SEED = 2026


@dataclass(frozen=True)
class Answer:
    """What the checker said of a pair; ``why`` in one line where it was not what is known."""

    pair: Pair
    number: int
    planted: bool
    said: str  # a state, "refused" for an error in words, "crashed" for any other
    why: str = ""

    @property
    def wrong(self) -> bool:
        """A false "equivalent", a false "different", or a traceback."""
        return self.said in ("crashed", (State.EQUIVALENT if self.planted else State.DIFFERENT).value)


def answer(pair: Pair, number: int, planted: bool, folder: Path, runners: Sequence[str] = ()) -> Answer:
    """The checker's word on one pair, whose files are written to ``folder``."""
    paths = {name: net.save(folder / f"{name}.onnx") for name, net in (("first", pair.first), ("second", pair.second))}
    try:
        check = check_equivalence(paths, pair.feeds, runners=runners)
    except XframeError as e:
        return Answer(pair, number, planted, "refused", str(e))
    except Exception as e:
        return Answer(pair, number, planted, "crashed", f"{type(e).__name__}: {e}")
    expected = State.DIFFERENT if planted else State.EQUIVALENT
    return Answer(pair, number, planted, check.state.value, "" if check.state is expected else reasons(check))


def reasons(check: Check) -> str:
    levels = [v for c in check.comparisons for v in c.levels]
    rows = [r for r in check.runs if r.state is not State.EQUIVALENT]
    found = [f"{v.level.value} {v.state.value}: {v.reason}" for v in levels if v.state is not State.EQUIVALENT]
    found += [f"{r.subject} by {r.runner} {r.state.value}: {r.reason}" for r in rows]
    return "; ".join(found) or "nothing was found"


def answers(
    count: int, redrawn: Counter, runners: Sequence[str] = (), planted: bool = True, seed: int = SEED, keep: str = ""
) -> Iterator[Answer]:
    """``count`` equal pairs and, with ``planted``, as many planted ones. ``keep``: a folder for the wrong ones."""
    sources: list[tuple[bool, Iterable[Pair]]] = [(False, pairs.equal(seed, count))]
    if planted:
        sources.insert(0, (True, pairs.planted(seed, count, redrawn=redrawn)))
    for is_planted, source in sources:
        for number, pair in enumerate(source):
            with tempfile.TemporaryDirectory() as folder:
                found = answer(pair, number, is_planted, Path(folder), runners)
            if keep and found.why:
                _keep(found, Path(keep))
            yield found


def _keep(found: Answer, folder: Path) -> None:
    where = folder / f"{'planted' if found.planted else 'equal'}-{found.number}-{found.said}"
    where.mkdir(parents=True, exist_ok=True)
    found.pair.first.save(where / "first.onnx")
    found.pair.second.save(where / "second.onnx")
    (where / "why.txt").write_text(f"{found.pair.kind}\n{found.why}\n", encoding="utf-8")


def rows(found: Iterable[Answer], redrawn: Counter) -> list[dict[str, Any]]:
    """A row for each kind of plant or rewrite: what was said how often; then one for all planted and one for all equal.

    ``redrawn``: plants that were drawn again, as they stayed within the bound or made no valid network.
    """
    said: dict[tuple[bool, str], Counter] = {}
    for a in found:
        kind = a.pair.kind.split(" + ")[0]
        for key in ((a.planted, kind), (a.planted, "")):
            said.setdefault(key, Counter())[a.said] += 1
    made = []
    for (planted, kind), counts in sorted(said.items(), key=lambda item: (not item[0][0], not item[0][1], item[0][1])):
        row = {"planted": planted, "kind": kind or "all", "pairs": counts.total()}
        row |= {word: counts[word] for word in ("equivalent", "different", "unchecked", "refused", "crashed")}
        row["redrawn"] = redrawn[kind] if kind else redrawn.total()
        made.append(row)
    return made


def reached(row: dict[str, Any]) -> bool:
    """Whether the totals of all planted or all equal pairs are what they must be."""
    if row["planted"]:
        return not row["equivalent"] and not row["crashed"]
    return row["different"] < FALSE_DIFFERENT * row["pairs"] and not row["crashed"]


def line(row: dict[str, Any]) -> str:
    what = "planted" if row["planted"] else "equal"
    counts = "  ".join(f"{word} {row[word]:4}" for word in ("equivalent", "different", "unchecked"))
    more = "".join(f"  {word} {row[word]}" for word in ("refused", "crashed") if row[word])
    redrawn = f"  redrawn {row['redrawn']}" if row["planted"] else ""
    if row["kind"] != "all":
        return f"{what:8} {row['kind']:45} {counts}{more}{redrawn}"
    bar = "no false equivalent" if row["planted"] else f"under {FALSE_DIFFERENT:.0%} false different"
    return (
        f"{what:8} {'all ' + str(row['pairs']):45} {counts}{more}{redrawn}  ({bar}: {'yes' if reached(row) else 'no'})"
    )


def told(found: Iterable[Answer]) -> Iterator[Answer]:
    """The same, with what was wrong, and how far it is, on stderr."""
    start = time.perf_counter()
    for n, a in enumerate(found, 1):
        if a.why:
            what = "planted" if a.planted else "equal"
            print(f"{what} {a.number} ({a.pair.kind}): {a.said}: {a.why}", file=sys.stderr, flush=True)
        if n % 100 == 0:
            print(f"{n} pairs in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        yield a
