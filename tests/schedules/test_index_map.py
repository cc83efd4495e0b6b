"""A map of a layout in a log: those of templates are let through, and no text does harm."""

import copy
import json

import pytest

pytest.importorskip("tvm")

from tvm.ir import load_json, save_json
from tvm.tirx import IndexMap, IntImm

from tests.schedules.logs import WHOLE
from tests.schedules.test_hostile import STRANGE
from xframe.schedules import index_map
from xframe.schedules.untrusted import LogError


def written(to) -> str:
    """The map ``to``, a function of variables, as TVM writes it."""
    return save_json(IndexMap.from_func(to, index_dtype="int32"))


def test_the_map_of_these_tests_is_one_of_tvm():
    assert IndexMap.from_func(lambda m, k: (k // 4, m, k % 4), index_dtype="int32").is_equivalent_to(load_json(WHOLE))
    index_map.check(WHOLE, "the layout")


@pytest.mark.parametrize(
    "to",
    [
        lambda m: (m,),
        lambda m, k: (k, m),
        lambda m, k: (m // 8 % 2, k, m // 16, m % 8),
        lambda m, k: (m % 16 // 4, m % 4, m // 16, IntImm("int32", 0), k),
        lambda a, b, c: (a, b // 64, c, b // 8 % 8, b % 8),
    ],
)
def test_a_map_that_keeps_every_value_is_let_through(to):
    index_map.check(written(to), "the layout")


@pytest.mark.parametrize(
    "to",
    [
        lambda m: (m // 2,),
        lambda m: (m % 2,),
        lambda m: (m // 2, m % 4),
        lambda m: (m // 4, m % 2),
        lambda m: (m, m),
        lambda m: (m, m % 2),
        lambda m, k: (m,),
        lambda m, k: (m, k, IntImm("int32", 1)),
        lambda m, k: (m + k,),
        lambda m, k: (m * 2, k),
        lambda m, k: (m - 1, k),
        lambda m, k: (m, m // k),
        lambda m: (m % 6 // 4, m % 4, m // 6),
    ],
)
def test_one_that_loses_values_or_computes_others_is_refused(to):
    with pytest.raises(LogError, match="the layout has"):
        index_map.check(written(to), "the layout")


def places(value, way=()):
    """The ways to all values within a JSON value."""
    yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*way, key))


@pytest.mark.parametrize("strange", [*STRANGE, 2, 5, "ir.Var", "int64", "tirx.PrimFunc"], ids=lambda v: ascii(v)[:20])
def test_no_strange_value_in_it_gets_to_the_compiler(strange):
    """Other numbers and names may be those of another map."""
    graph = json.loads(WHOLE)
    for way in places(graph):
        changed = {"graph": copy.deepcopy(graph)}
        at, last = changed, "graph"
        for key in way:
            at, last = at[last], key
        at[last] = strange
        if way[:1] == ("metadata",) or changed["graph"] == graph:
            continue
        named = len(way) > 1 and graph["nodes"][way[1]]["type"] == "ffi.String" and way[2:] == ("data",)
        if strange in (2, 5) or (named and strange in ("x", "int64")):
            continue
        with pytest.raises(LogError):
            index_map.check(json.dumps(changed["graph"]), "the layout")


@pytest.mark.parametrize("text", [None, 3, [], "", "{", "[]", "{}", WHOLE[:-1], WHOLE.replace("32", "16")], ids=ascii)
def test_what_is_no_text_of_a_map_is_refused(text):
    with pytest.raises(LogError):
        index_map.check(text, "the layout")


def test_a_cycle_is_refused():
    graph = json.loads(WHOLE)
    place = next(i for i, one in enumerate(graph["nodes"]) if one["type"] == "prim.FloorMod")
    graph["nodes"][place]["data"]["a"] = place
    with pytest.raises(LogError, match="no part of such a map"):
        index_map.check(json.dumps(graph), "the layout")


def test_an_inverse_is_refused():
    """TVM would not look whether it is one."""
    graph = json.loads(WHOLE)
    *others, last = graph["nodes"]
    whole = {**last, "data": {**last["data"], "inverse_index_map": len(others)}}
    graph.update(nodes=[*others, last, whole], root_index=len(others) + 1)
    with pytest.raises(LogError, match="no part of such a map"):
        index_map.check(json.dumps(graph), "the layout")
