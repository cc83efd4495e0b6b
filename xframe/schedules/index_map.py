"""The map of a layout, as TVM writes one into a trace: a graph of objects, in JSON, within the JSON.

TVM makes of such a text whatever objects it names, follows a cycle until its stack ends, believes an inverse that
stands in it, and lets a map through that puts several values in one place. So a text is let through only if it cuts
each variable into parts, as the digits of a number are its parts, and has all of them.
"""

from collections.abc import Sequence
from typing import Any

from xframe.schedules.untrusted import LogError, parsed

#: Objects of a map at most (one of six variables has some 50), and the largest number in it.
MOST_OBJECTS, LARGEST = 200, 1 << 20

_VARIABLE, _NUMBER, _QUOTIENT, _REMAINDER = "ir.Var", "ir.IntImm", "prim.FloorDiv", "prim.FloorMod"
_EXPRESSIONS = (_VARIABLE, _NUMBER, _QUOTIENT, _REMAINDER)
_TYPED = {"span": ("None",), "ty": ("ir.PrimType",)}
_DIVISION = {**_TYPED, "a": _EXPRESSIONS, "b": (_NUMBER,)}
#: By kind of object, its fields, and of which kinds the objects may be that stand there.
_FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    _VARIABLE: {**_TYPED, "name": ("ffi.String",)},
    _NUMBER: {**_TYPED, "value": ("int",)},
    _QUOTIENT: _DIVISION,
    _REMAINDER: _DIVISION,
    "tirx.IndexMap": {
        "initial_indices": ("ffi.Array",),
        "final_indices": ("ffi.Array",),
        "inverse_index_map": ("None",),
    },
}


def check(text: Any, where: str) -> None:
    """Raise LogError unless ``text``, which ``where`` names, is such a map."""
    graph = parsed(text, where) if isinstance(text, str) else None
    if not (isinstance(graph, dict) and set(graph) == {"root_index", "nodes", "metadata"}):
        raise LogError(f"{where} is no graph of objects")
    objects, metadata = graph["nodes"], graph["metadata"]
    if not (isinstance(objects, list) and 0 < len(objects) <= MOST_OBJECTS and isinstance(metadata, dict)):
        raise LogError(f"{where} is no graph of at most {MOST_OBJECTS} objects")
    for place, one in enumerate(objects):
        if not _is_part(one, objects[:place]):
            raise LogError(f"{where} has an object that is no part of such a map")
    last = objects[-1]
    if graph["root_index"] != len(objects) - 1 or last["type"] != "tirx.IndexMap":
        raise LogError(f"{where} does not end in a map")
    before, after = (objects[last["data"][name]]["data"] for name in ("initial_indices", "final_indices"))
    if sorted(before) != [i for i, one in enumerate(objects) if one["type"] == _VARIABLE]:
        raise LogError(f"{where} has not each variable once")
    parts = [_part(objects, place) for place in after]
    if None in parts or any(not _is_whole([p[1:] for p in parts if p and p[0] == v]) for v in before):
        raise LogError(f"{where} has not each part of its variables once")


def _part(objects: Sequence[dict[str, Any]], place: int) -> tuple[int, int, int] | None:
    """``(v, d, m)`` for ``v // d % m`` of the variable at ``v``, ``m`` being 0 where there is no remainder; for the
    number 0 ``(-1, 0, 1)``; else None."""
    kind, data = objects[place]["type"], objects[place]["data"]
    if kind == _VARIABLE:
        return place, 1, 0
    if kind == _NUMBER:
        return None if objects[data["value"]]["data"] else (-1, 0, 1)
    of, by = _part(objects, data["a"]), objects[objects[data["b"]]["data"]["value"]]["data"]
    if of is None or of[0] == -1 or of[2] % by:
        return None
    variable, divisor, modulus = of
    return (variable, divisor * by, modulus // by) if kind == _QUOTIENT else (variable, divisor, by)


def _is_whole(parts: Sequence[tuple[int, int]]) -> bool:
    """Whether these are the parts of one number, each ``(divisor, modulus)``: no digit is missing, or there twice."""
    following = 1
    for divisor, modulus in sorted(part for part in parts if part[1] != 1):
        if divisor != following:
            return False
        following = divisor * modulus
    return following == 0


def _is_part(one: Any, earlier: list[dict[str, Any]]) -> bool:
    """Whether ``one`` is an object of a map, made of ``earlier`` ones, which are."""

    def is_of(place: Any, kinds: tuple[str, ...]) -> bool:
        return type(place) is int and 0 <= place < len(earlier) and earlier[place]["type"] in kinds

    if one == {"type": "None"}:
        return True
    if not (isinstance(one, dict) and set(one) == {"type", "data"} and isinstance(one["type"], str)):
        return False
    kind, data = one["type"], one["data"]
    if kind == "int":
        return type(data) is int and 0 <= data <= LARGEST
    if kind == "ffi.String":
        return isinstance(data, str) and data.isascii() and data.isidentifier() and len(data) <= 40
    if kind == "ir.PrimType":
        return (
            isinstance(data, dict)
            and set(data) == {"span", "dtype"}
            and data["dtype"] == "int32"
            and (is_of(data["span"], ("None",)))
        )
    if kind == "ffi.Array":
        return isinstance(data, list) and all(is_of(place, _EXPRESSIONS) for place in data)
    fields = _FIELDS.get(kind)
    if fields is None or not isinstance(data, dict) or set(data) != set(fields):
        return False
    if not all(is_of(data[name], kinds) for name, kinds in fields.items()):
        return False
    return fields is not _DIVISION or earlier[earlier[data["b"]]["data"]["value"]]["data"] > 0
