"""A check as JSON: every key is there whatever happened, and it is JSON that any reader takes."""

import json

import pytest

from tests import check_samples as samples
from xframe.equivalence.result import State
from xframe.report.check_record import plain

KEYS = {
    "check": {"schema", "state", "exit_code", "verdict", "subjects", "comparisons", "runs", "inputs", "notes",
              "environment"},
    "subject": {"name", "kind", "path", "sha256", "notes"},
    "comparison": {"absorbed", "name", "state", "levels", "layers", "outputs", "first_divergence"},
    "level": {"level", "state", "reason", "differences", "seconds"},
    "difference": {"kind", "where", "text", "harmless"},
    "layer": {"a", "b", "op", "shape", "statistics", "ok", "reason"},
    "run": {"subject", "runner", "state", "reason", "own", "first", "blamed", "layers"},
    "statistics": {"max_abs", "max_rel", "rms", "cosine", "ulps", "ratio", "at", "first", "second", "bound"},
}  # fmt: skip
LAYERED = samples.run("b.onnx", own=4.0, layers=samples.rows(0.1, float("inf")))


def parts(record):
    """(what it is, the dict) for each record in it."""
    yield "check", record
    for kind, found in (
        ("subject", record["subjects"]),
        ("comparison", record["comparisons"]),
        ("run", record["runs"]),
    ):
        yield from ((kind, one) for one in found)
    for one in record["comparisons"]:
        for level in one["levels"]:
            yield "level", level
            yield from (("difference", d) for d in level["differences"])
    layers = [r for one in (*record["comparisons"], *record["runs"]) for r in (*one["layers"], *one.get("outputs", ()))]
    layers += [c["first_divergence"] for c in record["comparisons"] if c["first_divergence"]]
    yield from (("layer", row) for row in layers)
    numbers = [row["statistics"] for row in layers] + [run[k] for run in record["runs"] for k in ("own", "first")]
    yield from (("statistics", s) for s in numbers if s is not None)


@pytest.mark.parametrize("check", [
    samples.equal(), samples.unequal(runs=[samples.run(), LAYERED]), samples.unchecked(), samples.check(),
    samples.check(runs=[samples.run(own=None, first=None, state=State.UNCHECKED)]),
])  # fmt: skip
def test_every_key_is_always_present(check):
    record = json.loads(json.dumps(plain(check), allow_nan=False))
    for kind, part in parts(record):
        assert set(part) == KEYS[kind], kind
    assert record["state"] in ("equivalent", "different", "unchecked")


def test_states_and_levels_are_words_and_what_is_derived_is_there():
    record = plain(samples.unequal())
    (one,) = record["comparisons"]
    assert (record["state"], record["exit_code"], one["state"]) == ("different", 3, "different")
    assert record["verdict"].startswith("NOT equivalent: b.onnx parts from a.onnx at conv2")
    assert [level["level"] for level in one["levels"]] == ["signature", "normal form", "numerics"]
    assert one["first_divergence"]["a"] == "conv2"
    assert one["first_divergence"]["shape"] == [1, 8, 7, 7]
    assert record["environment"] == {"onnx": "1.23.2", "tvm": None}
    assert plain(samples.equal())["comparisons"][0]["first_divergence"] is None


def test_what_is_not_finite_is_null_and_still_not_ok():
    (_, row) = plain(samples.unequal(runs=[LAYERED]))["runs"][0]["layers"]
    assert (row["statistics"]["ratio"], row["ok"]) == (None, False)
