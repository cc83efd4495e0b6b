"""Do values have the types that their records declare? Asked of what was read from a file that anybody may have edited.

Annotations are the one description of a record: what they say is what is checked, so that nothing is said twice.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

#: A check of a value and all that it holds; it raises :class:`Misfit`.
Check = Callable[[Any], None]
#: What must be true of every record of a type, and what is asked for, in words.
Rules = Mapping[type, tuple[Callable[[Any], bool], str]]
_NAMES = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", types.NoneType: "null"}
#: Letters shown of a value that is wrong.
_SHOWN = 60


class Misfit(ValueError):
    """A value that is not what its place asks for. ``path``: of that place, from outside."""

    def __init__(self, expected: str, found: Any, path: Sequence[str] = ()):
        self.expected, self.found, self.path = expected, found, tuple(path)
        text, place = _json(found), ".".join(self.path) or "it"
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        whole = dataclasses.is_dataclass(found)  # what is wrong with a whole record its words do not show
        super().__init__(f"{place} must have {expected}" if whole else f"{place} is {shown}, not {expected}")


def check(value: Any, hint: Any, rules: Rules | None = None, at: Sequence[str] = ()) -> None:
    """See that ``value`` is what the annotation ``hint`` says, and so is all that it holds.

    Parameters
    ----------
    hint
        Records (data classes), typed dictionaries, enumerations, ``Mapping``, ``Sequence``, ``tuple``, an alternative
        (``X | None``), the plain types, and ``Any``, of which nothing is asked.
    rules
        What else is asked of each record of a type.
    at
        The place of ``value``, from outside.

    Raises
    ------
    Misfit
        It is something else; the message says what, and where.
    """
    run = _of(hint, tuple((rules or {}).items()))
    try:
        run(value)
    except Misfit as e:
        raise Misfit(e.expected, e.found, (*at, *e.path)) from None


@functools.cache
def _of(hint: Any, rules: tuple[Any, ...]) -> Check:
    inner = functools.partial(_of, rules=rules)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: None
    if origin in (typing.Union, types.UnionType):
        return _either([inner(a) for a in args], " or ".join(_name(a) for a in args))
    if origin is tuple and args[-1:] != (...,):
        return _fixed([inner(a) for a in args])
    if origin in (tuple, list, Sequence):
        return _many(inner(args[0]))
    if origin in (dict, Mapping):
        return _table(inner(args[0]), inner(args[1]))
    if typing.is_typeddict(hint):
        checks = {name: inner(h) for name, h in typing.get_type_hints(hint).items()}
        return _keyed(checks, hint.__required_keys__)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        fields = {name: inner(h) for name, h in typing.get_type_hints(hint).items()}
        return _record(hint, fields, dict(rules).get(hint))
    return _plain(hint)


def _plain(kind: type) -> Check:
    """A number is whole or not; true and false are none."""
    kinds = (int, float) if kind is float else (kind,)

    def run(value: Any) -> None:
        if type(value) not in kinds:
            raise Misfit(_name(kind), value)

    return run


def _either(checks: Sequence[Check], expected: str) -> Check:
    def run(value: Any) -> None:
        deepest: Misfit | None = None
        for one in checks:
            try:
                return one(value)
            except Misfit as e:
                deepest = e if e.path else deepest
        raise deepest or Misfit(expected, value)

    return run


def _many(one: Check) -> Check:
    def run(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise Misfit("a list", value)
        for i, item in enumerate(value):
            _within(str(i), one, item)

    return run


def _fixed(checks: Sequence[Check]) -> Check:
    def run(value: Any) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            raise Misfit(f"a list of {len(checks)}", value)
        for i, (one, item) in enumerate(zip(checks, value, strict=True)):
            _within(str(i), one, item)

    return run


def _table(key: Check, one: Check) -> Check:
    def run(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Misfit("an object", value)
        for name, item in value.items():
            _within(str(name), key, name)
            _within(str(name), one, item)

    return run


def _keyed(checks: Mapping[str, Check], required: frozenset[str]) -> Check:
    """An object of which some keys are known; the others may be anything."""

    def run(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Misfit("an object", value)
        if missing := sorted(required - value.keys()):
            raise Misfit(f"an object with {', '.join(missing)}", value)
        for name, one in checks.items():
            if name in value:
                _within(name, one, value[name])

    return run


def _record(kind: type, fields: Mapping[str, Check], rule: tuple[Callable[[Any], bool], str] | None) -> Check:
    def run(value: Any) -> None:
        if not isinstance(value, kind):
            raise Misfit(f"a record {kind.__name__}", value)
        for name, one in fields.items():
            _within(name, one, getattr(value, name))
        if rule is not None and not rule[0](value):
            raise Misfit(rule[1], value)

    return run


def _within(place: str, one: Check, value: Any) -> None:
    try:
        one(value)
    except Misfit as e:
        raise Misfit(e.expected, e.found, (place, *e.path)) from None


def _name(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(str(x.value) for x in hint)}"
    return _NAMES.get(hint, "a list" if typing.get_origin(hint) in (tuple, list, Sequence) else "an object")


def _json(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
