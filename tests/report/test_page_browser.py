"""The page in a browser: it draws its charts, complains of nothing, asks nobody, fits a phone, and prints."""

import re
import struct
import zlib
from dataclasses import replace

import pytest

from tests import report_samples as samples
from tests.browser import CHROMIUM, Browser
from xframe.analysis.decomposition import explained
from xframe.report.page import Source, page

pytest.importorskip("plotly")
pytest.importorskip("tornado")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page with")

OPENED = "document.documentElement.dataset.drawn !== undefined"
#: For each chart the number of its drawings.
DRAWN = """Object.fromEntries([...document.querySelectorAll('.plot')].map(
    plot => [plot.dataset.figure, plot.querySelectorAll('.main-svg').length]))"""
#: What has the keyboard: the element, what it is, and its frame.
FOCUSED = """(one => [one.tagName, one.getAttribute('href') || one.textContent, getComputedStyle(one).outlineStyle])(
    document.activeElement)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    run = samples.run((1, 16))
    rows = (replace(run.measurements[0], notes=(samples.EVIL,)), *run.measurements[1:])
    run = replace(run, measurements=rows, environment={**run.environment, samples.EVIL: samples.EVIL})
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(run, explained(run), Source("run.json", "0f" * 32)), encoding="utf-8")
    return path


def test_size(path):
    assert path.stat().st_size < 5_000_000


def all_drawn(browser, path, dark):
    """Without a complaint or a request, in the colours of the scheme."""
    drawn = browser.evaluate(DRAWN)
    assert len(drawn) == 16
    assert all(count >= 1 for count in drawn.values()), drawn
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]
    print("ms until the first charts, and until all:", browser.evaluate("({...document.documentElement.dataset})"))
    title = browser.evaluate("getComputedStyle(document.querySelector('.xtitle')).fill")
    assert (title == "rgb(236, 236, 236)") == dark


def test_in_light_colours_and_as_the_scheme_changes(browser, path):
    """All that is asked of one opened page: to draw it takes a second or two."""
    browser.open(path, until=OPENED)
    all_drawn(browser, path, False)
    bars_are_where_their_numbers_are(browser)
    names_run_nothing(browser)
    the_keyboard_reaches_the_results_and_the_tables(browser)
    browser.scheme(True)
    browser.evaluate("new Promise(done => setTimeout(done, 500))")
    assert browser.evaluate("getComputedStyle(document.querySelector('.xtitle')).fill") == "rgb(236, 236, 236)"
    assert browser.complaints == []


def bars_are_where_their_numbers_are(browser):
    count = "document.querySelectorAll('[data-figure=terms-0] .bars .point').length"
    assert browser.evaluate(count) == 4 * 8  # rows, terms
    assert (
        browser.evaluate(
            "document.querySelectorAll('[data-figure=sites-0] .hm image, [data-figure=sites-0] .hm rect').length"
        )
        >= 1
    )


def names_run_nothing(browser):
    assert browser.evaluate("document.scripts.length") == 4  # figures, library, its own, and plotly once inflated
    assert browser.evaluate("document.images.length") == 0


def the_keyboard_reaches_the_results_and_the_tables(browser):
    tab = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
    seen = []
    for _ in range(14):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, **tab)
        seen.append(browser.evaluate(FOCUSED))
    assert seen[0][:2] == ["A", "#main"]
    assert ["SUMMARY", "the numbers of this chart"] in [x[:2] for x in seen]
    assert all(outline != "none" for _, _, outline in seen)


def test_in_dark_colours_and_printed(browser, path, tmp_path):
    browser.open(path, dark=True, until=OPENED)
    all_drawn(browser, path, True)
    browser.pdf(tmp_path / "report.pdf")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 60
    drawn = b"".join(_inflated(s) for s in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL))
    assert b" re\nf" in drawn or b" l\n" in drawn
    assert browser.complaints == []


def test_it_fits_a_phone(browser, path):
    browser.open(path, width=375, height=700, until=OPENED)
    assert browser.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]") == [375, 375]
    assert browser.complaints == []


def test_without_scripts_all_numbers_are_there(browser, path):
    browser.open(path, scripts=False)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    text = browser.evaluate("document.body.innerText")
    assert "Without scripts there are no charts" in text
    assert "conv1: 3x224x224 -> 64, 11x11 /4" in text
    assert browser.requests == [path.as_uri()]


def test_a_browser_that_can_t_inflate_is_told(browser, path):
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    try:
        browser.open(path, until="document.querySelectorAll('.failed').length >= 16")
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    assert "its numbers are below" in browser.evaluate("document.querySelector('.plot').textContent")


def test_a_chart_can_be_a_picture(browser, path, tmp_path):
    browser.picture(path, "terms-0", tmp_path / "terms.png")
    content = (tmp_path / "terms.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG")
    assert width > 1600
    assert 500 < height < 1400


def _inflated(stream):
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""
