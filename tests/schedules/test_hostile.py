"""Whatever stands in a log, reading it ends in a log or in one sentence: values of every kind in every place."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules.logs import forged, log, relined, retraced, saved
from xframe.schedules.log import FILES, RECORDS, WORKLOADS, LogError, read

STRANGE = [
    None,
    True,
    0,
    -1,
    1 << 80,
    1e308,
    -0.0,
    "",
    "x",
    "../x",
    "\x00",
    "\ud800",
    "é" * 600,
    [],
    [[]],
    {},
    {"a": 1},
    [None],
]
#: Where a value may stand: its path in meta.json.
PLACES = [
    *((key,) for key in ("schema", "device", "tvm", "target", "passes", "entries")),
    *(("device", key) for key in log().device.to_json()),
    ("device", "caches", "L1"),
    ("device", "features", 0),
    ("entries", 0),
    *(
        ("entries", 0, key)
        for key in ("task", "tile", "workload", "knobs", "space", "seconds", "baseline", "share", "flop")
    ),
    *(("entries", 0, key) for key in ("created", "seed", "trials", "session", "transferred", "xframe")),
    *(("entries", 0, key, 0) for key in ("tile", "seconds", "baseline")),
    ("entries", 0, "knobs", "unroll"),
]


def ends_well(folder):
    """Whether the log is read; refused, it must be in a sentence."""
    try:
        read(folder)
        return True
    except LogError as e:
        message = str(e)
    assert message.isprintable()
    assert len(message) < 700
    return False


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """The bytes of a log's files, by name."""
    folder = saved(tmp_path_factory.mktemp("log"))
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def fresh(contents, tmp_path):
    """Gives the folder of a good log, as often as it is called."""

    def make():
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return make


@pytest.mark.parametrize("place", PLACES, ids=lambda p: ".".join(map(str, p)))
def test_a_strange_value_is_refused_or_harmless(fresh, place):
    taken = []
    for value in STRANGE:

        def put(meta, value=value):
            *way, last = place
            for step in way:
                meta = meta[step]
            meta[last] = value

        if ends_well(forged(fresh(), put)):
            taken.append(value)
    assert len(taken) < len(STRANGE) // 2


@pytest.mark.parametrize("name", [WORKLOADS, RECORDS])
def test_a_strange_line_is_refused(fresh, name):
    for value in STRANGE:
        for line in (
            json.dumps(value),
            json.dumps([0, value]),
            json.dumps([value, value]),
            json.dumps([0, [value] * 4]),
        ):
            assert not ends_well(relined(fresh(), name, lambda _, line=line: [line]))


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_byte_that_changed_is_noticed(contents, tmp_path_factory, name, data):
    """Unless it is no more than another way to write the same JSON."""
    folder, content = tmp_path_factory.mktemp("log"), bytearray(contents[name])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255).filter(lambda b: b != content[at]))
    for one, good in contents.items():
        (folder / one).write_bytes(bytes(content) if one == name else good)
    assert not ends_well(folder) or read(folder) == log()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_ends_early_is_noticed(fresh, contents, name):
    folder = fresh()
    for length in range(0, len(contents[name]) - 1, 7):
        (folder / name).write_bytes(contents[name][:length])
        assert not ends_well(folder)


@pytest.mark.parametrize("value", STRANGE, ids=ascii)
def test_a_strange_trace_is_refused_or_left_to_the_compiler(fresh, value):
    """It checks types by itself; what must not get there are other instructions, and some with such arguments."""
    checked = ("Annotate", "Tensorize", "TransformLayout")
    told = [
        [name, *rest] for name in checked for rest in ([value] * 3, [[], [value], []], [[value] * 2, [value] * 4, []])
    ]
    for instruction in (value, [value] * 4, *told):
        assert not ends_well(retraced(fresh(), instruction))
    few = type(value) is int and abs(value) < 1024
    assert ends_well(retraced(fresh(), ["StorageAlign", ["b0"], [value] * 4, []])) == few
    assert ends_well(retraced(fresh(), ["GetSBlock", [value], ["product", value], ["b0"]]))


def test_the_log_that_all_this_is_done_to_is_fine(fresh):
    assert ends_well(fresh())
    assert read(fresh()) == log()
