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
        (True, float, "it is true, and a number is asked for"),
        (1.5, int, "it is 1.5, and a whole number is asked for"),
        ("a" * 99, Sequence[str], f'it is "{"a" * 59}..., and a list is asked for'),
        ("x", int | None, 'it is "x", and a whole number or null is asked for'),
        ({"a": [1, None]}, Mapping[str, Sequence[int]], "a.1 is null, and a whole number is asked for"),
        ({1: 2}, Mapping[str, int], "1 is 1, and a text is asked for"),
        ((1,), tuple[int, int], "it is [1], and a list of 2 is asked for"),
        ({}, Known, "it is {}, and an object with load is asked for"),
        ({"load": 3}, Known, "load is 3, and a list is asked for"),
        ("red", Colour, 'it is "red", and one of red is asked for'),
        (Outer("a", (Inner(1.0), Inner("b"))), Outer, 'parts.1.size is "b", and a number is asked for'),
        (Outer("a", best=Inner(1.0, (1, "c"))), Outer, 'best.place.1 is "c", and a whole number is asked for'),
        (Inner(1.0), Outer, "and a record Outer is asked for"),
    ],
)
def test_what_does_not_is_named_by_its_place(value, hint, words):
    with pytest.raises(Misfit) as e:
        check(value, hint)
    assert words in str(e.value)


def test_a_rule_is_asked_of_every_record_of_its_type_and_the_place_is_told_from_outside():
    rules = {Inner: (lambda one: one.size > 0, "a size above 0")}
    check(Outer("a", (Inner(1.0),)), Outer, rules)
    with pytest.raises(Misfit, match=r"^file\.parts\.0 is .*, and a size above 0 is asked for$"):
        check(Outer("a", (Inner(0.0),)), Outer, rules, at=("file",))
