"""The checker of equivalence held against pairs with a known answer: planted differences and equal rewrites."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.generator import pairs
from tests.generator.pairs import Pair
from xframe.check.api import check_equivalence
from xframe.check.engine import Engines
from xframe.equivalence.result import Check, State
from xframe.errors import UsageError, XframeError

#: Share of equal pairs that may be called different; of planted differences, none may be called equivalent.
FALSE_DIFFERENT = 0.01
SEED = 2026
#: After how many pairs a line says how far it is.
TOLD = 50
WORDS = ("equivalent", "different", "unchecked", "refused", "crashed")


@dataclass(frozen=True)
class Answer:
    """What the checker said of a pair; ``why`` in one line where it was not what is known.

    ``redrawn``: how many plants were drawn before this one that stayed within the bound or made no valid network.
    """

    kind: str
    number: int
    planted: bool
    said: str  # a state, "refused" for an error in words, "crashed" for any other
    why: str = ""
    redrawn: int = 0

    @property
    def wrong(self) -> bool:
        """A false "equivalent", a false "different", or a traceback."""
        return self.said in ("crashed", (State.EQUIVALENT if self.planted else State.DIFFERENT).value)


@dataclass(frozen=True)
class Questions:
    """Which pairs are asked about, and how.

    ``runners`` execute them, ``keep`` is a folder for those that are not told rightly. ``journal``: a file with a line
    for each answer; what stands there is not asked again. ``share``: (k, n) for the k-th of n processes, which share
    the pairs among them.
    """

    seed: int = SEED
    runners: tuple[str, ...] = ()
    keep: str = ""
    journal: str = ""
    share: tuple[int, int] = (1, 1)

    def answers(self, count: int, planted: bool = True) -> Iterator[Answer]:
        """Of ``count`` equal pairs and, with ``planted``, of as many planted ones before."""
        wanted = [(p, n) for p in ((True, False) if planted else (False,)) for n in range(count)]
        known = {(a.planted, a.number): a for a in self._recorded()}
        yield from (known[key] for key in wanted if key in known)
        first, every = self.share
        with Engines() as engines:
            for is_planted, number in wanted:
                if (is_planted, number) not in known and number % every == first - 1:
                    found = self._ask(is_planted, number, engines)
                    self._record(found)
                    yield found

    def _ask(self, planted: bool, number: int, engines: Engines) -> Answer:
        redrawn: Counter = Counter()
        drawn = pairs.planted(self.seed, 1, (), redrawn, number) if planted else pairs.equal(self.seed, 1, (), number)
        pair = next(drawn)
        with tempfile.TemporaryDirectory() as folder:
            found = answer(pair, number, planted, Path(folder), self.runners, engines)
        if self.keep and found.why:
            _keep(pair, found, Path(self.keep))
        return replace(found, redrawn=redrawn.total())

    def _asked(self) -> dict[str, Any]:
        return {"seed": self.seed, "runners": [*self.runners]}

    def _record(self, found: Answer) -> None:
        if self.journal:
            with open(self.journal, "a", encoding="utf-8") as file:  # in one piece: several processes write here
                file.write("\n" + json.dumps(self._asked() | asdict(found)))

    def _recorded(self) -> list[Answer]:
        """What was asked with the same seed and the same runners.

        Raises
        ------
        UsageError
            The file is no journal.
        """
        if not self.journal or not Path(self.journal).exists():
            return []
        lines, rows = Path(self.journal).read_text(encoding="utf-8").split("\n"), []
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # a line that was cut short is as none
                row = json.loads(line)
                rows.append(({key: row.pop(key) for key in self._asked()}, Answer(**row)))
        if any(lines) and not rows:
            raise UsageError(f"{self.journal} is no journal of answers: name another file")
        return [found for asked, found in rows if asked == self._asked()]


def answer(
    pair: Pair,
    number: int,
    planted: bool,
    folder: Path,
    runners: Sequence[str] = (),
    engines: Engines | None = None,
) -> Answer:
    """The checker's word on one pair, whose files are written to ``folder``."""
    paths = {name: net.save(folder / f"{name}.onnx") for name, net in (("first", pair.first), ("second", pair.second))}
    try:
        check = check_equivalence(paths, pair.feeds, runners=runners, engines=engines)
    except XframeError as e:
        return Answer(pair.kind, number, planted, "refused", str(e))
    except Exception as e:
        return Answer(pair.kind, number, planted, "crashed", f"{type(e).__name__}: {e}")
    expected = State.DIFFERENT if planted else State.EQUIVALENT
    why = "" if check.state is expected else reasons(check)
    return Answer(pair.kind, number, planted, check.state.value, why)


def reasons(check: Check) -> str:
    levels = [v for c in check.comparisons for v in c.levels]
    rows = [r for r in check.runs if r.state is not State.EQUIVALENT]
    found = [f"{v.level.value} {v.state.value}: {v.reason}" for v in levels if v.state is not State.EQUIVALENT]
    found += [f"{r.subject} by {r.runner} {r.state.value}: {r.reason}" for r in rows]
    return "; ".join(found) or "nothing was found"


def _keep(pair: Pair, found: Answer, folder: Path) -> None:
    where = folder / f"{'planted' if found.planted else 'equal'}-{found.number}-{found.said}"
    where.mkdir(parents=True, exist_ok=True)
    pair.first.save(where / "first.onnx")
    pair.second.save(where / "second.onnx")
    (where / "why.txt").write_text(f"{found.kind}\n{found.why}\n", encoding="utf-8")


def rows(found: Iterable[Answer]) -> list[dict[str, Any]]:
    """A row for each kind of plant or rewrite: what was said how often. Also one for all planted, one for all equal."""
    said: dict[tuple[bool, str], Counter] = {}
    for a in found:
        kind = a.kind.split(" + ")[0]
        for key in ((a.planted, kind), (a.planted, "")):
            said.setdefault(key, Counter()).update({a.said: 1, "redrawn": a.redrawn})
    made = []
    for (planted, kind), counts in sorted(said.items(), key=lambda item: (not item[0][0], not item[0][1], item[0][1])):
        row = {"planted": planted, "kind": kind or "all", "pairs": sum(counts[word] for word in WORDS)}
        row |= {word: counts[word] for word in (*WORDS, "redrawn")}
        made.append(row)
    return made


def reached(row: dict[str, Any]) -> bool:
    """Whether the totals of all planted or all equal pairs are what they must be."""
    if row["planted"]:
        return not row["equivalent"] and not row["crashed"]
    return row["different"] < FALSE_DIFFERENT * row["pairs"] and not row["crashed"]


def line(row: dict[str, Any]) -> str:
    what = "planted" if row["planted"] else "equal"
    counts = "  ".join(f"{word} {row[word]:4}" for word in WORDS[:3])
    more = "".join(f"  {word} {row[word]}" for word in WORDS[3:] if row[word])
    redrawn = f"  redrawn {row['redrawn']}" if row["planted"] else ""
    if row["kind"] != "all":
        return f"{what:8} {row['kind']:45} {counts}{more}{redrawn}"
    bar = "no false equivalent" if row["planted"] else f"under {FALSE_DIFFERENT:.0%} false different"
    return (
        f"{what:8} {'all ' + str(row['pairs']):45} {counts}{more}{redrawn}  ({bar}: {'yes' if reached(row) else 'no'})"
    )


def told(found: Iterable[Answer]) -> Iterator[Answer]:
    """The same, with what was wrong, and how far it is, on stderr."""
    start, said = time.perf_counter(), Counter[str]()
    for n, a in enumerate(found, 1):
        if a.why:
            what = "planted" if a.planted else "equal"
            print(f"{what} {a.number} ({a.kind}): {a.said}: {a.why}", file=sys.stderr, flush=True)
        said[a.said] += 1
        if n % TOLD == 0:
            counts = ", ".join(f"{said[word]} {word}" for word in WORDS if said[word])
            print(f"{n} pairs in {time.perf_counter() - start:.0f} s: {counts}", file=sys.stderr, flush=True)
        yield a
