"""The report's page: whole, self-contained, every number there without scripts; nothing from a model breaks out."""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests import report_samples as samples
from tests.report.parsed import Page
from xframe.analysis.decomposition import explained
from xframe.report import page as module
from xframe.report.page import Source, page
from xframe.report.page_tables import LISTED
from xframe.results import Run
from xframe.types import ConvSite, Kernel, Outcome, Span

pytest.importorskip("plotly")
SOURCE = Source("results/run.json", "0f" * 32)
#: Without plotly: the page around it is what is looked at.
STAND_IN = "window.Plotly = {react() {}}; // </script> ü"


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    monkeypatch.setattr(module, "plotly", lambda: STAND_IN)


@pytest.fixture(scope="module")
def text():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "plotly", lambda: STAND_IN)
        run = samples.run((1, 16))
        return page(run, explained(run), SOURCE)


@pytest.fixture(scope="module")
def shown(text):
    return Page(text)


def test_it_is_the_same_each_time(text):
    run = samples.run((1, 16))
    assert page(run, explained(run), SOURCE) == text


def test_it_loads_nothing_and_runs_its_own_two_scripts_alone(text, shown):
    assert not re.search(r"https?:|url\(|@import", text)
    assert {tag for tag, _, _ in shown.elements} & {"link", "img", "iframe", "object", "form", "base"} == set()
    assert not any("src" in attrs for _, attrs, _ in shown.elements)
    assert not any(name.startswith("on") for _, attrs, _ in shown.elements for name in attrs)
    (policy,) = [attrs["content"] for _, attrs, _ in shown.elements if attrs.get("http-equiv")]
    (script,) = [text for attrs, text in shown.all("script") if "type" not in attrs]
    (packed,) = [text for _, text in shown.all("script", id="library")]
    library = gzip.decompress(base64.b64decode(packed)).decode()
    assert library == STAND_IN
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in (script, library)]
    assert policy.split("; ") == [
        "default-src 'none'", "style-src 'unsafe-inline'", "img-src data:", f"script-src {' '.join(hashes)}"
    ]  # fmt: skip


def test_structure(shown):
    (html,) = shown.all("html")
    assert html[0]["lang"] == "en"
    ((_, title),) = shown.all("title")
    assert title == "alexnet on Some CPU: what is fastest, and where the time goes"
    levels = [int(tag[1]) for tag, _, _ in shown.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = [attrs["id"] for _, attrs, _ in shown.elements if "id" in attrs]
    assert len(set(ids)) == len(ids)
    links = [attrs["href"] for attrs, _ in shown.all("a")]
    assert links[0] == "#main"  # past the head, for the keyboard
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert [text for _, text in shown.all("h2")] == [
        "In short", "Times", "Where the time goes", "Convolutions by layer and lowering", "Roofline", "What options do",
        "All rows", "Reasons and notes", "Raw samples", "Environment",
    ]  # fmt: skip
    scrolling = [attrs for tag, attrs, _ in shown.elements if attrs.get("class") in ("scroll", "wide")]
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in scrolling)


def test_each_chart_has_a_figure_words_and_a_table(shown):
    plots = {attrs["data-figure"]: attrs for attrs, _ in shown.all("div", **{"class": "plot"})}
    assert list(plots) == [
        *("times-0", "times-1", "terms-0", "forced-0", "differences-0", "terms-1", "forced-1", "differences-1"),
        *("sites-0", "speedup-0", "sites-1", "speedup-1", "roofline-0", "roofline-1", "options-0", "options-1"),
    ]
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 50 for attrs in plots.values())
    ((_, content),) = shown.all("script", id="figures")
    figures = json.loads(content)
    assert set(figures) == set(plots)
    assert all(f["data"] and f["layout"]["height"] > 100 for f in figures.values())
    assert len(shown.all("figcaption")) == len(shown.all("figure")) == len(plots)
    tables = [text for _, text in shown.all("details") if text.startswith("the numbers of this chart")]
    assert len(tables) == len(plots)
    assert all(len(text) > 100 for text in tables)


def test_every_number_leads_to_raw_samples(shown):
    run = samples.run((1, 16))
    for number, m in enumerate(run.measurements, 1):
        found = shown.all("details", id=f"row-{number}")
        assert len(found) == (1 if m.samples else 0)
        for _, told in found:
            for samples_of_round in m.rounds:
                assert " ".join(f"{s * 1e3:.6f}" for s in samples_of_round) in told
            assert all(f"{p.wall * 1e3:.6f}" in told for p in m.profiles)
            assert all(f"{(k.end - k.start) * 1e3:.6f}" in told for p in m.profiles for k in p.kernels)
    assert SOURCE.name in shown.all("p", **{"class": "origin"})[0][1]
    assert SOURCE.sha256 in shown.all("p", **{"class": "origin"})[0][1]


def test_rows_without_a_time_have_their_reason_in_full_and_no_time(shown):
    told = [text for _, text in shown.all("li")]
    assert "rows 7, 20: UNSUPPORTED: fft can't do conv1: its stride is 4" in told
    assert "rows 8, 21: MISMATCH: output fc8 at [0, 4] is 0.4979, expected -0.5020" in told
    cells = [text for _, text in shown.all("tr")]
    assert any(c.startswith("7pytorchtvmfft-UNSUPPORTED------") for c in cells)


def test_what_the_clock_of_a_gpu_says_stands_beside_with_how_it_was_read():
    first, *others = samples.run().measurements
    clock = {"device_clock": {"how": "CUDA events behind a gate", "empty_s": 2e-6}}
    timed = replace(first, device_rounds=((0.0123,),), environment={**first.environment, **clock})
    shown = Page(page(Run(2, "2026", (), {}, (timed, *others)), (), SOURCE))
    assert sum(text == "device ms" for _, text in shown.all("th")) == 1
    assert sum(text == "12.30" for _, text in shown.all("td")) == 1
    told = [text for _, text in shown.all("li")]
    assert "row 1: device ms: CUDA events behind a gate; with nothing between them 2.0 us" in told
    assert any("12.300000" in text for _, text in shown.all("details", id="row-1"))


def test_every_row_that_picks_its_algorithms_says_which_they_are(shown):
    (told,) = [text for _, text in shown.all("li") if ": convolutions: " in text]
    assert told == "rows 1, 2, 3, 4, 14, 15, 16, 17: convolutions: direct (brgconv:avx512)"


def test_many_samples_are_cut_in_words_and_all_counted():
    rows = [replace(m, rounds=((0.02,) * LISTED, (0.03,) * 10)) for m in samples.run().measurements[:2]]
    text = page(Run(2, "2026", (), {}, tuple(rows)), (), SOURCE)
    assert f"and {LISTED - LISTED // 4} more, in rows[1].rounds_s of the run.json" in text
    assert len(text) < 3_000_000
    assert f'<td class="n">{LISTED + 10}</td>' in text


def test_kernels_stand_by_layer_and_name_a_value_a_pass_and_many_passes_are_cut():
    def shown(*rows):
        text = page(Run(2, "2026", (), {}, rows), (), SOURCE)
        return text, [t for _, t in Page(text).all("details") if re.match(r"\d+ kernels? of", t)]

    first = samples.run().measurements[0]
    kernels = [Kernel("k <b>", i, i + s, layer="fc7") for i, s in enumerate((1e-3, 2e-3))]
    one, two = (replace(first.profiles[0], kernels=tuple(k)) for k in (kernels, kernels[::-1]))
    text, (told,) = shown(replace(first, profiles=(one, two)))
    assert told.startswith("2 kernels of 2 profiled passes")
    assert "fc7: k <b>: 1.000000 2.000000" in told  # by their order in the pass: nothing else tells them apart
    assert "fc7: k <b>: 2.000000 1.000000" in told
    assert "<b>k <b>" not in text
    many = replace(first.profiles[0], kernels=tuple(kernels[:1] * (LISTED // 4)))
    text, (told,) = shown(replace(first, profiles=(many,) * 8))
    assert f"{LISTED // 4} kernels of 4 profiled passes; of 4 more passes in rows[0].profiles of the run.json" in told


@pytest.mark.parametrize("rows", [(), samples.run().measurements[6:8]])
def test_a_run_without_times_or_profiles_says_so(rows):
    run = Run(2, "2026", (), {}, tuple(rows))
    shown = Page(page(run, explained(run), SOURCE))
    assert shown.all("div", **{"class": "plot"}) == []
    paragraphs = [text for _, text in shown.all("p")]
    assert "No kernel of this run is tied to a convolution: its rows have no profile." in paragraphs
    assert any(text.startswith("No roofline: this run has no calibration") for text in paragraphs)
    assert ("This run has no rows." in paragraphs) == (not rows)


def test_names_from_outside_stay_text():
    """In every place that a name or a sentence can come to."""
    evil = samples.EVIL
    run = samples.run()
    site = next(iter(samples.sites().values()))

    def spoiled(m):
        kernels = [replace(k, name=evil, layer=evil, algorithm=evil, role=evil) for k in m.kernels]
        kernels.append(Kernel(evil, 0.0, 1e-4, ConvSite(1, 3, (9, 9), 3, (3, 3)), evil, "conv", evil, evil))
        spans = (Span(evil, 0.0, 1e-3, "python"),)
        profiles = tuple(replace(p, kernels=tuple(kernels), host=spans) for p in m.profiles)
        options = tuple((evil, evil) for _ in m.case.options)
        plan = m.case.plan if m.case.runner != "tvm" else replace(m.case.plan, label=evil, fallback=((site, evil),))
        case = replace(m.case, model=evil, framework=evil, plan=plan, options=options)
        environment = {**m.environment, evil: evil}
        if "ablation" in environment:
            environment["ablation"] = {"set": 0, "step": environment["ablation"]["step"], "changed": {evil: evil}}
            if environment["ablation"]["step"] == "default":
                environment["ablation"]["changed"] = {}
        reason = evil if m.outcome != Outcome.OK else ""
        return replace(m, case=case, profiles=profiles, reason=reason, notes=(evil,), environment=environment)

    layers = {1: tuple(replace(w, name=f"{evil}{i}") for i, w in enumerate(samples.layers()))}
    machine = replace(samples.MACHINE, levels=tuple(replace(x, name=evil) for x in samples.MACHINE.levels))
    bad = replace(
        run, created=evil, command=(evil,), environment={evil: evil, "cpu": evil}, layers=layers, machines={2: machine},
        measurements=tuple(map(spoiled, run.measurements)),
    )  # fmt: skip
    found = [replace(d, title=evil, notes=(evil,)) for d in explained(bad)]
    text = page(bad, found, Source(evil, evil))
    shown = Page(text)
    assert [attrs.get("id", "own") for attrs, _ in shown.all("script")] == ["figures", "library", "own"]
    assert shown.all("img") == []
    assert "\x1b" not in text
    assert not any(name.startswith("on") for _, attrs, _ in shown.elements for name in attrs)
    assert any("alert(1)" in text for _, text in shown.all("td"))
    ((_, content),) = shown.all("script", id="figures")
    assert "<" not in content
    strings = [s for s in _strings(json.loads(content)) if "alert" in s]
    assert strings
    assert not any(re.search(r"<(?!/?b>|br>)", s) for s in strings)  # plotly would take such for tags
    assert not any(
        "%{x}" in s for f in json.loads(content).values() for t in f["data"] for s in [t.get("texttemplate", "")]
    )


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
