"""The command ``report``: formats by name and by file, what goes where, and one line for each way to go wrong."""

import json
from dataclasses import replace

import pytest

from tests import report_samples as samples
from xframe import cli, store


@pytest.fixture
def xframe(capsys):
    def call(*args):
        code = cli.main([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err.splitlines()

    return call


@pytest.fixture
def result(tmp_path):
    return store.write(samples.run(), tmp_path / "result")


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.md", "# alexnet"),
        ("r.csv", "model,framework"),
        ("r.trace.json", '{"traceEvents"'),
        ("r.html", "<!DOCTYPE html>"),
    ],
)
def test_the_name_of_the_file_tells_the_format(xframe, result, tmp_path, name, start):
    if name.endswith("html"):
        pytest.importorskip("plotly")
    code, out, err = xframe("report", result, "-o", tmp_path / "new" / name)
    assert (code, out) == (0, "")
    assert err[0] == f"wrote {tmp_path / 'new' / name}"
    assert (tmp_path / "new" / name).read_text(encoding="utf-8").startswith(start)
    others = {p.name for p in (tmp_path / "new").iterdir()} - {name}
    assert others == ({"r-decompositions.csv"} if name == "r.csv" else set())


def test_a_folder_is_a_result_and_text_goes_to_stdout(xframe, result):
    code, out, err = xframe("report", result.parent, "--format", "markdown")
    assert (code, err) == (0, [])
    assert out.startswith("# alexnet")
    code, out, err = xframe("report", result, "--format", "csv")
    assert (code, err) == (0, ["without the decompositions, which -o FILE writes to a file beside it"])
    assert out.startswith("model,framework")


def test_a_format_may_be_named_against_the_name(xframe, result, tmp_path):
    assert xframe("report", result, "-o", tmp_path / "x.json", "--format", "trace")[0] == 0
    assert json.loads((tmp_path / "x.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["-o", "x.pdf"], 2, "-o x.pdf: its name does not tell the format; end it in .html, .md, .csv, .trace.json"),
        (["--format", "pdf"], 2, "--format pdf: there are html, markdown, csv, trace"),
        (["-o", "."], 2, "-o . is a folder: give the name of a file, such as report.html"),
        (["-o", "{result}", "--format", "csv"], 2, "is the result itself, which would be lost"),
        (["-o", "/proc/none/x.md"], 1, "can't write"),
    ],
)
def test_what_makes_no_sense_is_told(xframe, result, args, code, words):
    before = result.read_bytes()
    found, out, err = xframe("report", result, *(a.format(result=result) for a in args))
    assert (found, out, len(err)) == (code, "", 1)
    assert words in err[0]
    assert result.read_bytes() == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 99}'])
def test_a_broken_file_is_one_error(xframe, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    code, out, err = xframe("report", tmp_path, "-o", tmp_path / "r.md")
    assert (code, out, len(err)) == (1, "", 1)
    assert str(tmp_path / "run.json") in err[0]
    assert not (tmp_path / "r.md").exists()


def test_an_absent_file_is_one_error(xframe, tmp_path):
    code, _, err = xframe("report", tmp_path / "absent.json", "-o", tmp_path / "r.md")
    assert code == 1
    assert "can't read" in err[0]


def test_plotly_is_named_where_it_is_missing(xframe, result, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    code, _, err = xframe("report", result, "-o", tmp_path / "r.html")
    assert code == 1
    assert "pip install 'xframe-eval[report]'" in err[0]
    assert not (tmp_path / "r.html").exists()


def test_rows_without_profiles_are_reported_too(xframe, tmp_path):
    run = samples.run()
    bare = replace(
        run, measurements=tuple(replace(m, profiles=(), plain=()) for m in run.measurements), machines={}, layers={}
    )
    path = store.write(bare, tmp_path)
    for name in ("r.md", "r.csv", "r.trace.json"):
        assert xframe("report", path, "-o", tmp_path / name)[0] == 0
