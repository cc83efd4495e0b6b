"""What was compiled elsewhere: in which order it is run, beside what, and what stays of it."""

from types import SimpleNamespace

import pytest

from xframe import comparison, measure, store
from xframe.errors import XframeError
from xframe.gpucheck import elsewhere, networks
from xframe.prebuilt import folder, jobs, roofs, seeds
from xframe.prebuilt.folder import Entry
from xframe.results import Measurement, Run
from xframe.types import Case, Outcome, Plan


def row(name):
    return Measurement(Case("tiny", None, name, Plan(), "cuda", 1, 1), Outcome.UNSUPPORTED, "no")


def run(*names):
    return Run(store.SCHEMA, "now", ["asked"], {"versions": {"numpy": "2"}}, [row(name) for name in names])


@pytest.fixture
def made(tmp_path, plugins, settings, monkeypatch):
    """The steps for a folder with two batches and a convolution; compiled ones run as rows of their names."""
    entries = [Entry(f"tiny-b{b}-{how}", "tiny", "pytorch", b, Plan(how)) for b in (1, 4) for how in ("gemm", "fft")]
    site = Entry("tiny-conv2-b4-gemm", "tiny", "pytorch", 4, Plan("gemm"), site="conv2")
    folder.write(tmp_path, "sm_90", [*entries, site])
    (tmp_path / roofs.LIBRARY).touch()

    def job(where, entry, device, threads, judged):
        if entry.plan.label == "fft":
            raise XframeError("was not compiled")
        return SimpleNamespace(name=entry.name, feeds=judged and judged[0])

    ran = []
    monkeypatch.setattr(jobs, "job", job)
    monkeypatch.setattr(measure, "measure", lambda ready, *_: ran.extend(ready) or iter([row(r.name) for r in ready]))
    steps = {s.name: s for s in elsewhere.steps(settings(), tmp_path, print)}
    return SimpleNamespace(steps=steps, ran=ran)


def names(rows):
    return [m.case.runner for m in rows]


def test_the_first_network_comes_before_the_convolutions_and_the_others(made):
    assert list(made.steps) == ["roofs", "prebuilt batch 1", "prebuilt conv2 batch 4", "prebuilt batch 4"]
    assert sum(s.share for s in made.steps.values()) == pytest.approx(1)
    assert made.steps["prebuilt batch 4"].facts == {"network": "tiny", "batch": 4, "target": "sm_90"}
    assert made.steps["prebuilt conv2 batch 4"].facts["site"] == "conv2"


def test_what_works_without_tvm_stands_beside_it(made, monkeypatch, tmp_path):
    asked = []

    def compared(request, place, progress):
        asked.append(request)
        return run("cudnn")

    monkeypatch.setattr(networks, "compared", compared)
    rows, facts = made.steps["prebuilt batch 1"].run(tmp_path, 100.0)
    assert names(rows) == ["cudnn", "tiny-b1-gemm"]
    kept = store.load(tmp_path)
    assert names(kept.measurements) == names(rows), "raw samples and profiles of all of them"
    assert (kept.created, kept.environment) == ("now", {"versions": {"numpy": "2"}})
    assert facts["refused"] == {"tiny-b1-fft": "was not compiled"}
    rows, _ = made.steps["prebuilt conv2 batch 4"].run(tmp_path, 100.0)
    assert names(rows) == ["cudnn", "tiny-conv2-b4-gemm"]
    assert made.ran[-1].feeds[0][0].shape == (4, 8, 8, 4)
    network, site = asked
    assert (network.runners, site.runners) == (("native", "ort", "cudnn"), ("ort", "cudnn"))
    assert site.model == str(tmp_path / "conv2.onnx")
    assert "auto" in site.lowerings


def test_without_them_it_runs_alone(made, monkeypatch, tmp_path):
    def compared(*_):
        raise XframeError("no such model")

    monkeypatch.setattr(networks, "compared", compared)
    rows, facts = made.steps["prebuilt batch 1"].run(tmp_path, 100.0)
    assert names(rows) == ["tiny-b1-gemm"]
    assert facts["refused"]["others"] == "no such model"
    assert "versions" in store.load(tmp_path).environment


@pytest.mark.parametrize("where", ["seeds", "jobs", "measure"])
def test_wherever_it_is_cut_off_the_rows_that_are_there_stay(made, monkeypatch, tmp_path, where):
    monkeypatch.setattr(networks, "compared", lambda *_: run("cudnn"))

    def cut(*_):
        raise KeyboardInterrupt

    def late(ready, *_):
        yield row("tvm")
        raise KeyboardInterrupt

    place = {"seeds": (seeds, "restore", cut), "jobs": (jobs, "job", cut), "measure": (measure, "measure", late)}
    monkeypatch.setattr(*place[where])
    with pytest.raises(comparison.Interrupted) as stopped:
        made.steps["prebuilt batch 1"].run(tmp_path, 100.0)
    assert names(stopped.value.run.measurements) == ["cudnn", *(["tvm"] if where == "measure" else [])]
    assert stopped.value.run.created == "now"


def test_what_refuses_all_that_was_compiled_costs_no_other_row(made, monkeypatch, tmp_path):
    def refuse(*_):
        raise XframeError("another numpy")

    monkeypatch.setattr(networks, "compared", lambda *_: run("cudnn"))
    monkeypatch.setattr(seeds, "restore", refuse)
    step = made.steps["prebuilt batch 1"]
    rows, facts = step.run(tmp_path, 100.0)
    assert names(rows) == ["cudnn"]
    assert facts["refused"] == {"compiled": "another numpy"}
    monkeypatch.setattr(networks, "compared", refuse)
    with pytest.raises(XframeError, match="another numpy"):
        step.run(tmp_path, 100.0)
