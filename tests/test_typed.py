"""Values are held against annotations, at whatever depth, and what is wrong is named by its place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NotRequired, TypedDict

import pytest

from xframe.typed import Misfit, check


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    size: float
    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Outer:
    name: str
    parts: tuple[Inner, ...] = ()
    best: Inner | None = None
    colour: Colour = Colour.RED
    facts: Mapping[str, Any] | None = None


class Known(TypedDict):
    load: Sequence[float]
    count: NotRequired[int]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, float), (1.5, float), (2, int), ("", str), (False, bool), (None, int | None), ([], Sequence[int]),
        ((1, "a"), tuple[int, str]), ({"a": [1.0]}, Mapping[str, Sequence[float]]), (object(), Any),
        ({"load": [], "more": object()}, Known), (Colour.RED, Colour),
        (Outer("a", (Inner(1.0),), Inner(2, (1, 2)), facts={"b": object()}), Outer),
    ],
)  # fmt: skip
def test_what_fits(value, hint):
    check(value, hint)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (True, float, "it is true, not a number"),
        (1.5, int, "it is 1.5, not a whole number"),
        ("a" * 99, Sequence[str], f'it is "{"a" * 59}..., not a list'),
        ("x", int | None, 'it is "x", not a whole number or null'),
        ({"a": [1, None]}, Mapping[str, Sequence[int]], "a.1 is null, not a whole number"),
        ({1: 2}, Mapping[str, int], "1 is 1, not a text"),
        ((1,), tuple[int, int], "it is [1], not a list of 2"),
        ({}, Known, "it is {}, not an object with load"),
        ({"load": 3}, Known, "load is 3, not a list"),
        ("red", Colour, 'it is "red", not one of red'),
        (Outer("a", (Inner(1.0), Inner("b"))), Outer, 'parts.1.size is "b", not a number'),
        (Outer("a", best=Inner(1.0, (1, "c"))), Outer, 'best.place.1 is "c", not a whole number'),
        (Inner(1.0), Outer, "it must have a record Outer"),
    ],
)
def test_what_does_not_is_named_by_its_place(value, hint, words):
    with pytest.raises(Misfit) as e:
        check(value, hint)
    assert words in str(e.value)


def test_a_rule_is_asked_of_every_record_of_its_type_and_the_place_is_told_from_outside():
    rules = {Inner: (lambda one: one.size > 0, "a size above 0")}
    check(Outer("a", (Inner(1.0),)), Outer, rules)
    with pytest.raises(Misfit, match=r"^file\.parts\.0 must have a size above 0$"):
        check(Outer("a", (Inner(0.0),)), Outer, rules, at=("file",))
