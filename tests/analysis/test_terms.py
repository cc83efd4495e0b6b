"""Terms and their differences, part by part and resample by resample."""

import json
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
    assert (term.low, term.high) == pytest.approx(np.percentile([31, 22, 13], [2.5, 97.5]))
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
    assert (found["x"].low, found["x"].high) == (1, 1)  # what both share cancels


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
