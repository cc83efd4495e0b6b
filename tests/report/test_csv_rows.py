"""CSV: the columns that rows have everywhere, all digits, terms that sum, no formula."""

import csv
import io
import json
from dataclasses import replace

import pytest

from tests import report_samples as samples
from xframe import store
from xframe.analysis.decomposition import explained
from xframe.report import csv_rows


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_have_all_keys_and_all_digits():
    run = samples.run()
    lines = read(csv_rows.rows(run))
    assert len(lines) == len(run.measurements)
    for line, m in zip(lines, run.measurements, strict=True):
        flat = store.row(m)
        assert tuple(line) == store.ROW_KEYS
        assert line["outcome"] == flat["outcome"]
        assert (float(line["median_s"]) if line["median_s"] else None) == flat["median_s"]
    assert lines[6]["reason"] == "fft can't do conv1: its stride is 4"
    assert lines[6]["median_s"] == ""
    first, *_ = json.loads(lines[3]["algorithms"])
    assert first == {"site": samples.sites()["conv1"].key, "lowering": "direct", "words": "brgconv:avx512"}
    assert lines[9]["options"] == '{"layout": "channels_last"}'


def test_terms_sum_to_the_wall():
    run = samples.run()
    lines = read(csv_rows.decompositions(explained(run)))
    assert tuple(lines[0]) == csv_rows.TERM_KEYS
    for row in {line["row"] for line in lines}:
        own = [line for line in lines if line["row"] == row and not line["part"]]
        (wall,) = [float(line["seconds"]) for line in own if line["term"] == "wall"]
        assert sum(float(line["seconds"]) for line in own if line["term"] != "wall") == pytest.approx(wall, rel=1e-12)
        for term in own:
            parts = [float(x["seconds"]) for x in lines if (x["row"], x["term"]) == (row, term["term"])
                     and x["part"] and "/" not in x["part"]]  # fmt: skip
            assert not parts or sum(parts) == pytest.approx(float(term["seconds"]), abs=1e-12)


def test_no_cell_is_a_formula():
    (m, *_) = samples.run().measurements
    run = replace(samples.run(), measurements=(replace(m, notes=(), case=replace(m.case, model="=cmd|' /C calc'!A0")),))
    (line,) = read(csv_rows.rows(run))
    assert line["model"] == "'=cmd|' /C calc'!A0"
