"""Templates: knobs only reorder; a chosen one is in the trace; what is not offered is refused."""

import json
import math

import numpy as np
import pytest
import tvm

from tests.lowering.networks import HOST, quick
from xframe import registry
from xframe.errors import UsageError
from xframe.lowering import prefetch
from xframe.lowering.knobs import divisors, part_sizes
from xframe.lowering.stage import Epilogue
from xframe.lowering.tasks import Task, trace_of
from xframe.lowering.variants import choose
from xframe.types import ConvSite

SITES = [
    ConvSite(2, 32, (9, 7), 48, (3, 3), pads=(1, 1, 1, 1)),
    ConvSite(1, 32, (12, 12), 64, (1, 1)),
    ConvSite(1, 24, (10, 11), 40, (5, 3), (2, 1), (2, 1, 2, 1)),
]
CASES = [
    (name, site)
    for name in registry.defaults(registry.LOWERINGS)
    for site in SITES
    if not registry.load(registry.LOWERINGS, name).refuses(site, None)
]


def product(lowering, site, cpu=HOST, tile=None):
    variant = choose(registry.load(registry.LOWERINGS, lowering), site, cpu, 0.002)
    task = Task.of(lowering, variant, Epilogue(np.zeros(1), math.inf), "NHWC", cpu)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((site.out_channels, site.in_channels, *site.kernel)).astype(np.float32)
    stages = task.stages(weight, np.zeros(site.out_channels, np.float32), cpu, tile)
    return next((s for s in stages if s.schedule), None)


def run(stage, func):
    """What a kernel makes of seeded arguments."""
    compiled = quick(tvm.IRModule({"main": func}))
    rng = np.random.default_rng(1)
    shapes = [tuple(int(d) for d in p.shape) for p in stage.func.params]
    args = [tvm.runtime.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    compiled["main"](*args)
    return args[-1].numpy()


@pytest.mark.parametrize(("lowering", "site"), CASES, ids=lambda x: getattr(x, "key", x))
def test_knobs_only_reorder(lowering, site):
    """Each knob at each end of its range: the same sums in another order, so the same up to rounding."""
    stage = product(lowering, site)
    if stage is None:
        pytest.skip("one fused kernel, which has no template")
    wanted = run(stage, stage.scheduled())
    _, knobs = stage.templated()
    assert knobs.space
    for name, values in knobs.space.items():
        for value in {values[0], values[-1]} - {knobs.decided[name]}:
            sch, turned = stage.templated({name: value})
            assert turned.decided == {**knobs.decided, name: value}
            got = run(stage, prefetch.inserted(sch.mod["main"]))
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_the_trace_has_the_decisions():
    stage = product("winograd", SITES[0])
    sch, knobs = stage.templated({"unroll": 2})
    instructions, decisions = json.loads(trace_of(sch))
    sampled = [i for i, inst in enumerate(instructions) if inst[0] == "SampleCategorical"]
    assert len(sampled) == len(knobs.space)
    chosen = [values.index(knobs.decided[name]) for name, values in knobs.space.items()]
    assert [d for i, d in sorted(decisions)] == chosen


def test_a_value_that_is_not_offered_is_refused():
    stage = product("winograd", SITES[0])
    with pytest.raises(UsageError, match=r"the knob unroll takes one of 1, 2, 4, not 3"):
        stage.templated({"unroll": 3})


def test_straight_line_code_has_no_template():
    variant = choose(registry.load(registry.LOWERINGS, "winograd"), SITES[0], HOST, 0.002)
    task = Task.of("winograd", variant, Epilogue(np.zeros(1)), "NHWC", HOST)
    site = SITES[0]
    weight = np.zeros((site.out_channels, site.in_channels, *site.kernel), np.float32)
    first = task.stages(weight, np.zeros(site.out_channels, np.float32), HOST)[0]
    with pytest.raises(ValueError, match="has no template"):
        first.templated()


def test_part_sizes_are_for_all_threads():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert part_sizes(12, 2) == [1, 2, 3, 4, 6, 12]
    assert part_sizes(12, 4) == [1, 2, 3, 12]
    assert part_sizes(7, 2) == [1, 7]
