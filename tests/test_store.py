"""Result files: complete, atomic, and refused in words when broken."""

import contextlib
import io
import json
import math
import os
from dataclasses import replace

import pytest

from tests import report_samples
from xframe import store
from xframe.analysis.changes import changes
from xframe.analysis.decomposition import explained
from xframe.errors import UsageError, XframeError
from xframe.report import csv_rows, diff_terminal
from xframe.report.markdown import markdown
from xframe.report.trace import trace
from xframe.results import LayerWork, Level, Machine, Measurement, Run
from xframe.store import ROW_KEYS, SCHEMA
from xframe.types import (
    Artifact,
    Case,
    ConvSite,
    Kernel,
    Outcome,
    Plan,
    Profile,
    Rounding,
    SiteRecord,
    Span,
    TensorInfo,
    Tuned,
)

SITE = ConvSite(1, 3, (8, 8), 4, (3, 3), stride=(2, 2))
PLAN = Plan("winograd", ((SITE, "gemm"),), ((SITE, "stride 2"),))
TENSOR = TensorInfo("x", (1, 3, 8, 8), "float32", "NCHW")
ARTIFACT = Artifact("/a.onnx", "ab", "tiny", "jax", "0.10", 17, (TENSOR,), (TENSOR,), (("conv", SITE),))
GOOD = Measurement(
    Case("tiny", "jax", "tvm", PLAN, "cpu", 1, 2, ARTIFACT, options=(("arena", "off"),)),
    Outcome.OK,
    rounds=((0.004, 0.001), (0.002, 0.003)),
    seconds={"compile": 1.5, "build": 2.0},
    sites=(SiteRecord(SITE, "conv", "gemm", "gemm", "", Rounding(27), "template"), SiteRecord(SITE, "c", None, None)),
    profiles=(
        Profile(
            0.002,
            (Kernel("k", 0.0, 0.001, SITE, "pad", "conv", "c1", "wino"),),
            (Span("s", 0.0, 0.001, "python"),),
            1e-5,
        ),
    ),
    plain=(0.0019, 0.002),
    error=1e-6,
    error_bound=1e-5,
    error_ratio=0.1,
    peak_bytes=123,
    environment={"threads": 2},
    prediction={"total_s": 0.002},
    notes=("a note",),
)
BAD = Measurement(Case("tiny", None, "native", Plan(), "cpu", 1, 2), Outcome.MISMATCH, "NaN", error=float("nan"))


def run(*measurements):
    machine = Machine(1e9, (Level("L2", 1e6, 2e9), Level("memory", math.inf, 1e9)))
    layers = (LayerWork("conv", "conv", SITE, 1e6, 100, 20), LayerWork("relu", "activation", None, 0.0, 10))
    head = (SCHEMA, "2026-01-01T00:00:00+00:00", ("xframe", "run"), {"device": "x"})
    return Run(*head, measurements, {2: machine}, {1: layers})


def test_row_of_a_good_measurement():
    row = store.row(GOOD)
    assert set(row) == set(ROW_KEYS)
    assert row["median_s"] == pytest.approx(0.0025)
    assert row["iqr_s"] == pytest.approx(0.0015)
    assert row["samples"] == 4
    assert (row["backend"], row["lowering"], row["outcome"], row["compile_s"]) == ("tvm", "winograd", "OK", 1.5)
    assert (row["max_abs_error"], row["error_bound"], row["error_ratio"]) == (1e-6, 1e-5, 0.1)
    assert row["fallback"] == {SITE.key: "stride 2"}
    assert row["notes"] == ["a note"]
    assert row["schedules"] == [{"site": SITE.key, "name": "conv", "schedule": "template"}]
    assert row["options"] == {"arena": "off"}
    assert row["algorithms"] == [{"site": SITE.key, "lowering": "gemm", "words": "wino"}], "by the plan, and in words"


def test_row_of_a_failure_has_the_same_keys_and_no_made_up_numbers():
    row = store.row(BAD)
    assert set(row) == set(ROW_KEYS)
    assert row["samples"] == 0
    assert row["framework"] is None
    assert row["lowering"] == "auto"
    assert [row[k] for k in ("median_s", "iqr_s", "max_abs_error", "peak_bytes", "compile_s")] == [None] * 5
    assert row["reason"] == "NaN"
    assert row["schedules"] == []


def test_a_wrong_result_has_no_time_though_its_samples_are_kept():
    row = store.row(replace(BAD, rounds=((0.004, 0.001),)))
    assert (row["median_s"], row["iqr_s"], row["samples"]) == (None, None, 2)


def test_what_is_read_is_what_was_written(tmp_path):
    path = store.write(run(GOOD, BAD), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "run.json"
    data = store.read(path)
    assert data == store.read(path.parent)
    good, bad = data["rows"]
    assert good["rounds_s"] == [[0.004, 0.001], [0.002, 0.003]]
    assert good["sites"][0]["site"] == good["profiles"][0]["kernels"][0]["site"] == SITE.key
    assert good["plan"] == PLAN.to_json()
    assert (good["prediction"], bad["prediction"]) == ({"total_s": 0.002}, {})
    assert good["artifact"]["sha256"] == "ab"
    assert bad["rounds_s"] == []
    assert {k: good[k] for k in ROW_KEYS} == store.row(GOOD)
    assert "NaN" not in path.read_text().replace('"reason": "NaN"', "")


def test_what_is_loaded_is_the_run_that_was_written(tmp_path):
    written = run(GOOD, replace(BAD, error=None))
    loaded = store.load(store.write(written, tmp_path))
    assert replace(loaded, measurements=tuple(loaded.measurements)) == replace(
        written, measurements=loaded.measurements
    )
    assert loaded.measurements == written.measurements


def small():
    """A result with a row of each kind, short, so that much can be tried of it."""
    full = report_samples.run()
    kinds = {(m.case.runner, m.outcome, "ablation" in m.environment): m for m in full.measurements}
    loud = {"foreign_load": [0.2], "processes": 1, "group": 2, "provider_options": {"use_tf32": "0"}, **CLOCK}
    rows = [
        replace(m, rounds=tuple(r[:2] for r in m.rounds[:2]), plain=m.plain[:2], profiles=m.profiles[:1])
        for m in kinds.values()
    ]
    tried = next(m for m in rows if "ablation" in m.environment)
    rows.remove(tried)
    first = replace(GOOD, device_rounds=((0.001,),), environment={**GOOD.environment, **loud})
    rows = [first, tried, *rows]
    facts = {**full.environment, "cpu_family": ["a", "1"], "gpus": [{"name": "g", "power_limit_w": 300}]}
    return replace(full, measurements=tuple(rows), environment=facts)


CLOCK = {"device_clock": {"how": "CUDA events behind a gate", "empty_s": 2e-6}}


def test_times_by_the_clock_of_a_gpu_are_kept_and_files_without_them_still_read(tmp_path):
    timed = replace(GOOD, device_rounds=((0.002, 0.001), (0.003,)), environment={**GOOD.environment, **CLOCK})
    path = store.write(run(timed), tmp_path)
    (read,) = store.read(path)["rows"]
    assert (read["device_median_s"], read["device_iqr_s"]) == (0.002, 0.001)
    assert read["device_clock"] == "CUDA events behind a gate; with nothing between them 2.0 us"
    assert store.load(path).measurements == (timed,)
    assert store.row(replace(timed, environment={}))["device_median_s"] is None, "nobody says how they were taken"

    data = json.loads(path.read_text())
    for name in ("device_median_s", "device_iqr_s", "device_clock", "device_rounds_s", "algorithms"):
        del data["rows"][0][name]
    path.write_text(json.dumps(data))
    assert store.load(path).measurements == (replace(timed, device_rounds=()),)


def places(value, rows, path=()):
    """Every place in a JSON value but those of a second item of a list: they are alike, except ``rows``."""
    yield path
    many = value[: rows if path == ("rows",) else 1] if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else enumerate(many):
        yield from places(item, rows, (*path, key))


def changed(text, path, value):
    """The file with another value at a place."""
    data = json.loads(text)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(data)


#: What may be where something else was; a number without a bound, or that is none, is no JSON, and json writes it so.
WRONG = (None, "text", -1, 0, 1.5, math.nan, math.inf, [], {}, True, [None], 10**400)


def test_whatever_is_at_any_place_a_result_is_refused_in_one_sentence_or_can_be_reported(tmp_path):
    """At each place some of the values, other ones from place to place; of what is taken, a part is reported too."""
    path = store.write(small(), tmp_path)
    text, good = path.read_text(), store.load(path)
    every = list(places(json.loads(text), 2))[1:]
    sentences, taken = [], 0
    for number, where in enumerate(every):
        for value in WRONG[number % 4 :: 4]:
            path.write_text(changed(text, where, value))
            try:
                run = store.load(path)
            except XframeError as e:
                sentences.append(str(e))
                continue
            taken += 1
            if taken % 8:
                continue
            try:
                shown(run, good)
            except Exception as e:
                pytest.fail(f"{value!r} at {'.'.join(map(str, where))}: {type(e).__name__}: {e}")
    assert len(sentences) > 2 * taken
    assert all("\n" not in s and str(path) in s for s in sentences)


def shown(run, good):
    """All that is made of a result that was read."""
    found = explained(run)
    for text in (markdown(run, found, "run.json", "ab"), csv_rows.rows(run), csv_rows.decompositions(found)):
        assert "nan" not in text.lower().replace("nanosecond", "")
    trace(run)
    with contextlib.suppress(UsageError):
        diff_terminal.render(changes(good, run, allowed=("cpu",)), io.StringIO())


@pytest.mark.parametrize("value", [None, math.nan, 0, -0.01, "0.01", True, []])
@pytest.mark.parametrize("where", ["rounds_s", "device_rounds_s", "plain_s"])
def test_a_sample_that_is_no_time_is_refused(tmp_path, where, value):
    path = store.write(run(replace(GOOD, device_rounds=((0.001,),))), tmp_path)
    data = json.loads(path.read_text())
    data["rows"][0][where] = [[value]] if where != "plain_s" else [value]
    path.write_text(json.dumps(data))
    with pytest.raises(XframeError, match=r"run\.json (was edited or is damaged|is not a whole JSON file)"):
        store.load(path)


def test_what_is_refused_says_where_and_why(tmp_path):
    path = store.write(run(GOOD), tmp_path)
    path.write_text(changed(path.read_text(), ("rows", 0, "profiles", 0, "kernels", 0, "start"), None))
    with pytest.raises(XframeError) as e:
        store.load(path)
    place = "rows.0.profiles.0.kernels.0.start is null, not a number"
    assert str(e.value) == f"{path} was edited or is damaged: {place}; run it again"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["rows"][0].update(outcome="FINE"),
        lambda data: data["rows"][0].pop("plan"),
        lambda data: data["rows"][0]["profiles"][0].pop("wall"),
        lambda data: data["rows"][0]["profiles"][0]["kernels"][0].update(site="n1"),
        lambda data: data["machines"]["2"].update(levels=[]),
        lambda data: data["layers"].update(one=[]),
    ],
)
def test_a_damaged_value_is_refused_when_it_is_loaded(tmp_path, change):
    path = store.write(run(GOOD), tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(XframeError, match="edited or is damaged"):
        store.load(path)


def test_each_best_plan_has_a_file_with_the_framework_where_it_matters(tmp_path):
    def best(framework, lowering, outcome=Outcome.OK, batch=1):
        plan = Plan("best", ((SITE, lowering),), tuned=(Tuned("task", (6, 2), "[]", "0", framework),))
        case = replace(GOOD.case, plan=plan, framework=framework, batch=batch)
        return replace(GOOD, case=case, outcome=outcome, reason="" if outcome == Outcome.OK else "wrong")

    rows = [
        GOOD,
        best("jax", "gemm"),
        best("pytorch", "gemm"),
        best("tensorflow", "direct"),
        best("jax", "fft", batch=2),
    ]
    store.write(run(*rows, best("jax", "fft", Outcome.MISMATCH, batch=3)), tmp_path)
    found = {p.name: json.loads(p.read_text()) for p in tmp_path.iterdir() if p.name != "run.json"}
    assert all(data["tuned"] == [] for data in found.values())
    plans = {name: data["lowerings"][SITE.key] for name, data in found.items()}
    assert plans == {
        "best-tiny-b1-t2.json": "gemm", "best-tiny-tensorflow-b1-t2.json": "direct", "best-tiny-b2-t2.json": "fft",
    }  # fmt: skip


def test_failure_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch):
    path = store.write(run(GOOD), tmp_path)
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(XframeError, match=r"can't write .*No space left on device"):
        store.write(run(GOOD, BAD), tmp_path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(XframeError) as e:
        store.write(run(GOOD), tmp_path / "file" / "below")
    assert "\n" not in str(e.value)
    assert str(tmp_path) in str(e.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "not a whole JSON file"),
        (lambda text: "", "not a whole JSON file"),
        (lambda text: "[1]", "no schema number"),
        (
            lambda text: text.replace(f'"schema": {SCHEMA}', '"schema": 99'),
            f"has schema 99, this xframe reads {SCHEMA}",
        ),
        (lambda text: json.dumps({"schema": SCHEMA}), "lacks 'created'"),
        (lambda text: text.replace('"iqr_s"', '"other"'), "row 0 lacks iqr_s"),
        (lambda text: json.dumps({**json.loads(text), "rows": {"a": 1}}), "'rows' is not a list"),
    ],
)
def test_broken_files_are_refused(tmp_path, change, words):
    path = store.write(run(GOOD), tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(XframeError, match=words):
        store.read(path)


def test_missing_file_says_what_to_give(tmp_path):
    with pytest.raises(XframeError, match=r"give a run\.json or the folder"):
        store.read(tmp_path)
