"""The choices of a template: sampling instructions of its schedule, decided by hand unless something else is asked.

A template is a lowering's schedule. What it does with a loop it may ask its :class:`Knobs`, by name; the answer stands
in the schedule's trace as an instruction of MetaSchedule's, so that the trace replays by its decisions. A knob only
reorders the computation: what the computation is, its :class:`~xframe.lowering.stage.Tile` included, is fixed before.
"""

from collections.abc import Mapping, Sequence

from tvm import s_tir

from xframe.errors import UsageError

#: Parts a thread into which rows may be split, at most.
MOST_PARTS = 16


class Knobs:
    """Answers a template's questions while it schedules with ``sch``.

    ``chosen`` overrides the hand-written choices by name. Afterwards ``space`` has the candidates of each knob, in the
    order of the questions, and ``decided`` the value of each.
    """

    def __init__(self, sch: s_tir.Schedule, chosen: Mapping[str, int] | None = None):
        self._sch, self._chosen = sch, dict(chosen or {})
        self.space: dict[str, tuple[int, ...]] = {}
        self.decided: dict[str, int] = {}

    def __call__(self, name: str, candidates: Sequence[int], by_hand: int):
        """The value of the knob ``name``, as an expression of the schedule; ``by_hand`` is among the candidates.

        Raises
        ------
        UsageError
            What was chosen is not among them.
        """
        values = tuple(sorted({*candidates, by_hand}))
        value = self._chosen.get(name, by_hand)
        if value not in values:
            raise UsageError(f"the knob {name} takes one of {', '.join(map(str, values))}, not {value}")
        self.space[name], self.decided[name] = values, value
        odds = [1 / len(values)] * len(values)
        return self._sch.sample_categorical(list(values), odds, decision=values.index(value))


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def part_sizes(rows: int, threads: int) -> list[int]:
    """Sizes of equal parts of ``rows`` that all threads can share: those that divide it, or all rows."""
    return [d for d in divisors(rows) if d == rows or threads <= rows // d <= MOST_PARTS * threads]
