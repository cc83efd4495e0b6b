"""The page: well-formed, nothing loaded, a model's text stays in its place, one cell a layer and column."""

import dataclasses
import re
import shutil
import subprocess

import pytest

from tests import check_samples as samples
from tests.report.parsed import Page
from xframe.equivalence.result import Difference, State
from xframe.report.check_grid import Grid
from xframe.report.check_heat import STEPS, step
from xframe.report.check_page import page

EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\x1b[2J"
FFT = samples.run("b.onnx", "tvm fft", own=5.0, first=4e4, layers=samples.rows(0.1, 1e-5, 0.02, 5, 20, 900, 1e3))


CHECKS = {
    "equal": samples.equal(),
    "unequal": samples.unequal(runs=[samples.run(), FFT], notes=("3 nodes absorbed",)),
    "unchecked": samples.unchecked(),
    "empty": samples.check(),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_page_is_whole_and_needs_nothing_else(name):
    text = page(CHECKS[name])
    shown = Page(text)
    assert text == page(CHECKS[name])
    assert not re.search(r"https?:|//|url\(|@import", text.replace("</", ""))
    assert {tag for tag, _, _ in shown.elements} & {"script", "link", "img", "iframe", "object", "form"} == set()
    assert not any("src" in attrs or "href" in attrs for tag, attrs, _ in shown.elements if tag != "a")
    (policy,) = [attrs["content"] for tag, attrs, _ in shown.elements if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none'")
    ids = [attrs["id"] for _, attrs, _ in shown.elements if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert all(attrs["href"].removeprefix("#") in ids for attrs, _ in shown.all("a"))
    assert len(text) < 50_000


def test_the_verdict_and_the_sentences_are_there():
    shown = Page(page(CHECKS["unequal"]))
    assert [text for _, text in shown.all("h1")] == [
        "≠ NOT equivalent: b.onnx parts from a.onnx at conv2 (Conv): 4e+04 times the bound (also: tvm fft on b.onnx)"
    ]
    assert [text for _, text in shown.all("li")] == [
        "inputs: 2 seeded inputs of N(0, 1), seed 0", "3 nodes absorbed",
        "b.onnx pads 0,0,1,1 where a.onnx pads 1,1,1,1.", "harmless: b.onnx adds the bias of fc in a node of its own.",
        "onnx 1.23.2", "tvm missing",
    ]  # fmt: skip


def test_the_map_has_one_cell_a_layer_and_column_and_each_says_its_number():
    shown = Page(page(CHECKS["unequal"]))
    cells = shown.all("td", "h")
    assert len(cells) == 9 * 2  # 8 layers and an output, b.onnx in float64 and under tvm fft
    assert [text for _, text in shown.all("th") if text.startswith("b.onnx")] == [
        "b.onnxfloat64, against a.onnx", "b.onnxtvm fft, against its own graph"
    ]  # fmt: skip
    tips = {attrs["id"]: text for attrs, text in shown.all("span", "tip")}
    first = [text.removesuffix(tips[attrs["aria-describedby"]]) for attrs, text in cells if "aria-describedby" in attrs]
    assert first == ["0.1", "0.1", "0.1", "1e-05", "× 4e+04", "0.02", "× 3e+04", "× 5", "× 2e+04", "× 20", "× 1e+04",
                     "× 900", "× 9e+03", "× 1e+03", "× 8e+03", "× 7e+03"]  # fmt: skip
    assert [text for attrs, text in cells if "aria-describedby" not in attrs] == ["·", "·"]
    assert (
        "conv2 (Conv) 1x8x7x7, b.onnx float64 against a.onnx: DIFFERENT. output conv2 at [0, 3, 1, 2]" in tips["c2-0"]
    )


def test_colour_is_not_the_only_carrier_and_the_keyboard_reaches_each_cell():
    for attrs, text in Page(page(CHECKS["unequal"])).all("td", "h"):
        classes = attrs["class"].split()
        assert ("beyond" in classes) == text.startswith("×")
        assert attrs.get("tabindex") == "0" or "absent" in classes


@pytest.mark.parametrize(
    ("ratio", "ok", "shown"), [(None, False, "?"), (None, True, "?"), (0.5, True, "?"), (5.0, False, "× 5")]
)
def test_what_was_not_compared_is_no_pass(ratio, ok, shown):
    """One without numbers, or with a reason though it does not differ."""
    row = samples.layer("conv1", "Conv", ratio, reason="its bound is larger than every value", ok=ok)
    one = samples.comparison(states=("equivalent", "equivalent", "unchecked"), layers=(row,), outputs=())
    page_shown = Page(page(samples.check(one, runs=[samples.run(state=State.UNCHECKED, own=None, first=None)])))
    ((attrs, text),) = page_shown.all("td", "h")
    ((_, tip),) = page_shown.all("span", "tip")
    assert text.removesuffix(tip) == shown
    assert ("unknown" in attrs["class"]) == (shown != "× 5")
    states = [text for _, text in page_shown.all("span", "state")]
    assert states == ["? UNCHECKED", "= equivalent", "= equivalent", "? UNCHECKED", "? UNCHECKED"]


@pytest.mark.parametrize(
    ("ratio", "kind"),
    [(0.0, "b4"), (1e-300, "b4"), (5e-4, "b4"), (5e-3, "b3"), (0.05, "b2"), (0.5, "b1"), (1.0, "b1"), (1.0001, "a1"),
     (50, "a2"), (500, "a3"), (1e300, "a4"), (float("inf"), "a4"), (float("nan"), "a4")],
)  # fmt: skip
def test_the_steps_of_the_scale(ratio, kind):
    assert step(ratio) == kind
    assert kind in STEPS


def test_names_from_a_model_stay_text():
    """In every place that a name or a sentence can come to."""
    plain = samples.unequal(runs=[FFT], notes=(EVIL,), inputs=EVIL, environment={EVIL: EVIL, "b": None})
    layers = tuple(samples.layer(EVIL, EVIL, r, b=EVIL, reason=EVIL) for r in (0.5, 7.0))
    difference = Difference(EVIL, EVIL, EVIL)
    (one,) = plain.comparisons
    levels = tuple(dataclasses.replace(v, reason=EVIL, differences=(difference,)) for v in one.levels)
    check = dataclasses.replace(
        plain,
        subjects=tuple(dataclasses.replace(s, name=EVIL, kind=EVIL, path=EVIL, notes=(EVIL,)) for s in plain.subjects),
        comparisons=(dataclasses.replace(one, name=EVIL, levels=levels, layers=layers, outputs=layers),),
        runs=(dataclasses.replace(FFT, subject=EVIL, runner=EVIL, reason=EVIL, blamed=EVIL, layers=layers),),
    )
    text = page(check)
    shown = Page(text)
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert {tag for tag, _, _ in shown.elements} & {"script", "img"} == set()
    assert not any(name.startswith("on") for _, attrs, _ in shown.elements for name in attrs)
    assert any("alert(1)" in text for _, text in shown.all("td"))


def test_rows_of_all_columns_are_in_one_order():
    """A layer that one column alone has stands where it is there; equal names are told apart; own names are mapped."""
    b = samples.comparison("b.onnx", layers=tuple(samples.layer(a, "Conv", 0.1, b=f"{a}_b") for a in "ace"), outputs=())
    c = samples.comparison("c.onnx", layers=tuple(samples.layer(a, "Conv", 0.1) for a in "zabcce"), outputs=())
    run = samples.run("b.onnx", layers=tuple(samples.layer(a, "Conv", 0.1) for a in ("a_b", "d_b", "e_b")))
    grid = Grid.of(samples.check(b, c, runs=[run, samples.run()]))
    assert [name for _, name, _ in grid.keys] == ["z", "a", "d_b", "b", "c", "c", "e"]
    assert [(column.subject, column.runner, len(column.cells)) for column in grid.columns] == [
        ("b.onnx", "", 3), ("c.onnx", "", 6), ("b.onnx", "ort all", 3),
    ]  # fmt: skip


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to draw the page with")
def test_a_browser_draws_it(tmp_path):
    """At the width of a phone; that it draws does not depend on it."""
    (tmp_path / "page.html").write_text(page(CHECKS["unequal"]), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=400,1600"]
    places = [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'shot.png'}"]
    command = [CHROMIUM, *flags, *places, (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shot.png").stat().st_size > 10_000
