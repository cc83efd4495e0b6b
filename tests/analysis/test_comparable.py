"""The guard: every fact that it knows is found where it differs, and refused or labelled as the tables say."""

from dataclasses import replace

import pytest

from tests.drifting import measurement, run
from xframe.analysis import comparable
from xframe.analysis.comparable import ROW_FACTS, RUN_FACTS, apart, apart_from_first, of_rows, of_runs
from xframe.results import LayerWork
from xframe.types import Artifact, ConvSite, Outcome, Plan, SiteRecord, TensorInfo

A, B = ConvSite(1, 3, (8, 8), 4, (3, 3)), ConvSite(1, 4, (6, 6), 4, (3, 3))
ROW = measurement([[0.01]], "jax", "tvm", environment={"cpus": [0, 1]})


def artifact(sites=(A, B), sha="a", layout="NCHW"):
    tensor = TensorInfo("x", (1, 3, 8, 8), "float32", layout)
    return Artifact("a.onnx", sha, "m", "jax", "1", 17, (tensor,), (), tuple((f"c{i}", s) for i, s in enumerate(sites)))


def case(**changes):
    return replace(ROW, case=replace(ROW.case, **changes))


def recorded(**environment):
    return replace(ROW, environment={**ROW.environment, **environment})


#: Fact -> two rows that differ in it alone.
ROWS = {
    "model": (ROW, case(model="vgg16")),
    "batch": (ROW, case(batch=2)),
    "direction": (ROW, case(direction="backward")),
    "device": (ROW, case(device="cuda")),
    "gpu": (recorded(gpu="H100"), recorded(gpu="H200")),
    "threads": (ROW, case(threads=1)),
    "cache": (ROW, case(cache="cold")),
    "coverage": (case(artifact=artifact()), case(artifact=artifact((A, B, B)))),
    "tf32": (recorded(tf32=False), recorded(tf32=True)),
    "products": tuple(replace(ROW, sites=(SiteRecord(A, "c", None, n),)) for n in ("gemm", "gemm_tf32")),
    "matmul_precision": (recorded(matmul_precision="highest"), recorded(matmul_precision="medium")),
    "io_binding": (recorded(io_binding=True), recorded(io_binding=False)),
    "options": (ROW, case(options=(("a", "on"),))),
    "layout": (recorded(layout="NCHW"), recorded(layout="NHWC")),
    "workspace": (recorded(workspace_limit=1), recorded(workspace_limit=2)),
    "cudnn_benchmark": (recorded(cudnn_benchmark=False), recorded(cudnn_benchmark=True)),
    "plan": (case(plan=Plan("best", ((A, "fft"),))), case(plan=Plan("best", ((A, "gemm"),)))),
    "error_budget": (ROW, case(plan=Plan(error_budget=1e-5))),
    "target": (ROW, case(plan=Plan(target="llvm -mcpu=core-avx2"))),
    "schedules": tuple(replace(ROW, sites=(SiteRecord(A, "c", None, None, schedule=s),)) for s in ("fixed", "tuned")),
    "export": (case(artifact=artifact()), case(artifact=artifact(sha="b"))),
    "cpus": (ROW, recorded(cpus=[2, 3])),
}

LAYERS = (LayerWork("fc", "fc", None, 100.0, 10, 1000),)
RUN = replace(run(cores=2), layers={1: LAYERS})

#: Fact -> two results that differ in it alone.
RUNS = {
    "schema": (RUN, replace(RUN, schema=99)),
    "network": (RUN, replace(RUN, environment={**RUN.environment, "network": "other"})),
    "layers": (RUN, replace(RUN, layers={1: (replace(LAYERS[0], weight_bytes=2000),)})),
    "seed": (RUN, replace(RUN, environment={**RUN.environment, "request": {"resolved": {"seed": 1}}})),
    **{
        name: tuple(replace(RUN, environment={**RUN.environment, name: value}) for value in ("this", "that"))
        for name in ("cpu", "governor", "turbo_off", "cores", "caches", "hypervisor", "system", "python", "git")
    },
    "gpu_limits": tuple(
        replace(RUN, environment={**RUN.environment, "gpus": [{"name": "H200", "power_limit_w": watts}]})
        for watts in (700.0, 500.0)
    ),
    "gpu_driver": tuple(
        replace(RUN, environment={**RUN.environment, "gpus": [{"name": "H200", "driver": d}]}) for d in ("580", "590")
    ),
    "versions": tuple(
        replace(RUN, environment={**RUN.environment, "versions": {"torch": v, "jax": "0.10"}}) for v in ("2.12", "2.13")
    ),
}


def test_every_fact_is_tested_here():
    assert set(ROWS) == {f.name for f in ROW_FACTS}
    assert set(RUNS) == {f.name for f in RUN_FACTS}


@pytest.mark.parametrize("fact", ROW_FACTS, ids=lambda f: f.name)
def test_what_differs_between_two_rows_is_told(fact):
    old, new = ROWS[fact.name]
    (found,) = (d for d in of_rows(old, new) if fact.name != "coverage" or d.name == "coverage")
    assert (found.name, found.refused, found.why) == (fact.name, fact.refused, fact.why)
    assert fact.why in str(found)
    assert of_rows(old, old) == of_rows(new, new) == ()
    assert of_rows(old, new, intended=[fact.name]) == ()
    assert [d.refused for d in of_rows(old, new, allowed=[fact.name])] == [False]


@pytest.mark.parametrize("fact", RUN_FACTS, ids=lambda f: f.name)
def test_what_differs_between_two_results_is_told(fact):
    old, new = RUNS[fact.name]
    (found,) = of_runs(old, new)
    assert (found.name, found.refused) == (fact.name, fact.refused)
    assert of_runs(old, old) == of_runs(new, new) == ()
    assert [d.refused for d in of_runs(old, new, allowed=[fact.name])] == [False]


def test_of_many_values_those_that_differ_are_shown_and_counted():
    old = {"torch": "2.12", "jax": "0.10", **{f"p{i}": "1" for i in range(5)}}
    new = {"jax": "0.10", **{f"p{i}": "2" for i in range(5)}}
    (found,) = of_runs(*(replace(RUN, environment={**RUN.environment, "versions": v}) for v in (old, new)))
    assert str(found).startswith("versions: torch 2.12, now none; p0 1, now 2; p1 1, now 2; and 3 more (")


def test_what_is_recorded_on_one_side_alone_is_a_label():
    old, new = RUN, replace(RUN, environment={k: v for k, v in RUN.environment.items() if k != "network"})
    (found,) = of_runs(old, new)
    assert (found.name, found.new, found.refused) == ("network", None, False)
    assert found.why.startswith("recorded on one side alone")
    assert [d.name for d in of_rows(ROW, recorded(tf32=True))] == ["tf32"]


def test_other_runners_have_other_words_for_what_they_do():
    """Only what both record is held against each other."""
    other = recorded(tf32=True, layout="NHWC", own="setting")
    other = replace(other, case=replace(other.case, framework="pytorch"))
    assert of_rows(ROW, other) == ()
    assert [d.name for d in of_rows(recorded(layout="NCHW"), other)] == ["layout"]


def test_a_setting_that_no_table_has_is_told_where_both_record_it():
    (found,) = of_rows(recorded(xla_flags="a", visits=[1]), recorded(xla_flags="b", visits=[2]))
    assert (found.name, found.refused) == ("xla_flags", False)


def test_tf32_has_several_spellings():
    same = recorded(provider_options={"use_tf32": "0"})
    assert [d.name for d in of_rows(recorded(tf32=False), same)] == []
    assert "tf32" in [d.name for d in of_rows(recorded(tf32=True), same)]
    assert [d.name for d in of_rows(recorded(use_tf32="off"), recorded(use_tf32="on"))] == ["tf32"]
    assert [d.name for d in of_rows(recorded(tf32=True), recorded(use_tf32="on"))] == []


def test_layers_are_the_same_at_any_batch():
    more = replace(RUN, layers={16: (replace(LAYERS[0], flop=1600.0, image_bytes=160),)})
    assert of_runs(RUN, more) == ()


def test_names_are_told_once():
    assert len({f.name for f in (*ROW_FACTS, *RUN_FACTS)}) == len(ROW_FACTS) + len(RUN_FACTS)
    assert comparable.Difference("a", None, 1, True, "why").to_json() == {
        "name": "a", "old": None, "new": 1, "refused": True, "why": "why",
    }  # fmt: skip


@pytest.mark.parametrize(("fact", "why"), [
    ("tf32", "tf32 True, not False (products of 10 bits are another computation)"),
    ("products", "products tf32, not float32 (products of fewer bits are another computation)"),
    ("options", ""), ("coverage", ""), ("layout", ""), ("schedules", ""),
])  # fmt: skip
def test_rows_of_one_result_are_ranked_unless_they_compute_something_else(fact, why):
    first, row = ROWS[fact]
    assert apart(row, first) == why


def test_the_first_is_the_first_that_has_a_time_and_is_of_no_ablation():
    exact, narrow = recorded(tf32=False), recorded(tf32=True)
    failed, tried = replace(narrow, outcome=Outcome.FAILED, reason="why"), recorded(tf32=True, ablation={"set": 0})
    found = apart_from_first([failed, tried, exact, narrow, exact, failed, tried])
    assert found == {id(narrow): apart(narrow, exact)}
    assert apart_from_first([failed, tried]) == {}
