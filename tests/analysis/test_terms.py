"""Terms and their differences, part by part and resample by resample."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from xframe.analysis.terms import Decomposition, Term


def values(estimate, *replicates):
    return np.array([estimate, *replicates], dtype=float)


def one(title, *terms, notes=()):
    wall = Term.total("wall", [(t.name, np.array([t.seconds, *t.replicates])) for t in terms], values(0, 0, 0, 0))
    return Decomposition(title, replace(wall, parts=()), terms, 0.5, 0.25, notes, 0.125)


def test_a_total_is_the_sum_of_its_parts_in_every_resample():
    term = Term.total("t", [("a", values(1, 1, 2, 3)), ("b", values(10, 30, 20, 10))], values(0, 0, 0, 0))
    assert term.seconds == 11
    assert [p.seconds for p in term.parts] == [1, 10]
    assert term.replicates.tolist() == [31, 22, 13]  # they move against each other: less than their intervals say
    assert term.high == pytest.approx(np.percentile([31, 22, 13], 97.5))
    assert term.low == 11  # the estimate is never outside
    assert term["b"].seconds == 10
    with pytest.raises(KeyError):
        term["c"]
    assert Term.total("none", [], values(0, 0, 0)).seconds == 0


def test_a_difference_is_that_of_the_resamples():
    a = Term.total("t", [("x", values(3, 1, 5)), ("mine", values(1, 1, 1))], values(0, 0, 0))
    b = Term.total("t", [("theirs", values(2, 2, 2)), ("x", values(1, 0, 4))], values(0, 0, 0))
    found = a.difference(b)
    assert found.seconds == 1
    assert [(p.name, p.seconds) for p in found.parts] == [("x", 2), ("mine", 1), ("theirs", -2)]
    assert found["x"].replicates.tolist() == [1, 1]
    assert (found["x"].low, found["x"].high) == (1, 2)  # what both share cancels; the estimate is 2


def test_without_resamples_the_interval_is_what_both_leave_open():
    a, b = Term("t", 5.0, 4.0, 7.0), Term("t", 2.0, 1.0, 2.5)
    found = a.difference(b)
    assert (found.seconds, found.low, found.high) == (3.0, 1.5, 6.0)


def test_a_difference_of_decompositions():
    a = one("a", Term.of("floor", values(1, 1, 1, 1)), Term.of("quality", values(4, 3, 4, 5)), notes=("both", "one"))
    b = one("b", Term.of("floor", values(1, 1, 1, 1)), Term.of("quality", values(2, 2, 2, 2)), notes=("both", "two"))
    found = a.difference(b)
    assert found.title == "a - b"
    assert found.wall.seconds == found["floor"].seconds + found["quality"].seconds == 2
    assert (found["floor"].low, found["floor"].high) == (0, 0)
    assert found.notes == ("both", "a: one", "b: two")
    assert (found.unattributed, found.perturbation, found.cost) == (0, 0, 0)
    assert a.unattributed_share == 0.1
    with pytest.raises(KeyError):
        found["overhead"]


def convolutions(**terms):
    """Of these parts, two resamples each: the estimate itself."""
    made = [
        Term.total(name, [(part, values(x, x, x)) for part, x in parts.items()], values(0, 0, 0))
        for name, parts in terms.items()
    ]
    return Decomposition("d", Term.of("wall", sum(values(*[t.seconds] * 3) for t in made)), tuple(made))


def test_a_convolution_that_one_row_does_not_tell_apart_is_together_in_the_difference():
    apart = convolutions(algorithm={"conv1": 1.0, "conv2": 2.0}, quality={"conv1": 0.5, "conv2": 0.25})
    partly = convolutions(
        algorithm={"conv1": 3.0}, quality={"conv1": 1.0}, convolutions={"conv2": 5.0, "elsewhere": 1.0}
    )
    whole = convolutions(convolutions={"conv1": 4.0, "conv2": 5.0})

    def told(found):
        assert found.wall.seconds == pytest.approx(sum(t.seconds for t in found.terms))
        return {t.name: {p.name: p.seconds for p in t.parts} for t in found.terms}

    assert told(partly.difference(apart)) == {
        "algorithm": {"conv1": 2.0},
        "quality": {"conv1": 0.5},
        "convolutions": {"conv2": 5 - 2.25, "elsewhere": 1.0},
    }
    assert told(apart.difference(whole)) == {"convolutions": {"conv1": 1.5 - 4, "conv2": 2.25 - 5}}
    assert told(apart.difference(apart)) == {"algorithm": {"conv1": 0, "conv2": 0}, "quality": {"conv1": 0, "conv2": 0}}
    assert partly.term("convolutions").seconds == 6
    assert apart.term("convolutions") is None


def test_an_interval_that_nobody_knows_is_null_in_json():
    found = Term.of("t", values(1, math.nan, math.nan)).to_json()
    assert (found["seconds"], found["low"], found["high"]) == (1.0, None, None)


def test_json_has_all_but_the_resamples():
    made = one("a", Term.total("floor", [("x", values(1, 1, 1, 1))], values(0, 0, 0, 0)), notes=("n",))
    x = {"name": "x", "seconds": 1.0, "low": 1.0, "high": 1.0, "parts": []}
    assert json.loads(json.dumps(made.to_json())) == {
        "title": "a",
        "wall": {**x, "name": "wall"},
        "terms": [{**x, "name": "floor", "parts": [x]}],
        "unattributed_s": 0.5,
        "perturbation_s": 0.25,
        "profiler_s": 0.125,
        "notes": ["n"],
    }
