"""One library a candidate, that computes its site; and MetaSchedule's own JSON of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tests.tuning.planted import HOST, SITE, by_hand, task
from xframe.errors import UsageError
from xframe.lowering import fused, tasks
from xframe.tuning import build
from xframe.tuning.bench import Memory, Run
from xframe.tuning.judge import Judge
from xframe.tuning.points import Point
from xframe.types import ConvSite

POINTWISE = ConvSite(1, 48, (7, 9), 80, (1, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("built")


def shares(built):
    """Of both chains of a library."""
    library, judge = tvm.runtime.load_module(built.path), Judge(built.task, HOST)
    chains = (built.candidate, built.by_hand)
    return [judge.share(Run(library, c, Memory(c, judge.arguments(c), 1 << 20, 1 << 24)).output()) for c in chains]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("lowering", ["gemm", "direct", "winograd", "fft"])
def test_both_chains_compute_the_site(lowering, layout, folder):
    of = task(lowering, layout=layout, relu=6.0)
    other = build.tiles(of, HOST)[1]
    built = build.build(of, Point((other.rows, other.vectors), (("unroll", 2),)), HOST, folder)
    assert built.candidate.tile != built.by_hand.tile
    assert all(0 < share < 1 for share in shares(built))


@pytest.mark.parametrize("lowering", ["direct", "winograd"])
def test_a_residual_image_is_the_last_argument(lowering, folder):
    of = task(lowering, residual=True, relu=float("inf"))
    built = build.build(of, by_hand(of), HOST, folder)
    assert all(0 < share < 1 for share in shares(built))


def test_a_product_alone(folder):
    of = task("gemm", POINTWISE)
    built = build.build(of, by_hand(of), HOST, folder)
    assert [s.function for s in built.candidate.steps] == [build.CANDIDATE]
    assert all(0 < share < 1 for share in shares(built))


def test_what_candidates_share_is_compiled_once(folder, monkeypatch):
    of, compiled = task("winograd", replace(SITE, batch=1)), []
    original = tvm.compile
    monkeypatch.setattr(
        tvm,
        "compile",
        lambda mod, **k: compiled.append(sorted(f.name_hint for f in mod.functions)) or original(mod, **k),
    )
    build.prepare(of, HOST, folder)
    for knobs in ((), (("unroll", 2),)):
        build.build(of, replace(by_hand(of), knobs=knobs), HOST, folder)
    assert compiled.count([build.CANDIDATE]) == 2
    assert compiled.count([build.BY_HAND]) == 1
    assert len(compiled) == 4


def test_a_trace_takes_the_place_of_the_template(folder):
    of = task("direct")
    point = replace(by_hand(of), knobs=(("unroll", 2),))
    first = build.build(of, point, HOST, folder)
    trace = json.dumps(json.loads(first.record)[0])
    again = build.build(of, Point(point.tile, trace=trace), HOST, folder)
    assert again.workload == first.workload
    assert json.loads(again.record)[0] == json.loads(first.record)[0]
    stages = of.stages(*build._no_weights(of), HOST)
    product = next(s for s in stages if s.schedule)
    scheduled = [build.scheduled(product, p).mod for p in (point, again.point, by_hand(of))]
    assert tvm_ffi.structural_equal(scheduled[0], scheduled[1])
    assert not tvm_ffi.structural_equal(scheduled[0], scheduled[2])


def test_metaschedule_reads_the_record(folder, tmp_path):
    of = task("winograd")
    built = build.build(of, replace(by_hand(of), knobs=(("unroll", 2),)), HOST, folder)
    workloads, records = tmp_path / "database_workload.json", tmp_path / "database_tuning_record.json"
    workloads.write_text(built.workload_line + "\n")
    records.write_text(f"[0, {build.recorded(built, (0.25, 0.5))}]\n")
    database = ms.database.JSONDatabase(path_workload=str(workloads), path_tuning_record=str(records))
    (record,) = database.get_all_tuning_records()
    assert [float(s) for s in record.run_secs] == [0.25, 0.5]
    product = next(s for s in of.stages(*build._no_weights(of), HOST) if s.schedule)
    module = tvm.IRModule({"main": product.func.without_attr("global_symbol")})
    assert database.has_workload(module)
    assert tasks.workload_of(product.func) == built.workload
    replayed = s_tir.Schedule(record.workload.mod)
    record.trace.apply_to_schedule(replayed, remove_postproc=False)
    expected, _ = product.templated({"unroll": 2})
    funcs = [sch.mod["main"].without_attr("global_symbol") for sch in (replayed, expected)]
    assert tvm_ffi.structural_equal(*funcs)


@pytest.mark.parametrize(
    ("point", "why"),
    [
        (Point((31, 31)), "31x31"),
        (Point((0, 0)), "0x0"),
    ],
)
def test_a_tile_that_it_does_not_have(point, why, folder):
    with pytest.raises(UsageError, match=why):
        build.build(task(), point, HOST, folder)


def test_a_knob_that_it_does_not_have(folder):
    of = task()
    with pytest.raises(UsageError, match="unroll takes one of"):
        build.build(of, replace(by_hand(of), knobs=(("unroll", 3),)), HOST, folder)


def test_one_kernel_with_its_transforms_has_no_template(folder, monkeypatch):
    monkeypatch.setattr(fused, "pays", lambda *_: True)
    with pytest.raises(UsageError, match="can't be tuned"):
        build.build(task("winograd", replace(SITE, batch=3)), Point((4, 1)), HOST, folder)


def test_no_compiler_is_one_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.Unavailable, match=r"C\+\+ compiler"):
        build.check_compiler()


def test_libraries_have_names_of_their_own(folder):
    of = task("direct")
    paths = {build.build(of, by_hand(of), HOST, folder).path for _ in range(2)}
    assert len(paths) == 2
    assert all(Path(p).parent == folder for p in paths)
    assert np.all([Path(p).exists() for p in paths])
