"""The sentences at the head of a report: which claim no more than the samples do."""

from dataclasses import replace

import numpy as np
import pytest

from tests import report_samples as samples
from xframe.analysis.decomposition import explained
from xframe.report import explain_words
from xframe.report import page_words as words
from xframe.report.charts_times import times
from xframe.report.page_rows import groups, name
from xframe.report.page_tables import rows, texts
from xframe.results import Measurement, Run
from xframe.types import Case, Outcome, Plan


def row(framework, *rounds, outcome=Outcome.OK, reason=""):
    return Measurement(Case("alexnet", framework, "native", Plan(), "cpu", 1, 2), outcome, reason, rounds)


def steady(seconds, noise=0.002):
    rng = np.random.default_rng(int(seconds * 1e6))
    return [tuple((seconds * rng.lognormal(0, noise, 20)).tolist()) for _ in range(5)]


def told(*measurements):
    run = Run(2, "2026", (), {}, measurements)
    (group,) = groups(run)
    return words.summary(run, group, ())


@pytest.fixture(scope="module")
def run():
    return samples.run()


def test_the_fastest_and_by_how_much():
    (line,) = told(row("pytorch", *steady(0.020)), row("tensorflow", *steady(0.010)), row("jax", *steady(0.015)))
    start, second, last = line.split("; ")
    assert start.startswith("Fastest is tensorflow, 10.0")
    assert start.endswith("n 100)")
    assert second.startswith("jax takes 1.50 times (1.")
    assert second.endswith(") as long")
    assert last.startswith("the slowest, pytorch, 2.00 times (")


def test_what_can_t_be_told_apart_is_not_ranked():
    (line,) = told(row("pytorch", *steady(0.010, 0.1)), row("jax", *steady(0.01002, 0.1)))
    assert line.endswith("can't be told from it by these samples.")
    assert "times" not in line


def test_rows_that_were_not_measured_in_turn_are_not_paired():
    """What both drifted by in their first rounds is nothing that they share."""
    drifting = [[x * level for x in r] for r, level in zip(steady(0.020), (1.0, 1.2, 0.9, 1.1, 0.95), strict=True)]
    slow, fast = row("pytorch", *drifting), row("jax", *([x / 1.1 for x in r] for r in drifting))
    assert "pytorch takes 1.10 times (1.10 to 1.10) as long" in told(slow, fast)[0]
    assert "can't be told from it" in told(slow, replace(fast, environment={"group": 2}))[0]


def narrow(seconds, tf32=True):
    return replace(row("pytorch", *steady(seconds)), environment={"tf32": tf32})


def test_products_of_fewer_bits_are_told_apart():
    lines = told(narrow(0.020, False), narrow(0.018, False), narrow(0.010))
    assert lines[0].startswith("Fastest is pytorch, 18.0")
    lines = told(narrow(0.020, False), narrow(0.010))
    assert lines[0].startswith("pytorch takes 20.0")
    assert lines[0].endswith("n 100).")
    assert lines[1].startswith("Not held against the others: pytorch (10.0")
    assert lines[1].endswith("ms); tf32 True, not False (products of 10 bits are another computation).")


def test_the_tables_and_charts_of_a_report_rank_as_the_sentences_do():
    (group,) = groups(Run(2, "2026", (), {}, (narrow(0.020, False), narrow(0.010), narrow(0.030, False))))
    assert [r[-1] for r in times(group, "times").rows] == ["-", "1.00", "1.50"]
    assert [e.number for e in group.ranked] == [1, 3]
    (told,) = [t for e in group.entries for t in texts(e, group)]
    assert told.startswith("not ranked with the others: tf32 True, not False")
    assert rows(group).count(">1.00<") == 1


def test_one_visit_tells_nothing_of_drift():
    (line,) = told(row("pytorch", (0.02,) * 50), row("jax", (0.01,) * 50))
    assert line.endswith("pytorch can't be told from it by these samples.")


def test_one_row_alone_is_no_contest():
    assert told(row("jax", (0.012,)), row("pytorch", outcome=Outcome.TIMEOUT, reason="slow")) == [
        "jax takes 12.00 ms (quartiles 12.00 to 12.00, n 1); no other row has a time.",
        "1 of 2 rows have no time: 1 TIMEOUT.",
    ]


def test_differences_then_where_the_time_goes_in_the_words_of_explain(run):
    found = explained(run)
    (group,) = groups(run)
    lines = words.summary(run, group, found)
    own = words.own(group, found)
    assert len(own) == 6  # no rows of the ablation
    assert [d.wall.seconds for d in own] == sorted(d.wall.seconds for d in own)
    pairs, peers = words.pairs(own), [d for d in own if d.case.runner != "tvm"]
    told = [explain_words.difference(p.fast, p.slow) for p in pairs]
    assert lines[1:4] == told[:3]  # the other three from the fastest
    assert words.further(group, found) == [*map(explain_words.goes, peers), *told[3:]]


def test_two_rows_are_told_in_full(run):
    two = replace(run, measurements=run.measurements[:2])
    (group,) = groups(two)
    lines = words.summary(two, group, explained(two))
    assert [line.partition(" ")[0] for line in lines[:4]] == ["Fastest", "tensorflow", "tensorflow", "pytorch"]
    assert words.further(group, explained(two)) == []


def test_forced_lowerings_are_no_peers(run):
    found = explained(run)
    assert [d.case.runner for d in words.peers(found)] == ["native"] * 3 + ["ort"]
    assert words.peers(found[3:]) == found[3:]  # one alone has nothing to differ from


def test_many_rows_are_told_against_the_fastest_alone(run):
    found = sorted(explained(run), key=lambda d: d.wall.seconds)
    free = [d for d in found if not d.case.plan.lowerings]
    assert len(words.pairs(found)) == 6
    many = [*free, *(replace(d, title=f"{d.title} again") for d in free)]
    assert {id(p.fast) for p in words.pairs(many)} == {id(many[0])}
    assert len(words.pairs(many)) == len(many) - 1


def test_a_decomposition_that_is_not_to_be_relied_on_says_so(run):
    found = explained(run)
    (group,) = groups(run)
    assert not any(s.startswith("Take with care") for s in words.summary(run, group, found))
    torch = found[0]
    residual = replace(torch["residual"], seconds=-0.05 * torch.wall.seconds)
    bad = replace(torch, terms=(*torch.terms[:-1], residual), unattributed=0.021 * torch.wall.seconds)
    (line,) = [s for s in words.summary(run, group, [bad, *found[1:]]) if s.startswith("Take with care")]
    assert line == "Take with care: the residual is -5% and kernels of no known kind are 2% of the time of pytorch."


def test_the_best_kernels_the_failures_and_the_options(run):
    (group,) = groups(run)
    lines = words.summary(run, group, ())
    assert "The fastest kernels at 5 different convolutions are those of tvm winograd at 5." in lines
    assert lines[-1] == "3 of 13 rows have no time: 1 UNSUPPORTED, 1 MISMATCH, 1 UNAVAILABLE."
    (first, *_) = words.of_options(run)
    assert first.startswith("options alone give pytorch 1.")
    assert first.endswith("at batch 1: layout=channels_last")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case("alexnet", "jax", "native", Plan(), "cpu", 1, 2), "jax"),
        (Case("alexnet", "jax", "ort", Plan(), "cpu", 1, 2), "jax ort"),
        (Case("/a/b/net.onnx", None, "ort", Plan(), "cpu", 1, 2), "ort"),
        (Case("alexnet", "jax", "tvm", Plan("fft"), "cpu", 1, 2), "tvm fft (jax's export)"),
        (Case("alexnet", "jax", "native", Plan(), "cpu", 1, 2, options=(("jit", "off"),)), "jax, jit off"),
        (
            Case("alexnet", "jax", "cudnn", Plan("fft"), "cuda", 1, 2, options=(("use_tf32", "on"),)),
            "cudnn fft (jax's export), use_tf32 on",
        ),
    ],
)
def test_names_of_rows(case, expected):
    assert name(case) == expected
