"""What a check asks for, in which order, and what becomes of it."""

import json

import pytest

from tests import schedule_logs
from tests.test_comparison import QUICK
from xframe import artifact, comparison, planning, registry, zoo
from xframe.errors import XframeError
from xframe.gpucheck import check, sites, steps, words
from xframe.gpucheck import settings as given
from xframe.gpucheck.journal import DONE, Found, Journal
from xframe.prebuilt import convolution, roofs


@pytest.fixture
def asked(monkeypatch):
    """What steps ask for; nothing is measured."""
    requests = []

    def compare(request, progress):
        requests.append(request.resolved())
        raise XframeError("not here")

    monkeypatch.setattr(comparison, "compare", compare)
    return requests


def run(step, folder):
    (folder / step.name).mkdir()
    with pytest.raises(XframeError, match="not here"):
        step.run(folder / step.name, 100.0)


def test_steps_come_by_their_worth(settings, plugins):
    made = list(steps.steps(settings(batches=(1, 128, 16)), print))
    assert [s.name for s in made] == [
        *("roofs", "network batch 1", "best batch 1", "site conv1 batch 128", "site conv2 batch 128"),
        *("network batch 128", "tuning", "best batch 128"),
        *("tuned site conv1 batch 128", "tuned site conv2 batch 128"),
        *("named lowerings batch 1", "network batch 16"),
    ]
    assert made[0].least == roofs.LIMIT
    assert [s.name for s in made if s.after == "tuning"] == [s.name for s in made if s.name.startswith("tuned")]
    assert sum(s.share for s in made) == pytest.approx(1)
    one = list(steps.steps(settings(batches=(4,)), print))
    names = ["best batch 4", "tuned site conv2 batch 4", "named lowerings batch 4"]
    assert [s.name for s in one if s.name in names] == names
    assert len(one) == 9


def test_a_network_is_asked_for_in_every_runner_cheap_ones_first(asked, settings, plugins, tmp_path):
    step = next(s for s in steps.steps(settings(device="cuda:1"), print) if s.name == "network batch 1")
    run(step, tmp_path)
    (request,) = asked
    assert request.runners == ("native", "ort", "cudnn", "tvm")
    assert ("jax", "native") in request.pairs
    assert request.frameworks[-1] == "pytorch"
    assert [p for p in request.pairs if p[1] != "native"] == [("pytorch", r) for r in ("ort", "cudnn", "tvm")]
    assert request.lowerings == ("gemm", "direct", "winograd", "fft", "auto")
    assert (request.device, request.fallback, request.images) == ("cuda:1", "direct", given.IMAGES)
    assert request.threads == (given.threads(),)
    assert (request.budget.opening, request.budget.rounds) == (60.0, QUICK.rounds)


def test_a_site_has_no_fallback_and_the_whole_network_no_best_but_in_a_step_of_its_own(
    asked, settings, plugins, tmp_path
):
    made = {s.name: s for s in steps.steps(settings(), print)}
    for name in ("site conv1 batch 1", "best batch 1"):
        run(made[name], tmp_path)
    site, best = asked
    assert (site.runners, site.fallback, site.schedules) == (("ort", "cudnn", "tvm"), None, planning.NONE)
    assert {"graph_fastest", "winograd_nonfused", "gemm", "auto"} <= set(site.lowerings)
    assert "graph_winograd" not in site.lowerings  # where it is named
    assert (best.runners, best.lowerings) == (("native", "ort", "tvm"), ("best",))
    assert best.schedules == planning.AUTO


def test_the_best_plan_at_the_largest_batch_takes_what_was_tuned(asked, settings, plugins, tmp_path):
    (tmp_path / given.LOGS).mkdir()
    made = {s.name: s for s in steps.steps(settings(batches=(1, 2)), print)}
    for name in ("best batch 2", "best batch 1"):
        run(made[name], tmp_path)
    assert [r.schedules for r in asked] == [str(tmp_path / given.LOGS), planning.AUTO]


def test_a_tuned_site_is_measured_under_what_tuning_found_something_for(
    asked, settings, plugins, tmp_path, monkeypatch
):
    made = {s.name: s for s in steps.steps(settings(device="cpu"), print)}
    step = made["tuned site conv1 batch 1"]
    place = tmp_path / step.name
    place.mkdir()
    with pytest.raises(XframeError, match="no tuned kernel of it, as tuning was not done"):
        step.run(place, 100.0)
    (tmp_path / given.LOGS).mkdir()
    monkeypatch.setattr(sites, "_recorded", lambda path, logs, device: ("gemm",))
    with pytest.raises(XframeError, match="not here"):
        step.run(place, 100.0)
    (request,) = asked
    assert (request.runners, request.lowerings, request.schedules) == (("tvm",), ("gemm",), str(tmp_path / given.LOGS))
    rows = [{"backend": "cudnn", "lowering": "fft", "median_s": 1.0}]
    Journal(tmp_path).write(Found("site conv1 batch 1", DONE, rows=tuple(rows)))
    with pytest.raises(XframeError, match="not here"):
        step.run(place, 100.0)
    assert (asked[1].runners, asked[1].lowerings) == (("cudnn", "tvm"), ("gemm", "fft"))
    monkeypatch.setattr(sites, "_recorded", lambda path, logs, device: ())
    Journal(tmp_path).write(Found("tuning", DONE))
    assert step.run(place, 100.0) == ((), {"refused": {"conv1": sites.NOTHING}})


def test_lowerings_that_run_where_they_are_named_are_checked_beside_no_others(asked, settings, plugins, tmp_path):
    step = next(s for s in steps.steps(settings(), print) if s.name == "named lowerings batch 1")
    run(step, tmp_path)
    (request,) = asked
    assert (request.runners, request.lowerings) == (("tvm",), ("gemm_explicit", "gemm_tf32", "gemm_fp16"))
    assert not {"network", "site"} & set(step.facts)  # what ratios are of


def test_tuning_found_something_for_a_lowering_that_has_a_record(plugins, tmp_path, monkeypatch):
    pytest.importorskip("tvm")
    monkeypatch.setattr(sites, "threads", lambda: 1)
    path = convolution.write(zoo.spec("tiny"), "conv1", 1, tmp_path / "c.onnx")
    ((_, site),) = artifact.load(path).conv_sites
    (tmp_path / "logs").mkdir()
    assert sites._recorded(path, tmp_path / "logs", "cpu") == ()
    schedule_logs.put(tmp_path / "logs", schedule_logs.entry(f"{site.key} gemm im2col NCHW bias+relu t1"))
    assert sites._recorded(path, tmp_path / "logs", "cpu") == ("gemm",)


def test_a_convolution_is_measured_judged_and_told(gpu, monkeypatch, tmp_path, settings, plugins):
    plugins(ort="Missing", tvm="Honest")
    cudnn = registry.BACKENDS["cudnn"]
    monkeypatch.setitem(registry.BACKENDS, "cudnn", cudnn._replace(where="fake_plugins:Honest"))
    monkeypatch.setattr(sites, "labels", lambda: ("gemm",))
    real = steps.steps
    monkeypatch.setattr(steps, "steps", lambda s, p: (x for x in real(s, p) if x.name == "site conv1 batch 20"))
    found = check.check(settings(device="cpu", minutes=30, batches=(20,)), Journal(tmp_path), lambda line: None)
    site = next(f for f in found if f.step == "site conv1 batch 20")
    assert site.state == DONE, site.reason
    assert [(r["backend"], r["lowering"], r["outcome"]) for r in site.rows] == [
        ("ort", "auto", "UNAVAILABLE"),
        ("cudnn", "gemm", "OK"),
        ("tvm", "gemm", "OK"),
    ]
    assert "geometric mean of 1" in "\n".join(words.lines(found))
    data = json.loads((tmp_path / "site-conv1-batch-20" / "step.json").read_text())
    assert (data["state"], data["facts"]["site"], data["facts"]["flop"]) == (DONE, "conv1", 20 * 2 * 4 * 27 * 64)


def test_rows_are_as_many_as_the_gpu_has_memory_for(monkeypatch, settings):
    def memory(found):
        monkeypatch.setattr(given.nvml, "gpus", lambda: found)
        return given.limited(settings(), 50.0).workers

    assert memory([{"memory": 139 << 30}]) == given.ROWS
    assert memory([{"memory": 9 << 30}]) == 2
    assert memory([{"memory": 1 << 30}]) == 1
    assert memory([{"memory": None}]) == memory([]) == given.UNKNOWN
