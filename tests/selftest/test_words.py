"""The table of the self-test."""

import io

from xframe.selftest import words
from xframe.selftest.verdict import Finding

FOUND = Finding("spin", "overhead", "1.000 ms", True, "", 1e-3, 1.01e-3, 0.9e-3, 1.1e-3, True)
MISSED = Finding("spin", "overhead", "0.000 ms", False, "0.300 ms are in layout", 3e-3, 0.01e-3, 0.0, 0.02e-3, False)
TWIN = Finding("none", "nowhere", "nothing", True, "", 0.0, within=True)
CACHED = Finding("cached", "MISMATCH", "MISMATCH", True)


def rendered(runs):
    out = io.StringIO()
    words.render(runs, out)
    return out.getvalue()


def test_one_run_has_a_row_for_each_lie():
    text = rendered([[TWIN, FOUND, CACHED]])
    none, spin, cached = text.splitlines()[1:4]
    assert none.split()[0] == "none"
    assert none.endswith("none found")
    assert "1.000" in spin
    assert "0.900 to 1.100" in spin
    assert spin.endswith(" found")
    assert "MISMATCH" in cached
    assert "2 of 2 lies found in their place." in text
    assert "2 of 2 decompositions by their 95 % intervals alone." in text
    assert "widened by 10% of what was planted" in text
    assert "25% must be in its part" in text
    assert "widened" not in rendered([[CACHED]])


def test_several_runs_have_medians_counts_and_every_reason():
    text = rendered([[FOUND], [MISSED]])
    row = text.splitlines()[1]
    assert "2.000" in row  # the median of what was planted
    assert row.endswith("found 1/2")
    assert "1 of 2 lies found in their place." in text
    assert "run 2, spin: 0.300 ms are in layout" in text


def test_a_miss_in_one_run_is_told():
    assert rendered([[MISSED]]).splitlines()[1].endswith("MISSED")
