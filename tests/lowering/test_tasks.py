"""What can be tuned in a plan, and a record in the place of its template: used, or refused in words."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.test_convolutions import conv_network, everywhere
from xframe.lowering import fused, pipeline
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task, trace_of, workload_of
from xframe.types import ConvSite, Tuned

HOST = Cpu.host(2)
SITE = ConvSite(1, 32, (14, 14), 64, (3, 3), pads=(1, 1, 1, 1))


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(3)
    w = rng.standard_normal((64, 32, 3, 3)).astype(np.float32)
    return conv_network(SITE, w, np.ones(64, np.float32), True)


def record(model, lowering, knobs):
    """A record of the product with its second-best tile and other ``knobs``."""
    (task,) = pipeline.tasks(model, everywhere(lowering, SITE), HOST)
    weight, bias = np.zeros((64, 32, 3, 3), np.float32), np.zeros(64, np.float32)
    by_hand = next(s for s in task.stages(weight, bias, HOST) if s.schedule)
    tile = by_hand.tiles[1]
    stage = next(s for s in task.stages(weight, bias, HOST, tile) if s.schedule)
    sch, _ = stage.templated(knobs)
    return Tuned(task.name, (tile.rows, tile.vectors), trace_of(sch), workload_of(stage.func), "a log")


def sites(model, lowering, *tuned):
    return pipeline.forced(model, replace(everywhere(lowering, SITE), tuned=tuned), HOST)[2]


@pytest.mark.parametrize("lowering", ["gemm", "direct", "winograd", "fft"])
def test_a_record_is_used(model, lowering):
    tuned = record(model, lowering, {"unroll": 2})
    (site,) = sites(model, lowering, tuned)
    assert site.schedule == "tuned, a log"
    assert site.selected == lowering


def test_without_a_record_the_template_is(model):
    (site,) = sites(model, "winograd")
    assert site.schedule == "template"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda t: replace(t, workload="0" * 16), "it is of another definition of this kernel"),
        (lambda t: replace(t, tile=(31, 31)), "its register tile 31x31 does not fit this processor"),
        (lambda t: replace(t, trace="[[], []"), "its trace does not apply"),
        (lambda t: replace(t, trace='[[["GetSBlock", [], ["no such", "main"], ["b0"]]], []]'), "does not apply"),
        (lambda t: replace(t, trace='[[["NoSuchInstruction", [], [], []]], []]'), "does not apply"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(model, broken, why):
    (site,) = sites(model, "winograd", broken(record(model, "winograd", {})))
    assert site.schedule.startswith("template, as the record in a log is refused: ")
    assert why in site.schedule


def test_a_record_of_another_task_is_not_looked_at(model):
    (site,) = sites(model, "winograd", replace(record(model, "winograd", {}), task="another"))
    assert site.schedule == "template"


def test_the_name_of_a_task_has_all_that_it_depends_on(model):
    (task,) = pipeline.tasks(model, everywhere("direct", SITE), HOST)
    assert task.name == f"{SITE.key} direct - NCHW bias+relu t2"
    for change in ({"residual": True}, {"relu": 6.0}, {"relu": None}, {"layout": "NHWC"}, {"threads": 1}):
        assert replace(task, **change).name != task.name
    assert math.isinf(task.relu)


@pytest.mark.parametrize("lowering", ["gemm", "direct", "winograd", "fft"])
def test_a_task_is_found_by_its_name(model, lowering):
    (task,) = pipeline.tasks(model, everywhere(lowering, SITE), HOST)
    for change in ({}, {"residual": True}, {"relu": 6.0}, {"relu": None}, {"layout": "NHWC"}, {"threads": 1}):
        changed = replace(task, **change)
        assert Task.named(changed.name) == changed


@pytest.mark.parametrize(
    "change", [("direct", "fft"), ("direct", "nothing"), ("n1", "m1"), ("NCHW", "CHWN"), (" t2", "")]
)
def test_what_names_no_task_is_refused(model, change):
    (task,) = pipeline.tasks(model, everywhere("direct", SITE), HOST)
    with pytest.raises(ValueError, match=r"not |no such"):
        Task.named(task.name.replace(*change))


def test_a_tile_that_leads_to_another_kernel_is_refused(model, monkeypatch):
    """Packed for another tile, weights may fit where one kernel takes all steps, which has no template."""
    tuned = record(model, "winograd", {})
    monkeypatch.setattr(fused, "pays", lambda weights, *_: weights.shape[-1] == 16 * tuned.tile[1])
    (site,) = sites(model, "winograd", tuned)
    assert "there is no template" in site.schedule
