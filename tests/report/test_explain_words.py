"""What is said of terms made by hand, word by word."""

import math
from dataclasses import replace

import pytest

from tests.analysis.profiles import A, B, forced, measured, one_pass, run
from xframe.analysis.costs import EARLIER
from xframe.analysis.counterfactuals import SAME, Change, Counterfactual
from xframe.analysis.decomposition import explained
from xframe.analysis.explanation import Explanation
from xframe.analysis.shares import PROFILER
from xframe.analysis.terms import TERMS, Decomposition, Term
from xframe.report import explain_words
from xframe.results import LayerWork, Measurement, Run
from xframe.types import Case, ConvSite, Outcome, Plan

SITE = ConvSite(1, 3, (8, 8), 4, (3, 3))


def term(name, ms, half=0.0, parts=()):
    return Term(name, ms / 1e3, (ms - half) / 1e3, (ms + half) / 1e3, tuple(parts))


def decomposition(framework, wall, half=0.1, residual_half=0.1, runner="native", **terms):
    """``terms``: (milliseconds, half of the interval) by part; the residual is what is left."""
    case = Case("m", framework, runner, Plan(), "cpu", 1, 2)
    made = []
    for name in (n for n in TERMS[:-1] if n != "convolutions" or n in terms):
        parts = [term(part, *value) for part, value in terms.get(name, {}).items()]
        made.append(
            term(name, sum(p.seconds for p in parts) * 1e3, sum(p.high - p.seconds for p in parts) * 1e3, parts)
        )
    left = wall - sum(t.seconds for t in made) * 1e3
    return Decomposition(framework, term("wall", wall, half), (*made, term("residual", left, residual_half)), case=case)


SHARED = {"floor": {"conv1": (1.5,), "fc": (4.5,)}, "headroom": {"conv1": (0.5,), "fc": (1.5,)}}
TORCH = decomposition(
    "pytorch",
    20.4,
    **SHARED,
    quality={"conv1": (1.2, 0.02)},
    operators={"fc": (9.0, 0.2), "pool": (1.0, 0.3)},
    layout={"layout": (0.3, 0.02)},
    overhead={"dispatch": (0.5, 0.02), "gaps": (0.3, 0.02)},
)
TENSORFLOW = decomposition(
    "tensorflow",
    16.3,
    **SHARED,
    quality={"conv1": (1.5, 0.02)},
    operators={"fc": (4.4, 0.2), "pool": (1.0, 0.3)},
    layout={"layout": (0.8, 0.02)},
    overhead={"dispatch": (0.7, 0.02), "gaps": (0.2, 0.02)},
)


def test_a_difference_in_words():
    assert explain_words.difference(TENSORFLOW, TORCH) == (
        "tensorflow is 4.1 +- 0.2 ms (20%) faster than pytorch at batch 1, 2 threads: FC kernels 4.6, layout changes"
        " -0.5, convolution kernels -0.3, dispatch -0.2, gaps between kernels 0.1, all else 0.0, residual 0.4 +- 0.2."
        " Not distinguishable from 0: pooling kernels (0.0 +- 0.6)."
    )


def test_what_is_printed_of_a_difference_sums_to_it():
    text = explain_words.difference(TENSORFLOW, TORCH).partition(": ")[2].partition(". Not")[0]
    numbers = [float(part.partition(" +-")[0].split()[-1]) for part in text.split(", ")]
    assert sum(numbers) == pytest.approx(4.1)


def test_a_difference_that_may_be_none_is_not_told_as_one():
    text = explain_words.difference(replace(TENSORFLOW, wall=term("wall", 20.3, 0.1)), TORCH)
    assert text.startswith(
        "tensorflow and pytorch are not distinguishable at batch 1, 2 threads: 0.1 ms apart, between"
    )
    assert "between -0.1 and 0.3; what tensorflow saves: FC kernels 4.6, " in text
    assert "faster" not in text


def test_algorithm_and_quality_are_told_apart_where_the_algorithm_makes_a_difference():
    other = decomposition("jax", 21.4, **SHARED, algorithm={"conv1": (0.7, 0.05)}, quality={"conv1": (1.4, 0.05)})
    assert "convolution kernels 0.6 (algorithm 0.7, quality -0.1)" in explain_words.difference(TENSORFLOW, other)
    flat = decomposition("jax", 21.4, **SHARED, algorithm={"conv1": (0.7, 0.9)}, quality={"conv1": (2.4, 0.05)})
    assert "(algorithm" not in explain_words.difference(TENSORFLOW, flat)


def test_convolutions_that_are_not_told_apart_have_no_algorithm():
    """What nobody knows is no fact of the sentence, nor is it called quality."""
    whole = decomposition("jax", 21.4, **SHARED, convolutions={"conv1": (2.1, 0.05)})
    other = decomposition("pytorch", 20.4, **SHARED, algorithm={"conv1": (0.7, 0.05)}, quality={"conv1": (0.4, 0.05)})
    text = explain_words.difference(other, whole)
    assert "convolution kernels 1.0," in text
    assert "algorithm" not in text
    partly = decomposition(
        "jax", 21.4, **SHARED, algorithm={"conv2": (0.7, 0.05)}, convolutions={"conv1": (1.4, 0.05)}
    )  # fmt: skip
    text = explain_words.difference(TENSORFLOW, partly)
    assert "(algorithm 0.7, quality 0.0, not told apart -0.1)" in text
    assert "convolution kernels 4.1 (19%)" in explain_words.goes(whole)


@pytest.mark.parametrize("names", [("conv", "pool"), ("fc", "copy")])
def test_what_a_row_spends_sums_whatever_its_layers_are_called(names):
    layers = tuple(LayerWork(n, "conv", s, 0, 0) for n, s in zip(names, (A, B), strict=True))
    made = run(measured(one_pass(9.0, (A, 3.0), (B, 2.0), ("pool", 1.0))), forced("gemm", 1, 1), layers={1: layers})
    d = explained(made)[0]
    parts = explain_words.spent(d)
    assert sum(t.seconds for _, t in parts) + d["residual"].seconds == pytest.approx(d.wall.seconds)
    assert dict(parts)["convolution kernels"].seconds == pytest.approx(5e-3)


def test_of_one_round_nothing_is_told_as_a_fact():
    def open_ended(d):
        terms = tuple(replace(t, low=-math.inf, high=math.inf, parts=()) for t in d.terms)
        return replace(d, wall=replace(d.wall, low=-math.inf, high=math.inf), terms=terms)

    text = explain_words.difference(open_ended(TENSORFLOW), open_ended(TORCH))
    assert text.startswith(
        "tensorflow and pytorch are not distinguishable at batch 1, 2 threads: 4.1 ms apart, in one round, which does"
        " not tell how rounds differ; what tensorflow saves: all else"
    )
    assert "inf" not in text
    text = explain_words.goes(open_ended(TORCH))
    assert text.startswith("pytorch takes 20.4 ms at batch 1, 2 threads: ")
    assert "Nothing that was measured here would make it distinguishably faster." in text
    assert "inf" not in text


def test_what_would_be_saved_is_told_with_both_ends_of_its_interval():
    skewed = Term("fc", 4.8e-3, 4.5e-3, 5.4e-3)
    row = replace(TORCH, terms=tuple(replace(t, parts=(skewed,)) if t.name == "operators" else t for t in TORCH.terms))
    assert "the best FC kernels measured here, -4.8 (-5.4 to -4.5) ms." in explain_words.goes(row)


def test_a_residual_or_unknown_kernels_above_the_bars_are_told():
    off = decomposition("jax", 15.4, **SHARED, operators={"fc": (8.0, 0.2)})
    assert explain_words.doubt(TORCH) == ""
    told = explain_words.doubts([("torch", TORCH), ("jax", off), ("ort", replace(TORCH, unattributed=0.0005))])
    assert told == [
        "Take with care: the residual is -4% of the time of jax; kernels of no known kind are 2% of the time of ort."
    ]


def test_a_prediction_and_a_measurement_that_exclude_each_other_are_told():
    text = explain_words.counterfactual(replace(ASKED, measured=term("measured", -1.4, 0.3)))
    assert "measured -1.40 +- 0.30 ms. The two exclude each other: " in text
    assert "exclude" not in explain_words.counterfactual(ASKED)


def test_overhead_is_one_number_where_the_profiler_is_a_large_part_of_it():
    own = decomposition("jax", 21.4, **SHARED, overhead={"dispatch": (2.0, 0.02), PROFILER: (-0.5, 0.01)})
    text = explain_words.difference(TENSORFLOW, own)
    assert "overhead outside kernels 0.6" in text
    assert "dispatch" not in text


def test_where_a_row_s_time_goes_and_what_would_change_most():
    assert explain_words.goes(TORCH) == (
        "pytorch takes 20.4 +- 0.1 ms at batch 1, 2 threads: FC kernels 15.0 (74%), convolution kernels 3.2 (16%),"
        " pooling kernels 1.0 (5%), overhead outside kernels 0.8 (4%), layout changes and copies 0.3 (1%); residual 0.1"
        " +- 0.1 (0.5%). What would change most: the best FC kernels measured here, -9.0 +- 0.2 ms. The best kernels"
        " measured here are 2.0 ms above the floor of this machine."
    )


def test_no_saving_is_promised_that_the_interval_does_not_support():
    best = decomposition("jax", 8.0, **SHARED, operators={"fc": (0.3, 0.4)}, overhead={"gaps": (-0.2, 0.1)})
    assert explain_words.savings(best) == []
    text = explain_words.goes(best)
    assert "Nothing that was measured here would make it distinguishably faster." in text
    assert "FC kernels 6.30 (79%)" in text


def test_fast_rows_have_more_decimals():
    row = decomposition("jax", 0.5, 0.004, 0.001, operators={"fc": (0.42, 0.002)})
    assert "0.500 +- 0.004 ms" in explain_words.goes(row)
    assert "FC kernels 0.420 (84%)" in explain_words.goes(row)


def test_sums_keep_their_resamples_where_all_have_them():
    import numpy as np

    one, two = (Term.of(n, np.array([v, v - 1, v + 1] * 2)) for n, v in (("a", 5.0), ("b", 3.0)))
    both = explain_words.total("c", (one, two))
    assert both.seconds == 8.0
    assert len(both.replicates) == 5
    mixed = explain_words.total("c", (one, term("b", 3000.0, 500.0)))
    assert (mixed.seconds, mixed.replicates) == (8.0, None)
    assert mixed.low == pytest.approx(one.low + 2.5)


CASE = Case("m", "pytorch", "native", Plan(), "cpu", 1, 2)
ASKED = Counterfactual(
    CASE,
    "conv2-conv3=winograd",
    (Change("conv2", "direct", "winograd"), Change("conv3", "gemm", "winograd")),
    term("replaced", -2.5, 0.1),
    term("predicted", -2.0, 0.2),
    term("measured", -1.9, 0.3),
)


def test_a_counterfactual_in_words():
    assert explain_words.counterfactual(ASKED) == (
        "If pytorch used conv2-conv3=winograd at batch 1, 2 threads (winograd instead of direct at conv2; winograd"
        " instead of gemm at conv3): predicted -2.50 +- 0.10 ms with the executor's kernels there, -2.00 +- 0.20 ms"
        " with kernels of its own quality. The executor, which ran both plans: predicted -2.00 +- 0.20 ms, measured"
        " -1.90 +- 0.30 ms."
    )


def test_of_an_unknown_algorithm_no_kernels_of_the_same_quality_are_promised():
    unknown = replace(ASKED, changes=(Change("conv2", None, "winograd"),), notes=("a note", "another"))
    text = explain_words.counterfactual(unknown)
    assert "winograd instead of an unknown algorithm at conv2" in text
    assert "quality" not in text
    assert text.endswith("measured -1.90 +- 0.30 ms. (a note; another.)")


def test_a_refused_counterfactual_one_that_is_not_run_and_one_that_changes_nothing():
    nothing = replace(ASKED, measured=None, predicted=None, replaced=None)
    refused = explain_words.counterfactual(replace(nothing, outcome=Outcome.UNSUPPORTED, reason="wide"))
    assert refused.endswith("conv3). It was not run: UNSUPPORTED, wide.")
    assert explain_words.counterfactual(replace(ASKED, measured=None)).endswith(
        "Nothing is measured: the executor has no row of the lowerings that it uses."
    )
    one = replace(ASKED, measured=None, reason=SAME)
    assert explain_words.counterfactual(one).endswith("stands for what it uses already, so that there is one plan.")
    same = Counterfactual(CASE, "all=direct", ())
    assert explain_words.counterfactual(same) == "If pytorch used all=direct at batch 1, 2 threads. Nothing changes."
    small = explain_words.counterfactual(replace(ASKED, measured=term("measured", 0.1, 0.3)))
    assert "measured +0.10 +- 0.30 ms (not distinguishable from 0)" in small


def test_all_sentences_the_differences_first_and_rows_without_a_decomposition_too():
    dead = Measurement(replace(CASE, framework="jax"), Outcome.UNAVAILABLE, "pip install it")
    blind = Measurement(replace(CASE, framework="caffe"), Outcome.OK, rounds=((0.1,),), notes=("no profile: no tool",))
    best = Case("m", "pytorch", "tvm", Plan("best", ((SITE, "fft"),)), "cpu", 1, 2)
    oracle = Measurement(best, Outcome.OK, rounds=((0.0101,) * 3,), prediction={"total_s": 0.01})
    run = Run(2, "now", (), {}, (dead, blind, oracle))
    told = explain_words.sentences(Explanation(run, (dead, blind), (TORCH, TENSORFLOW), (ASKED,)))
    assert [text.split(" ")[0] for text in told] == ["tensorflow", "pytorch", "tensorflow", "jax", "caffe", "If", "tvm"]
    assert told[3] == "jax at batch 1, 2 threads is not explained: UNAVAILABLE, pip install it"
    assert told[4] == "caffe at batch 1, 2 threads is not explained: no profile: no tool"
    assert told[6] == (
        "tvm best (pytorch's export), the cheapest lowering at each different convolution (1 fft), run in the common"
        " executor at batch 1, 2 threads: predicted 10.00 ms, measured 10.10 ms (+1.0%)."
    )


def test_costs_of_another_day_are_told_beside_what_they_predicted():
    best = Case("m", "pytorch", "tvm", Plan("best", ((SITE, "fft"),)), "cpu", 1, 2)
    note = f"{EARLIER} 2026-01-02 03:04"
    row = Measurement(best, Outcome.OK, rounds=((0.01,),), prediction={"total_s": 0.01}, notes=("another", note))
    assert explain_words.prediction(row).endswith(
        "measured 10.00 ms (+0.0%). Best was chosen by costs that were measured on 2026-01-02 03:04."
    )


def test_of_many_rows_each_is_compared_with_the_fastest():
    rows = tuple(decomposition(f"f{i}", 10.0 + i) for i in range(5))
    pairs = list(Explanation(Run(2, "now", (), {}, ()), (), rows).pairs())
    assert [(a.title, b.title) for a, b in pairs] == [("f0", f"f{i}") for i in range(1, 5)]
    assert len(list(Explanation(Run(2, "now", (), {}, ()), (), rows[:3]).pairs())) == 3


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (CASE, "pytorch"),
        (replace(CASE, runner="ort"), "pytorch ort"),
        (replace(CASE, framework=None, runner="ort"), "ort"),
        (replace(CASE, runner="tvm", plan=Plan("fft", ((SITE, "fft"),))), "tvm fft (pytorch's export)"),
        (replace(CASE, options=(("layout", "channels_last"),)), "pytorch, layout channels_last"),
    ],
)
def test_rows_have_short_names(case, words):
    assert explain_words.row(case) == words


def test_an_interval_far_from_symmetric_is_told_by_its_ends():
    scale = explain_words.Scale(0.02)
    assert scale.within(Term("t", 0.010, 0.009, 0.0115)) == "10.0 +- 1.5"
    assert scale.within(Term("t", 0.010, 0.009, 0.025)) == "10.0 (9.0 to 25.0)"
    assert scale.within(Term("t", 0.010, 0.009999, 0.010)) == "10.0 +- 0.0"


def test_terms_that_do_not_fit_the_time_are_no_facts():
    """The passes were slowed down, or the timed steps were: there is no telling where the time went."""
    row = decomposition("jax", 6.0, **SHARED, operators={"fc": (9.0, 0.2)})
    assert not explain_words.fits(row)
    assert explain_words.fits(TORCH)
    found = Explanation(Run(2, "now", (), {}, ()), (), (TORCH, row), (replace(ASKED, case=row.case), ASKED))
    told = explain_words.sentences(found)
    assert told.pop(3) == "Take with care: the residual is -183% of the time of jax at batch 1, 2 threads."
    doubted = ["Not to be relied on: the profiled passes do not fit" in text for text in told]
    assert doubted == [True, False, True, True, False]  # the difference, each row, each counterfactual
    assert "What would change most" not in told[2]
