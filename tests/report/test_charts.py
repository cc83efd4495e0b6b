"""Charts: their numbers are those of the run, signs and intervals kept, nothing dropped without a word."""

import math
from dataclasses import replace
from statistics import median

import pytest

from tests import report_samples as samples
from xframe.analysis.ablations import ablations
from xframe.analysis.decomposition import Decomposition, Term, explained
from xframe.analysis.floors import floors as floors_of
from xframe.report import charts_times
from xframe.report.charts import label
from xframe.report.charts_options import options
from xframe.report.charts_roofline import roofline
from xframe.report.charts_sites import speedup_map, time_map
from xframe.report.charts_terms import rows, terms
from xframe.report.charts_times import times
from xframe.report.page_rows import groups
from xframe.report.page_sites import SiteTimes
from xframe.types import Outcome


@pytest.fixture(scope="module")
def run():
    return samples.run()


@pytest.fixture(scope="module")
def group(run):
    return groups(run)[0]


def test_text_from_outside_is_no_markup():
    assert label("<b>x</b> & %{y}") == "&lt;b&gt;x&lt;/b&gt; &amp; %{y}"
    assert label("one two three", 8) == "one two<br>three"


def test_times_have_every_sample_the_fastest_first(group):
    chart = times(group, "t")
    *strips, medians = chart.data
    rows = group.timed
    assert next(e.case.runner for e in rows) == "tvm"
    assert medians["x"] == [e.median * 1e3 for e in rows] == sorted(medians["x"])
    for strip, entry in zip(strips, rows, strict=True):
        assert sorted(strip["x"]) == sorted(s * 1e3 for s in entry.measurement.samples)
        assert len(set(strip["y"])) == len(entry.measurement.rounds)
    assert "not drawn" not in chart.caption
    assert [row[1] for row in chart.rows] == [e.name for e in rows]
    assert not any(e.tried or e.measurement.outcome != Outcome.OK for e in rows)


def test_what_is_not_drawn_is_counted(group, monkeypatch):
    monkeypatch.setattr(charts_times, "DRAWN", 120)
    chart = times(group, "t")
    drawn = sum(len(strip["x"]) for strip in chart.data[:-1])
    total = sum(len(e.measurement.samples) for e in group.timed)
    assert drawn <= 120
    assert f" {total - drawn} of the dots are not drawn" in chart.caption
    assert all(row[4] == "100" for row in chart.rows)


def test_terms_are_stacked_with_their_signs_and_intervals():
    def term(name, seconds, parts=()):
        return Term(name, seconds, seconds - 1e-4, seconds + 2e-4, parts)

    fc = term("fc6", 5e-3)
    d = Decomposition("a", term("wall", 8e-3), (term("floor", 6e-3, (fc, term("fc7", 1e-3))), term("quality", -1e-3),
                                                term("overhead", 3e-3)))  # fmt: skip
    chart = terms([("a row", d)], "x", "t", "c")
    bars = {t["name"]: t for t in chart.data if t["type"] == "bar"}
    assert {name: t["x"] for name, t in bars.items()} == {"floor": [6.0], "kernel quality": [-1.0], "overhead": [3.0]}
    assert chart.layout["barmode"] == "relative"
    (whiskers,) = [t for t in chart.data if t["type"] == "scatter"]
    assert whiskers["x"] == pytest.approx([6.0, -1.0, 9.0, 8.0])  # ends of the stack, and the whole
    assert whiskers["error_x"]["array"] == pytest.approx([0.2] * 4)
    assert whiskers["error_x"]["arrayminus"] == pytest.approx([0.1] * 4)
    assert chart.head == ("ms", "a row")
    assert [row[0] for row in chart.rows] == ["wall", "floor", "kernel quality", "overhead"]
    assert chart.rows[2] == ("kernel quality", "-1.00 (-1.10 to -0.800)")
    assert [row[1:4] for row in rows("a row", d)] == [
        ("wall", "", "8.00"), ("floor", "", "6.00"), ("floor", "fc6", "5.00"), ("floor", "fc7", "1.00"),
        ("kernel quality", "", "-1.00"), ("overhead", "", "3.00"),
    ]  # fmt: skip
    assert len({(t["marker"]["color"], t["marker"]["pattern"]["shape"]) for t in bars.values()}) == 3


def test_an_interval_that_is_not_known_is_no_line_and_told():
    open_ended = Term("wall", 8e-3, -math.inf, math.inf)
    chart = terms([("a row", Decomposition("a", open_ended, (replace(open_ended, name="floor"),)))], "x", "t", "c")
    assert chart.data[-1]["error_x"]["array"] == chart.data[-1]["error_x"]["arrayminus"] == [None, None]
    assert chart.rows == [("wall", "8.00 (unknown)"), ("floor", "8.00 (unknown)")]


def test_real_decompositions_stack_up_to_their_wall(run):
    found = explained(run)
    chart = terms([(d.title, d) for d in found], "x", "t", "c")
    for i, d in enumerate(found):
        bars = [x for t in chart.data if t["type"] == "bar" for x, y in zip(t["x"], t["y"], strict=True) if y == i]
        assert sum(bars) == pytest.approx(d.wall.seconds * 1e3)


def test_maps_have_each_convolution_and_column(run, group):
    found = SiteTimes.of(group, run.layers[1])
    assert found.columns == ("jax", "ort", "pytorch", "tensorflow", "tvm direct", "tvm winograd")
    shown, faster = time_map(found, "s", "t"), speedup_map(found, "u", "t")
    for chart in (shown, faster):
        (data,) = chart.data
        assert len(data["z"]) == len(data["text"]) == len(chart.rows) == 5
        assert all(len(line) == 6 for line in data["z"])
    assert shown.rows[0][0] == "conv1: 3x224x224 -> 64, 11x11 /4"
    assert all(line[5].endswith("*") for line in shown.data[0]["text"])  # winograd is made the fastest
    assert [line[4] for line in faster.data[0]["text"]] == ["1.00x"] * 5
    site = found.sites[2]
    ratio = found.cells[site, "tvm direct"].seconds / found.cells[site, "jax"].seconds
    assert faster.data[0]["text"][2][0] == f"{ratio:.2f}x"
    assert faster.data[0]["z"][2][0] == pytest.approx(math.log2(ratio))


def test_maps_say_what_a_site_was_computed_by_where_the_column_does_not(run, group):
    shown = time_map(SiteTimes.of(group, run.layers[1]), "s", "t")
    columns = dict(zip(shown.head, shown.rows[0], strict=True))
    assert [columns[c].split()[0] for c in ("ort", "pytorch")] == ["direct"] * 2
    assert len(columns["tvm direct"].split()) == 1
    assert "<b>ort</b> (direct): " in shown.data[0]["hovertext"][0][1]


def test_rows_with_other_options_have_columns_of_their_own(run):
    (first, *_) = [m for m in run.measurements if m.case.runner == "ort"]
    switched = replace(first, case=replace(first.case, options=(("prefer_nhwc", "on"),)))
    (group,) = groups(replace(run, measurements=(first, switched)))
    assert SiteTimes.of(group, run.layers[1]).columns == ("ort", "ort, prefer_nhwc on")


def test_a_fallback_is_in_brackets_and_never_the_best(run, group):
    site = next(iter(samples.sites().values()))

    def refused(m):
        plan = replace(m.case.plan, fallback=((site, "no"),)) if m.case.plan.label == "winograd" else m.case.plan
        return replace(m, case=replace(m.case, plan=plan))

    rows = tuple(map(refused, run.measurements))
    found = SiteTimes.of(groups(replace(run, measurements=rows))[0], run.layers[1])
    assert found.best(site) == "tensorflow"
    assert time_map(found, "s", "t").data[0]["text"][0][5].startswith("(")


def test_no_direct_no_speed_up(run):
    rows = [m for m in run.measurements if m.case.plan.label != "direct"]
    found = SiteTimes.of(groups(replace(run, measurements=rows))[0], ())
    assert speedup_map(found, "u", "t") is None
    assert found.labels[found.sites[0]] == "3x224x224 -> 64, 11x11 /4"


def test_the_roofline_has_each_layer_of_each_row_and_says_which_it_lacks(run, group):
    chart = roofline(group, run.layers[1], samples.MACHINE, "r")
    roofs = [t for t in chart.data if t["mode"] == "lines"]
    assert [t["name"] for t in roofs] == ["L2", "L3", "memory"]
    for roof, level in zip(roofs, samples.MACHINE.levels, strict=True):
        assert roof["y"][0] == pytest.approx(min(216.0, roof["x"][0] * level.bytes_per_s / 1e9))
        assert roof["y"][-1] == pytest.approx(216.0)
    marks = {t["name"]: t for t in chart.data if t["mode"] == "markers"}
    assert len(marks["pytorch"]["x"]) == 8  # the pool has no FLOP: it is in the table alone
    pool = next(r for r in chart.rows if r[:2] == ("pytorch", "pool5"))
    assert pool[4] == "-"
    floors = dict(zip((w.name for w in run.layers[1]), floors_of(run.layers[1], samples.MACHINE), strict=True))
    seconds = next(e for e in group.timed if e.name == "pytorch").measurement.profiles
    took = median(sum(k.end - k.start for k in p.kernels if k.layer == "pool5") for p in seconds)
    assert pool[6] == f"{floors['pool5'][0] / took:.0%}"
    assert len(marks["pytorch ort"]["x"]) == 8  # its layers have names of their own, and are as many
    assert "not shown" not in chart.caption
    point = next(r for r in chart.rows if r[:2] == ("pytorch", "fc6"))
    work = next(w for w in run.layers[1] if w.name == "fc6")
    assert point[5] == f"{work.flop / (work.image_bytes + work.weight_bytes):.2f}"
    assert len({(t["marker"]["color"], t["marker"]["symbol"]) for t in marks.values()}) == len(marks)


def test_layers_of_other_names_are_tied_by_their_order_if_they_are_as_many(run):
    ort = run.measurements[3]
    kernels = tuple(k for k in ort.kernels if k.layer != "node_fc7")
    fewer = replace(ort, profiles=tuple(replace(p, kernels=kernels) for p in ort.profiles))
    for m, count in ((ort, 8), (fewer, 5)):
        (group,) = groups(replace(run, measurements=(m,)))
        chart = roofline(group, run.layers[1], samples.MACHINE, "r")
        assert len(chart.rows) == count + 1  # and the pool
        assert ("Not tied to a layer, and not shown: pytorch ort 3 layers." in chart.caption) == (count == 5)
        assert [row[2] for row in chart.rows if row[1] == "fc7"] == ["fc_f32"] * (count == 8)


def test_what_is_the_same_is_not_drawn_as_what_is_unsure(run):
    def asked(m):
        return replace(m, environment={"ablation": {**m.environment["ablation"], "threshold": 0.9}})

    (one,) = ablations([asked(m) for m in run.measurements if "ablation" in m.environment])
    chart = options(one, "o")
    assert [(bars["name"], bars["y"]) for bars in chart.data] == [("same", [0, 1, 2])]
    assert "A difference up to 90.0% is none." in chart.caption


def test_options_are_held_against_their_defaults(run):
    (one,) = ablations(run.measurements)
    chart = options(one, "o")
    assert [row[:3] for row in chart.rows] == [
        ("layout=channels_last", "alone", "faster"), ("mkldnn=off", "alone", "slower"),
        ("compile=on", "alone", "UNAVAILABLE"), ("layout=channels_last", "together", "faster"),
    ]  # fmt: skip
    faster, slower = chart.data
    assert (faster["name"], faster["y"]) == ("faster", [0, 2])
    assert (slower["name"], slower["y"]) == ("slower", [1])
    assert faster["x"][0] + 1 == pytest.approx(one.settings[0].speedup.value)
    assert slower["x"][0] < 0
