"""A log is a database of MetaSchedule's, and what is found in it schedules the kernel that it is for."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.ir import save_json
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import IndexMap

from tests.lowering.on_cuda import AMPERE
from tests.lowering.test_convolutions import conv_network, everywhere
from tests.schedules.logs import SITE, entry, forged
from xframe import registry
from xframe.lowering import pipeline
from xframe.lowering.stage import Epilogue, replayed
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import trace_of, workload_of
from xframe.schedules import device, find, prune
from xframe.schedules.log import RECORDS, WORKLOADS, Log, read, write
from xframe.schedules.record import checked
from xframe.tuning import auto, build
from xframe.types import ConvSite

HOST = Cpu.host(2)
LOWERINGS = ["gemm", "direct", "winograd", "fft"]


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(3)
    return conv_network(SITE, rng.standard_normal((64, 32, 3, 3)).astype(np.float32), np.ones(64, np.float32), True)


def product(model, lowering, knobs=None):
    """The task, its product stage with the second-best tile, the tile, and the schedule with ``knobs``."""
    (task,) = pipeline.tasks(model, everywhere(lowering, SITE), HOST)
    weight, bias = np.zeros((64, 32, 3, 3), np.float32), np.zeros(64, np.float32)
    tile = next(s for s in task.stages(weight, bias, HOST) if s.schedule).tiles[1]
    stage = next(s for s in task.stages(weight, bias, HOST, tile) if s.schedule)
    return task, stage, tile, stage.templated(knobs or {"unroll": 2})[0]


def recorded(model, lowering):
    """An entry of a kernel as tuning makes it, and its module."""
    task, stage, tile, sch = product(model, lowering)
    module = tvm.IRModule({"main": stage.func.without_attr("global_symbol")})
    workload, record = build.lines(stage, sch, HOST)
    one = entry(
        task.name,
        tile=(tile.rows, tile.vectors),
        workload=workload_of(stage.func),
        workload_line=workload,
        record=json.dumps([*json.loads(record)[:1], [1e-3, 1.1e-3], *json.loads(record)[2:]]),
    )
    return one, module, sch


@pytest.fixture(scope="module")
def tuned_log(model, tmp_path_factory):
    """A log of this machine with a kernel of each lowering; its folder, and what it was made of by lowering."""
    made = {lowering: recorded(model, lowering) for lowering in LOWERINGS}
    here = Log.here(HOST.text, [one for one, _, _ in made.values()])
    folder = tmp_path_factory.mktemp("schedules") / here.device.slug / "net-b1" / "direct"
    write(folder, here)
    return folder, made


def same(sch, expected):
    tvm.ir.assert_structural_equal(sch.mod["main"].without_attr("global_symbol"), expected)


#: Sites whose templates differ: few channels, a 1x1, many channels, a large image, groups.
SITES = [
    SITE,
    ConvSite(1, 3, (27, 27), 24, (7, 7), (2, 2), (3, 3, 3, 3)),
    ConvSite(1, 64, (28, 28), 96, (1, 1)),
    ConvSite(2, 256, (7, 7), 512, (3, 3), pads=(1, 1, 1, 1)),
    ConvSite(1, 16, (56, 56), 32, (3, 3), pads=(1, 1, 1, 1), groups=2),
]


@pytest.mark.parametrize("site", SITES, ids=lambda s: s.key)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_all_that_tuning_makes_is_let_through(lowering, site):
    if registry.load(registry.LOWERINGS, lowering).refuses(site, None):
        pytest.skip("refused: see test_refusals")
    weight = np.zeros((site.out_channels, site.in_channels // site.groups, *site.kernel), np.float32)
    bias = np.zeros(site.out_channels, np.float32)
    (task,) = pipeline.tasks(conv_network(site, weight, bias, True), everywhere(lowering, site), HOST)
    product = next(s for s in task.stages(weight, bias, HOST) if s.schedule)
    traces = [trace_of(product.templated()[0]), *(p.trace for p in auto.points(task, HOST, 4))]
    assert len(traces) > 2
    for trace in traces:
        checked(json.dumps([json.loads(trace), [1.0], {}, []]), "the record")


@pytest.mark.parametrize("site", [replace(s, out_channels=32) for s in SITES], ids=lambda s: s.key)
@pytest.mark.parametrize("lowering", registry.LOWERINGS)
def test_so_is_all_of_gpus_and_it_is_the_same_when_it_is_read(lowering, site, tmp_path):
    """Each variant, with the knobs by hand and with those that lie farthest from them."""
    found = registry.load(registry.LOWERINGS, lowering)
    if found.refuses(site, AMPERE):
        pytest.skip("refused: see test_refusals")
    weight = np.zeros((site.out_channels, site.in_channels // site.groups, *site.kernel), np.float32)
    epilogue = Epilogue(np.zeros(site.out_channels, np.float32), np.inf)
    for variant in found.variants(site):
        product = next((s for s in found.define(variant, weight, epilogue, "NHWC", AMPERE) if s.schedule), None)
        if product is None:
            continue
        space = product.templated()[1].space
        module = tvm.IRModule({"main": product.func.without_attr("global_symbol")})
        folder = tmp_path / workload_of(product.func)
        folder.mkdir(exist_ok=True)
        database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=True)
        for chosen in ({}, {name: c[0] for name, c in space.items()}, {name: c[-1] for name, c in space.items()}):
            sch, _ = product.templated(chosen)
            expected = sch.mod["main"].without_attr("global_symbol")
            trace, _, *rest = json.loads(build.lines(product, sch, AMPERE)[1])
            record = checked(json.dumps([trace, [1 / (1 + len(database))], *rest]), "the record")
            same(replayed(product.func, json.dumps(trace)), expected)
            kept = ms.database.TuningRecord.from_json(record, database.commit_workload(module))
            database.commit_tuning_record(kept)
            same(database.query_schedule(module, AMPERE.tvm, "main"), expected)


def test_metaschedule_reads_what_is_written(tuned_log):
    folder, made = tuned_log
    database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=False)
    assert len(database) == len(made)
    for _, module, sch in made.values():
        assert database.has_workload(module)
        found = database.query_schedule(module, HOST.tvm, "main")
        expected = sch.mod["main"].without_attr("global_symbol")
        same(found, expected)


def test_reading_with_metaschedule_changes_no_log(tuned_log):
    folder, _ = tuned_log
    before = [(folder / name).read_bytes() for name in (WORKLOADS, RECORDS)]
    ms.database.JSONDatabase(work_dir=str(folder))
    assert [(folder / name).read_bytes() for name in (WORKLOADS, RECORDS)] == before


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_record_from_a_log_schedules_its_kernel(model, tuned_log, lowering):
    folder, _ = tuned_log
    plan = everywhere(lowering, SITE)
    found, notes = find.tuned(plan, device.identity(), 2, [folder.parents[2]])
    assert notes == []
    (site,) = pipeline.forced(model, replace(plan, tuned=found), HOST)[2]
    assert site.schedule == f"tuned, {find.title(folder)}"


def test_what_is_fresh_is_not_pruned(tuned_log):
    folder, _ = tuned_log
    assert prune.prune(folder, device.identity()) == []


@pytest.fixture
def copied(tuned_log, tmp_path):
    """The same log, to change."""
    folder = tmp_path / "schedules" / "x" / "net-b1" / "direct"
    write(folder, read(tuned_log[0]))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: replace(e, workload="0" * 16), "of another definition of this kernel"),
        (lambda e: replace(e, tile=(1, 1)), "its register tile 1x1 does not fit"),
        (lambda e: replace(e, record=e.record.replace('"Reorder"', '"Unroll"', 1)), "its trace does not apply"),
    ],
)
def test_what_is_of_another_definition_is_pruned(copied, change, words):
    log = read(copied)
    name = next(task for task, e in log.entries.items() if e.lowering == "direct")
    write(copied, replace(log, entries={**log.entries, name: change(log.entries[name])}))
    (dropped,) = prune.prune(copied, device.identity(), dry_run=True)
    assert dropped.task == name
    assert words in dropped.reason
    assert len(read(copied).entries) == len(LOWERINGS)
    assert prune.prune(copied, device.identity()) == [dropped]
    assert set(read(copied).entries) == set(log.entries) - {name}


def test_a_layout_of_what_a_kernel_is_called_with_is_pruned(model, copied):
    """Of its own memory it may change it, of nobody else's."""
    log = read(copied)
    one = next(e for e in log.entries.values() if e.lowering == "gemm")
    sch = s_tir.Schedule(product(model, "gemm")[1].func)
    axes = len(sch.get(sch.get_sblock("product")).reads[1].region)
    turned = save_json(IndexMap.from_func(lambda m, *k: (*k, m), ndim=axes, index_dtype="int32"))
    block = ["GetSBlock", [], ["product", "main"], ["b0"]]
    instructions = [block, ["TransformLayout", ["b0", turned], [1, 0, None, 0], []]]
    record = json.dumps([[instructions, []], *json.loads(one.record)[1:]])
    write(copied, replace(log, entries={**log.entries, one.task: replace(one, record=record)}))
    (dropped,) = prune.prune(copied, device.identity())
    assert "it changes the layout of what the kernel is called with" in dropped.reason


def test_a_variant_that_is_no_more_is_pruned(copied):
    log = read(copied)
    one = next(e for e in log.entries.values() if e.lowering == "direct")
    name = one.task.replace(" direct - ", " direct F(9,9) ")
    write(copied, replace(log, entries={name: replace(one, task=name)}))
    (dropped,) = prune.prune(copied, device.identity())
    assert "direct has no such variant any more" in dropped.reason
    assert not copied.exists()


def test_a_loss_is_pruned(copied):
    def lose(meta):
        meta["entries"][0]["baseline"] = [1e-4]

    forged(copied, lose)
    (dropped,) = prune.prune(copied, device.identity())
    assert "it is slower than its baseline: 0.0" in dropped.reason
    assert len(read(copied).entries) == len(LOWERINGS) - 1
