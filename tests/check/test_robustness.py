"""The checker on random pairs with a known answer: the benchmark's robustness part, in small."""

from pathlib import Path

import pytest

from benchmarks import robustness
from tests.generator import pairs
from xframe.equivalence.result import State

#: One of each kind and some more; another seed than the benchmark's.
COUNT, SEED = 40, 7


@pytest.fixture(scope="module")
def found():
    return list(robustness.Questions(SEED).answers(COUNT))


def words(answers):
    return "\n".join(f"{a.number} {a.kind}: {a.said}: {a.why}" for a in answers)


def test_no_planted_difference_is_called_equivalent(found):
    planted = [a for a in found if a.planted]
    assert len(planted) == COUNT
    assert {a.kind for a in planted} == {*pairs.PLANTS}
    assert not any(a.wrong for a in planted), words(a for a in planted if a.wrong)


def test_planted_differences_are_found(found):
    missed = [a for a in found if a.planted and a.said != State.DIFFERENT.value]
    assert not missed, words(missed)


def test_no_equal_pair_is_called_different(found):
    equal = [a for a in found if not a.planted]
    assert len(equal) == COUNT
    assert {a.kind.split(" + ")[0] for a in equal} == {*pairs.REWRITES}
    assert not any(a.wrong for a in equal), words(a for a in equal if a.wrong)


def test_equal_pairs_are_rarely_left_open(found):
    open_ones = [a for a in found if not a.planted and a.said != State.EQUIVALENT.value]
    assert len(open_ones) <= COUNT // 20, words(open_ones)


def test_an_answer_can_be_wrong(tmp_path: Path):
    """The measuring itself: a difference said to be an equal pair, and the other way round, are counted as wrong."""
    (planted,), (equal,) = pairs.planted(SEED, 1), pairs.equal(SEED, 1)
    swapped = [
        robustness.answer(planted, 0, False, tmp_path),
        robustness.answer(equal, 0, True, tmp_path),
    ]
    assert all(a.wrong and a.why for a in swapped)
    totals = [row for row in robustness.rows(swapped) if row["kind"] == "all"]
    assert [robustness.reached(row) for row in totals] == [False, False]
