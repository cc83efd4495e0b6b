"""Terms of rows made by hand against numbers worked out by hand; and that they sum, whatever was seen."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.profiles import MS, A, B, forced, measured, one_pass, run, runs
from xframe.analysis import shares
from xframe.analysis.decomposition import TERMS, explained, groups
from xframe.report import page_rows
from xframe.results import LayerWork, Level, Machine
from xframe.types import ConvSite, Kernel, Outcome, Plan, Profile, SiteRecord, Span, Tuned

#: 1 MFLOP/ms, 1 kB/ms.
MACHINE = Machine(1e9, (Level("memory", math.inf, 1e6),))
LAYERS = (
    LayerWork("conv1", "conv", A, 1e6, 500),
    LayerWork("relu", "activation", None, 0, 0),
    LayerWork("conv2", "conv", B, 1e6, 500),
    LayerWork("fc", "fc", None, 0, 0, 2000),
)
NETWORK = {"layers": {1: LAYERS}, "machines": {1: MACHINE}}
DISTURBED = {"layers": {1: LAYERS}, "machines": {1: replace(MACHINE, load=0.4)}}
#: conv1 and conv2 at 5 and 2 ms by the definition, 3 and 4 through columns, 1.5 and 1 with transforms.
FORCED = (
    forced("direct", 5, 2, ("fc", 6.0)),
    forced("gemm", 3, 4, ("fc", 6.0)),
    forced("winograd", 1.5, 1, ("fc", 6.0)),
)
TORCH = measured(
    one_pass(
        23.0,
        (A, 5.5, "jit:avx512_core"),
        ("activation", 0.5),
        ("layout", 0.75),
        (B, 4.5, "gemm:jit"),
        ("fc", 8.0),
        ("copy", 0.25),
        start=1.0,
        cost=0.5,
        host=(Span("dispatch", 0.0, 0.75e-3, "dispatch"),),
    ),
    wall=22.75,
    plain=22.6,
)
ORT = measured(one_pass(10.0, (A, 1.25, "MLAS NCHWc direct"), (B, 2.5, "?"), ("fc", 5.0)), runner="ort", wall=9.5)


def ms(term):
    """Name -> milliseconds of the parts."""
    return {p.name: pytest.approx(p.seconds / MS, abs=1e-9) for p in term.parts}


def of(measurement, *others, **network):
    """The decomposition of the first among the others."""
    return explained(run(measurement, *others, **(network or NETWORK)))[0]


def test_every_term_against_numbers_worked_out_by_hand():
    found = of(TORCH, ORT, *FORCED)
    assert found.title == "pytorch native, batch 1, threads 1"
    assert found.case is TORCH.case
    assert [t.name for t in found.terms] == [t for t in TERMS if t != "convolutions"]
    assert ms(found["floor"]) == {"conv1": 1.0, "conv2": 1.0, "activation": 0.0, "fc": 2.0}
    assert ms(found["headroom"]) == {"conv1": 0.25, "conv2": 0.0, "activation": 0.0, "fc": 3.0}
    assert ms(found["algorithm"]) == {"conv1": 3.5, "conv2": 3.0}
    assert ms(found["quality"]) == {"conv1": 5.5 - 1.25 - 3.5, "conv2": 4.5 - 1.0 - 3.0}
    assert ms(found["operators"]) == {"activation": 0.5, "fc": 3.0}
    assert ms(found["layout"]) == {"layout": 0.75, "copy": 0.25}
    assert ms(found["overhead"]) == {"dispatch": 0.75, "call": 2.75, "profiler": -0.5}
    assert ms(found["residual"]) == {"drift": 0.15, "unattributed": 0.0, "rest": 0.1}
    assert found.wall.seconds == pytest.approx(22.75 * MS)
    assert all(t.low == pytest.approx(t.seconds) == pytest.approx(t.high) for t in found.terms)  # nothing varied
    assert found.perturbation == pytest.approx(0.4 * MS)
    assert found.cost == pytest.approx(0.5 * MS)
    assert found.unattributed == 0
    assert found.notes == ()


def test_negative_terms_are_not_clipped():
    """A fast algorithm below the floor of the direct one; a row that beats what its algorithm should cost."""
    quick = measured(one_pass(8.0, (A, 0.5, "jit_wino"), (B, 0.25, "gemm:jit"), ("fc", 5.0)), wall=5.0)
    found = of(quick, *FORCED)
    assert ms(found["headroom"]) == {"conv1": -0.5, "conv2": -0.75, "activation": 0.0, "fc": 3.0}
    assert ms(found["quality"]) == {"conv1": 0.0, "conv2": -3.0}
    assert found["residual"].seconds < 0


@settings(max_examples=15)
@given(runs(), st.booleans())
def test_terms_sum_to_the_wall_time_and_parts_to_their_term(made, known):
    made = replace(made, **NETWORK) if known else made
    every = explained(made)
    assert [d.case for d in every] == [m.case for m in made.measurements]
    for one in every:
        assert math.fsum(t.seconds for t in one.terms) == pytest.approx(one.wall.seconds, rel=1e-9, abs=1e-12)
        total = sum(t.replicates for t in one.terms)
        if not np.isnan(total).any():
            assert total == pytest.approx(one.wall.replicates, rel=1e-9, abs=1e-12)
        else:  # resamples of some row are not known
            assert any(min(len(m.rounds), len(m.profiles)) < 2 for m in made.measurements)
        for term in one.terms:
            assert math.fsum(p.seconds for p in term.parts) == pytest.approx(term.seconds, rel=1e-9, abs=1e-12)
            assert len({p.name for p in term.parts}) == len(term.parts)
            assert np.isfinite(term.seconds)
            assert term.low <= term.seconds <= term.high
        json.dumps(one.to_json(), allow_nan=False)
    difference = every[0].difference(every[-1])
    assert math.fsum(t.seconds for t in difference.terms) == pytest.approx(difference.wall.seconds, abs=1e-12)
    assert difference["floor"].seconds == 0 or every[0].case.batch != every[-1].case.batch


@settings(max_examples=10)
@given(runs(), st.randoms(use_true_random=False))
def test_no_order_matters(made, shuffled):
    def mixed(items):
        items = list(items)
        shuffled.shuffle(items)
        return tuple(items)

    def again(m):
        profiles = mixed(replace(p, kernels=mixed(p.kernels), host=mixed(p.host)) for p in m.profiles)
        taken = [len(m.rounds), len(profiles), len(m.plain)]  # all together, as which pass is of which round matters
        environment = {"profiled": [taken]}
        return replace(m, rounds=tuple(map(mixed, m.rounds)), plain=mixed(m.plain), profiles=profiles,
                       environment=environment)  # fmt: skip

    made = replace(made, measurements=tuple(replace(m, environment={"profiled": [
        [len(m.rounds), len(m.profiles), len(m.plain)]
    ]}) for m in made.measurements))  # fmt: skip
    other = replace(made, measurements=mixed(map(again, made.measurements)))
    found = {(d.title, json.dumps(d.to_json())) for d in explained(made)}
    assert found == {(d.title, json.dumps(d.to_json())) for d in explained(other)}


def test_rows_of_other_groups_and_rows_that_failed_say_nothing():
    alone = of(TORCH, *FORCED)
    others = (
        measured(one_pass(9.0, (A, 0.1), (B, 0.1), ("fc", 0.1)), framework="jax", batch=16),
        measured(one_pass(9.0, (A, 0.1), (B, 0.1), ("fc", 0.1)), framework="jax", threads=2),
        replace(forced("fft", 0.1, 0.1, ("fc", 0.1)), outcome=Outcome.MISMATCH, reason="wrong"),
    )
    made = run(TORCH, *others, *FORCED, **NETWORK)
    found = explained(made)
    assert found[0] == alone
    assert [d.case for d in found] == [m.case for m in made.measurements if m.outcome == Outcome.OK]


def test_the_same_code_in_several_rows_counts_once():
    """One lucky row of three is not the best; nor is it what a lowering takes."""
    lucky = {"jax": 1.0, "pytorch": 1.5, "tensorflow": 1.75}
    rows = [forced("winograd", ms, 1, ("fc", 6.0), framework=name) for name, ms in lucky.items()]
    (group,) = groups(run(*rows, *FORCED[:2]))
    assert group.best(A)[0] == pytest.approx(1.5 * MS)
    assert {k: v[0] for k, v in group.lowerings(A).items()} == pytest.approx(
        {"direct": 5 * MS, "gemm": 3 * MS, "winograd": 1.5 * MS}
    )


def test_a_plan_may_mix_lowerings():
    mixed = replace(FORCED[0], case=replace(FORCED[0].case, plan=Plan("best", ((A, "fft"), (B, "winograd")))))
    (group,) = groups(run(mixed, FORCED[1]))
    assert list(group.lowerings(A)) == ["fft", "gemm"]
    assert sorted(group.lowerings(B)) == ["gemm", "winograd"]


def test_tuned_kernels_are_other_code():
    plan = replace(FORCED[2].case.plan, tuned=(Tuned("t", (1, 1), "", "", ""),))
    tuned = replace(forced("winograd", 1.0, 1, ("fc", 6.0)), case=replace(FORCED[2].case, plan=plan))
    (group,) = groups(run(*FORCED, tuned))
    assert group.lowerings(A)["winograd"][0] == pytest.approx(1.0 * MS)


def test_what_is_fused_away_is_no_time_where_it_must_be_done():
    """A row without kernels of fully connected layers does them somewhere; one without activations just has none."""
    fused = measured(one_pass(9.0, (A, 2.0), (B, 9.0)), runner="ort")
    plain = measured(one_pass(20.0, (A, 3.0), ("activation", 1.0), (B, 3.0), ("fc", 6.0)))
    (group,) = groups(run(plain, fused, **NETWORK))
    assert group.best("fc")[0] == pytest.approx(6 * MS)
    assert group.best("activation")[0] == 0
    (group,) = groups(run(plain, fused))  # nobody knows what must be done
    assert group.best("activation")[0] == pytest.approx(1 * MS)


def test_rows_whose_kernels_are_not_all_known_are_not_held_up():
    vague = measured(one_pass(9.0, (A, 0.5), (B, 0.5), ("fc", 0.5), ("", 0.5)), runner="ort", wall=9.0)
    lost = measured(one_pass(9.0, (A, 0.5), ("conv", 3.0), ("fc", 0.5)), framework="jax", wall=9.0)
    empty = measured(one_pass(9.0), framework="tensorflow", wall=9.0)
    found = explained(run(TORCH, vague, lost, empty, *FORCED, **NETWORK))
    assert found[0]["headroom"]["conv1"].seconds == pytest.approx(0.5 * MS)
    notes = " | ".join(found[0].notes)
    assert "pytorch ort, batch 1, threads 1: 5.6% of its time is in kernels of no known kind or site" in notes
    assert "jax native, batch 1, threads 1: 33.3% of its time" in notes
    assert "tensorflow native, batch 1, threads 1: no kernels were seen" in notes
    assert found[1]["residual"]["unattributed"].seconds == pytest.approx(0.5 * MS)
    assert found[1].unattributed_share == pytest.approx(0.5 / 9)
    assert found[2]["convolutions"]["elsewhere"].seconds == pytest.approx(3 * MS)
    assert found[3]["overhead"]["call"].seconds == pytest.approx(9 * MS)


def test_a_site_that_the_network_has_not_is_elsewhere():
    """A framework that pads beforehand runs another problem; the time is that of the convolution all the same."""
    padded = measured(one_pass(9.0, (replace(A, in_hw=(11, 11)), 2.0), (B, 1.0), ("fc", 5.0)), framework="jax")
    found = of(padded, *FORCED)
    assert ms(found["convolutions"]) == {"conv1": -1.5, "conv2": 0.0, "elsewhere": 2.0}


def test_all_that_is_tied_to_a_site_is_the_convolution_whatever_it_does_there():
    profile = Profile(5 * MS, (Kernel("product", 0.0, MS, A, "product"), Kernel("pad", MS, 3 * MS, A, kind="layout")))
    found = of(measured(profile))
    assert found["convolutions"]["conv1"].seconds == 0  # its own kernels are the best
    assert found["headroom"]["conv1"].seconds == pytest.approx(2 * MS)
    assert found["layout"].seconds == 0


def test_what_a_lowering_needs_at_a_site_is_in_what_it_takes_there_everywhere_alike():
    """Terms, what is predicted from kernels, and the heat map of a report."""
    one = FORCED[2].profiles[0]
    pad = Kernel("pad", 15 * MS, 15.25 * MS, A, "pad", "layout")
    padded = replace(FORCED[2], profiles=(replace(one, kernels=(*one.kernels, pad)),) * 2)
    made = run(TORCH, *FORCED[:2], padded, **NETWORK)
    (group,) = groups(made)
    every = (group.lowerings(A)["winograd"], group.best(A), group.costs["winograd", A])
    assert [x[0] for x in every] == pytest.approx([1.75 * MS] * 3)
    assert explained(made)[0]["algorithm"]["conv1"].seconds == pytest.approx((5 - 1.75) * MS)
    assert shares.spent(padded.profiles, shares.site)[A] == pytest.approx((1.75 * MS,) * 2)


def test_a_lowering_is_what_the_executor_takes_and_no_other_backend_of_that_name():
    """A backend that can be told an algorithm has rows with a plan, too; it is a peer, not what they are held up to."""
    plan = FORCED[0].case.plan
    other = measured(one_pass(20.0, (A, 0.5), (B, 0.5), ("fc", 6.0)), runner="cudnn", plan=plan)
    (group,) = groups(run(other, *FORCED))
    assert group.lowerings(A)["direct"][0] == pytest.approx(5 * MS)
    assert group.best(A)[0] == pytest.approx(0.5 * MS)
    assert [r.forced for r in group.rows] == [False, True, True, True]


def test_a_plan_that_was_predicted_from_others_tells_nothing_of_them():
    best = replace(FORCED[2], prediction={"total_s": 1.0}, case=replace(FORCED[2].case, options=(("a", "b"),)))
    (group,) = groups(run(best, *FORCED[:2]))
    assert sorted(group.lowerings(A)) == ["direct", "gemm"]


def test_on_a_gpu_no_roofs_of_the_cpu_are_a_floor():
    rows = [replace(m, case=replace(m.case, device="cuda:0")) for m in (TORCH, *FORCED)]
    found = explained(run(*rows, **NETWORK))[0]
    assert found["floor"].seconds == 0
    assert "floor is 0, as the roofs of cuda:0 are not measured with a run" in found.notes[0]


def test_a_floor_that_kernels_beat_is_told():
    """They read no faster than the machine can: so its roofs were measured at a slower moment."""
    quick = measured(one_pass(9.0, (A, 1.5), (B, 1.0), ("fc", 1.5)), framework="jax")
    found = of(TORCH, quick, *FORCED)
    assert found["headroom"]["fc"].seconds == pytest.approx(-0.5 * MS)
    assert any(n.startswith("fc: the best is 0.50 ms or more below its floor") for n in found.notes)
    assert not any("below its floor" in n for n in of(TORCH, *FORCED).notes)


@pytest.mark.parametrize(
    ("others", "network", "words"),
    [
        (FORCED, {}, "floor is 0, as the work of the layers is not known"),
        (FORCED, {"layers": {1: LAYERS}}, "floor is 0, as this machine was not calibrated with 1 threads"),
        (FORCED, DISTURBED, "floor may be too high, as other processes used 0.4 CPUs"),
        ((), NETWORK, "no other row was profiled"),
        ((ORT,), NETWORK, "are not told apart, as no row with a forced lowering was profiled"),
        (FORCED[1:], NETWORK, "are not told apart where no forced direct was profiled: conv1"),
        (FORCED[:1], NETWORK, "algorithm is 0 where one lowering alone was profiled: all convolutions"),
    ],
)
def test_what_can_not_be_known_is_zero_and_told(others, network, words):
    (found, *_) = explained(run(TORCH, *others, **network))
    assert any(words in n for n in found.notes), found.notes
    if words.startswith("floor is 0"):
        assert found["floor"].seconds == 0
    if "one lowering" in words:
        assert found["algorithm"].seconds == 0


def test_an_unknown_algorithm_and_missing_plain_steps_are_told():
    found = of(replace(ORT, plain=()), TORCH, *FORCED)
    assert "algorithm and quality are not told apart where the algorithm is unknown: conv2" in found.notes
    assert any("no unprofiled steps" in n for n in found.notes)
    assert [p.name for p in found["algorithm"].parts] == ["conv1"]
    assert ms(found["convolutions"]) == {"conv2": 2.5 - 1.0}
    assert found["residual"]["drift"].seconds == 0
    assert found.perturbation == pytest.approx((10.0 - 9.5) * MS)


def test_a_site_that_nobody_sees_has_no_headroom():
    found = of(measured(one_pass(9.0, (A, 2.0), ("fc", 5.0))))
    assert "no row tells what it spends at conv2: headroom is 0 there" in found.notes
    assert found["headroom"]["conv2"].seconds == 0
    assert found["convolutions"]["conv2"].seconds == pytest.approx(-MS)


def noisy(framework, a, overhead, seed, passes=9, plain=True):
    """Passes whose kernels vary by a tenth, samples that vary with them; a slow outlier in each."""
    g = random.Random(seed)
    made = []
    for i in range(passes):
        x = a * (1 + 0.1 * g.random()) + (50 if i == 4 else 0)
        made.append(one_pass(x + 2 + overhead, (A, x, "jit:avx2"), (B, 2.0, "jit:avx2"), start=overhead / 2))
    walls = [tuple(a * (1 + 0.1 * g.random()) + 2 + overhead for _ in range(10)) for _ in range(3)]
    return measured(made, framework, wall=walls, plain=walls[0] if plain else ())


def test_an_outlier_moves_no_term_and_the_interval_holds_the_truth():
    fast, slow = noisy("jax", 4.0, 1.0, 0), noisy("pytorch", 5.0, 3.0, 1)
    a, b, *_ = explained(run(slow, fast, *FORCED, **NETWORK))
    assert a["overhead"].seconds == pytest.approx(3 * MS)
    assert a["overhead"].low == pytest.approx(a["overhead"].high)  # it did not vary
    assert a["quality"].low < a["quality"].seconds < a["quality"].high
    gap = a.difference(b)
    assert gap["overhead"].seconds == pytest.approx(2 * MS)
    assert gap["quality"].low < 1.05 * MS < gap["quality"].high
    assert gap["headroom"].low == gap["headroom"].high == 0  # what both share cancels
    assert abs(a["residual"].seconds) < 0.3 * MS


def test_a_drift_that_hit_two_rows_alike_cancels_in_their_difference():
    """They were measured in turn, round by round; with as many rounds, the same are drawn for both."""
    levels = (1.0, 1.2, 0.9, 1.1)

    def drifting(framework, ms):
        passes = [one_pass(ms * level, (A, ms * level / 2, "jit")) for level in levels]
        return measured(passes, framework, wall=[ms * x for x in levels], plain=tuple(ms * x for x in levels))

    slow, fast = explained(run(drifting("pytorch", 10.0), drifting("jax", 9.0)))
    gap = slow.difference(fast)
    assert slow.wall.high - slow.wall.low > 3 * MS
    assert gap.wall.high - gap.wall.low < 0.2 * (slow.wall.high - slow.wall.low)
    assert slow["residual"].low == pytest.approx(0, abs=1e-9)  # samples, passes and steps of a round are drawn together
    assert slow["residual"].high == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("bad", range(5))
def test_a_round_between_whose_steps_and_passes_the_machine_changed_hardly_counts(bad):
    """What was timed in it says little of where the time of the passes went; a round that was slow throughout does."""
    slow = (bad + 1) % 5
    walls = [20.0 if i in (bad, slow) else 10.0 for i in range(5)]
    passes = [one_pass(20.0 if i == slow else 10.0, (A, 6.0)) for i in range(5)]
    (found,) = explained(run(measured(passes, wall=walls, plain=tuple(10.0 + 10 * (i == slow) for i in range(5)))))
    assert abs(found["residual"].seconds) < 0.06 * MS
    assert found.wall.seconds == pytest.approx(50 / 4 * MS, rel=0.01)


def test_of_one_round_no_interval_is_known_and_nothing_is_certain():
    one = measured([one_pass(10.0, (A, 6.0)), one_pass(11.0, (A, 6.5))], wall=[(10.0, 10.1)])
    (found,) = explained(run(one))
    for term in (found.wall, *found.terms):
        assert (term.low, term.high) == (-math.inf, math.inf) or term.seconds == term.low == term.high == 0, term
    assert any("one round" in n for n in found.notes)


def test_rounds_without_passes_between_them_tell_how_the_wall_time_varies():
    (found,) = explained(run(measured((one_pass(10.0, (A, 6.0)),), wall=[10.0, 11.0, 10.5])))
    assert math.isfinite(found.wall.high)
    assert found["convolutions"].high == math.inf


def test_a_row_of_one_round_is_not_held_up_to_others_of_more():
    once = measured([one_pass(9.0, (A, 1.0), (B, 0.5), ("fc", 3.0))] * 2, "jax", wall=[9.0])
    found = of(TORCH, once, *FORCED)
    assert found["headroom"]["conv1"].seconds == pytest.approx(0.5 * MS)
    assert math.isfinite(found["headroom"].high)
    assert any("jax native" in n and "profiled in one round alone" in n for n in found.notes)


def test_equal_convolutions_are_one_part():
    layers = (*LAYERS, LayerWork("conv3", "conv", B, 1e6, 500))
    found = of(TORCH, layers={1: layers}, machines={1: MACHINE})
    assert found["floor"]["conv2 and 1 more"].seconds == pytest.approx(2 * MS)


def test_sites_without_layers_are_told_in_words():
    wide = ConvSite(1, 3, (224, 224), 64, (11, 11), (4, 4), (2, 2, 2, 2))
    found = of(measured(one_pass(9.0, (wide, 2.0), (A, 1.0))), layers={})
    assert [p.name for p in found["convolutions"].parts] == ["3x224x224 -> 64, 11x11 /4", "8x9x9 -> 8, 3x3"]


def narrow(label="gemm_tf32"):
    """Products of 10 bits, fast."""
    plan = Plan(label, ((A, "gemm_tf32"), (B, "gemm_tf32")))
    found = measured(one_pass(20.0, (A, 0.1), (B, 0.1), ("fc", 5.0)), runner="tvm", plan=plan)
    return replace(found, sites=tuple(SiteRecord(s, "conv", "gemm_tf32", "gemm_tf32") for s in (A, B)))


def test_products_of_fewer_bits_are_neither_the_best_nor_what_a_lowering_takes():
    made = run(TORCH, narrow(), *FORCED, **NETWORK)
    (group,) = groups(made)
    assert group.best(A)[0] == pytest.approx(1.5 * MS)
    assert sorted(group.lowerings(A)) == ["direct", "gemm", "winograd"]
    assert any("pytorch tvm gemm_tf32" in n and "fewer bits" in n for n in explained(made)[0].notes)


def test_products_of_fewer_bits_are_the_best_only_where_no_other_row_tells():
    """Not where those of as many bits have kernels that nobody knows."""
    vague = measured(one_pass(20.0, (A, 3.0), ("fc", 6.0), ("", 2.0)))
    (group,) = groups(run(vague, narrow(), **NETWORK))
    found = [group.best(part)[0] for part in (A, B, "fc")]
    assert found == pytest.approx([3 * MS, 0.1 * MS, 6 * MS])


def test_rows_of_one_label_are_told_apart():
    """Of two plan files of one name."""
    plan = Plan("mine", FORCED[1].case.plan.lowerings)
    exact = replace(FORCED[1], case=replace(FORCED[1].case, plan=plan))
    (group,) = groups(run(exact, narrow("mine"), **NETWORK))
    assert sorted(group.lowerings(A)) == ["gemm"]


def test_the_first_of_the_run_decides_in_terms_as_in_reports():
    """Though it has no profile."""
    made = run(replace(narrow(), profiles=()), narrow("mine"), *FORCED, **NETWORK)
    (group,), (shown,) = groups(made), page_rows.groups(made)
    assert sorted(group.lowerings(A)) == ["gemm_tf32"]
    assert [e.case.plan.label for e in shown.entries if e.number in shown.apart] == ["direct", "gemm", "winograd"]
