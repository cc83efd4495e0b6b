"""Two results: what is matched, what is judged how, and how often that is wrong on machines that drift."""

import json
import math
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tests.drifting import Noise, measurement, run
from xframe.analysis.changes import BROKEN, FAILING, FIXED, MISSING, NEW, REFUSED, changes, slowed
from xframe.errors import UsageError
from xframe.results import INTERRUPTED, Run
from xframe.types import Outcome, Plan

STEADY = [[0.010, 0.01001, 0.00999] * 5] * 3


def scaled(by, rounds=STEADY):
    return [[s * by for s in r] for r in rounds]


def found(old, new, **how):
    """Verdicts by framework."""
    return {c.identity.framework: c.verdict for c in changes(old, new, **how).rows}


def test_each_row_has_its_verdict_and_its_ratio():
    old = run(*(measurement(STEADY, f) for f in ("jax", "pytorch", "tensorflow")))
    new = run(*(measurement(scaled(by), f) for f, by in (("tensorflow", 1.2), ("pytorch", 0.9), ("jax", 1.005))))
    result = changes(old, new)
    assert [(c.identity.framework, c.verdict) for c in result.rows] == [
        ("tensorflow", "slower"), ("pytorch", "faster"), ("jax", "same"),
    ]  # fmt: skip
    assert [c.times.value for c in result.rows] == pytest.approx([1.2, 0.9, 1.005])
    assert [c.identity.framework for c in result.regressions] == ["tensorflow"]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("was", "now", "verdict", "code"),
    [
        (Outcome.OK, Outcome.MISMATCH, BROKEN, 1),
        (Outcome.OK, Outcome.UNAVAILABLE, BROKEN, 1),
        (Outcome.FAILED, Outcome.OK, FIXED, 0),
        (Outcome.FAILED, Outcome.MISMATCH, FAILING, 0),
        (Outcome.OK, Outcome.OK, "same", 0),
    ],
)
def test_outcomes_come_before_times(was, now, verdict, code):
    result = changes(run(measurement(STEADY, outcome=was)), run(measurement(STEADY, outcome=now)))
    (row,) = result.rows
    assert (row.verdict, result.exit_code) == (verdict, code)
    assert (row.times is None) == (verdict != "same")
    if now != Outcome.OK:
        assert row.reason == f"{now.value}: it broke"


def test_new_and_missing_rows_are_told_and_no_regression_but_what_is_gone_is_no_success():
    both, gone, come = measurement(STEADY, "jax"), measurement(STEADY, "pytorch"), measurement(STEADY, "tensorflow")
    result = changes(run(both, gone), run(come, both))
    assert [(c.identity.framework, c.verdict) for c in result.rows] == [
        ("tensorflow", NEW), ("jax", "same"), ("pytorch", MISSING),
    ]  # fmt: skip
    assert result.exit_code == 2
    assert all(c.reason for c in result.rows if c.verdict != "same")
    assert changes(run(both, gone), run(both), allowed=("missing",)).exit_code == 0
    assert changes(run(both), run(come, both)).exit_code == 0
    slow = measurement(scaled(2), "jax")
    assert changes(run(both, gone), run(slow)).exit_code == 1
    failed = measurement(STEADY, "pytorch", outcome=Outcome.FAILED)
    assert changes(run(both, failed), run(both)).exit_code == 0  # it told nothing before


def test_rows_are_matched_by_all_that_they_are_and_equal_ones_in_turn():
    rows = [
        measurement(scaled(i), framework, runner, **fields)
        for i, (framework, runner, fields) in enumerate(
            [
                ("jax", "native", {}),
                ("jax", "native", {"options": (("a", "1"), ("b", "2"))}),
                ("jax", "native", {"batch": 2}),
                ("jax", "native", {"threads": 1}),
                ("jax", "ort", {}),
                ("jax", "tvm", {"plan": Plan("fft")}),
                ("jax", "tvm", {"plan": Plan("gemm")}),
                ("jax", "native", {}),
            ],
            1,
        )
    ]
    turned = replace(rows[1], case=replace(rows[1].case, options=rows[1].case.options[::-1]))
    result = changes(run(*rows), run(rows[0], rows[7], *rows[2:7], turned))
    assert {c.verdict for c in result.rows} == {"same"}
    assert sorted(c.identity.nth for c in result.rows) == [0] * 7 + [1]


def test_a_change_that_all_rows_share_may_be_the_machine():
    names = ("jax", "pytorch", "tensorflow", "torch.compile")
    old, new = (run(*(measurement(scaled(by), f) for f in names)) for by in (1.0, 1.1))
    assert set(found(old, new).values()) == {"ambiguous"}
    assert changes(old, new).exit_code == 0
    assert "slower in the middle" in changes(old, new).rows[0].reason
    assert set(found(old, new, steady=True).values()) == {"slower"}
    few = [replace(r, measurements=r.measurements[:3]) for r in (old, new)]  # too few to tell the machine by
    assert set(found(*few).values()) == {"slower"}


def test_drift_is_taken_out_and_groups_drift_apart():
    names = ("jax", "pytorch", "tensorflow", "torch.compile")

    def result(by, batch_2):
        rows = [measurement(scaled(b), f) for f, b in zip(names, by, strict=True)]
        return run(*rows, *(measurement(scaled(batch_2), f, batch=2) for f in names))

    old, new = result([1, 1, 1, 1], 1), result([1.05, 1.05, 1.05, 1.16], 0.98)
    rows = changes(old, new).rows
    assert [c.verdict for c in rows[:4]] == ["ambiguous"] * 3 + ["slower"]
    assert rows[3].drift.value == pytest.approx(1.05)
    assert [c.verdict for c in rows[4:]] == ["same"] * 4
    masked = changes(old, result([0.9, 0.9, 0.9, 1.0], 1)).rows[3]
    assert (masked.verdict, changes(old, result([1, 1, 1, 1], 1)).exit_code) == ("ambiguous", 0)
    assert masked.reason.startswith("slower beside the others, same by itself")


@pytest.mark.parametrize("turns", [
    ({"group": 1}, {"group": 2}), ({"ablation": {"set": 0}}, {"ablation": {"set": 4}}),
])  # fmt: skip
def test_rows_that_memory_kept_apart_tell_nothing_of_each_other_s_drift(turns):
    names = ("jax", "pytorch", "tensorflow", "torch.compile")

    def result(first, second):
        one = [measurement(scaled(by), f, environment=turns[0]) for f, by in zip(names, first, strict=True)]
        return run(*one, *(measurement(scaled(second), f, "ort", environment=turns[1]) for f in names))

    rows = changes(result([1, 1, 1, 1], 1), result([1.05, 1.05, 1.05, 1.16], 0.9)).rows
    assert [c.drift.value for c in rows] == pytest.approx([1.05] * 4 + [0.9] * 4)
    assert [c.verdict for c in rows] == ["ambiguous"] * 3 + ["slower"] + ["ambiguous"] * 4


def beside(load, by=1.0):
    """A row that takes ``by`` as long, on a machine that others use."""
    return run(measurement(scaled(by), environment={"foreign_load": [0.0, load]}))


@pytest.mark.parametrize(
    ("load", "by", "verdict"),
    [
        (0.1, 1.1, "slower"),  # as much as there is on any machine
        (0.2, 1.4, "ambiguous"),
        (0.2, 1.6, "slower"),
        (0.8, 8.0, "ambiguous"),
        (0.8, 10.0, "slower"),
        (1.0, 100.0, "ambiguous"),
        (7.5, 100.0, "ambiguous"),
        (0.2, 1.0, "same"),
    ],
)
def test_a_load_excuses_what_it_can_explain_and_no_more(load, by, verdict):
    """A CPU of which others take a part L makes its thread, for which all wait, 1 / (1 - L) as slow; and the median
    step if they come while half of the steps run, which is (1 + L) / (1 - L)."""
    result = changes(run(measurement(STEADY)), beside(load, by))
    assert (result.rows[0].verdict, result.exit_code) == (verdict, int(verdict == "slower"))
    assert found(beside(load, by), run(measurement(STEADY))) == {
        "pytorch": verdict.replace("slower", "faster")
    }  # the slower one was disturbed


def test_the_reason_says_what_the_load_explains():
    (row,) = changes(run(measurement(STEADY)), beside(0.8, 1.2)).rows
    assert row.reason == (
        "slower, but not by what other processes can explain, which used up to 0.8 CPUs while the new one was timed:"
        " up to 9.0 times as long"
    )
    (row,) = changes(beside(1.5, 1.2), run(measurement(STEADY))).rows
    assert row.reason.endswith("which used up to 1.5 CPUs while the old one was timed: any time")


def test_a_load_beside_the_faster_one_excuses_nothing():
    """Others never make a row faster: what is slower than a disturbed row is slower."""
    assert found(beside(0.8), run(measurement(scaled(1.1)))) == {"pytorch": "slower"}
    assert found(run(measurement(scaled(1.1))), beside(0.8)) == {"pytorch": "faster"}


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_no_load_slows_a_median_step_by_more_than_is_said(load):
    """Steps of 1 on a CPU of which others have a share, in bursts over any part of the time: the worst median."""
    worst = 1.0
    for part in np.linspace(0.01, 1, 100):  # of the time, in which the share of others is load / part
        if load / part >= 1:
            continue
        slow = 1 / (1 - load / part)
        steps_slow, steps_fast = part / slow, 1 - part
        if steps_slow >= steps_fast:
            worst = max(worst, slow)
    assert worst <= slowed(load) < worst * 1.2


def test_two_excuses_are_told_and_multiply():
    old = run(measurement(STEADY, environment={"processes": 1}))
    (row,) = changes(old, beside(0.2, 1.6)).rows
    assert (row.verdict, "--fresh, and by what other processes can explain" in row.reason) == ("ambiguous", True)
    assert found(old, beside(0.2, 1.8)) == {"pytorch": "slower"}


def test_small_changes_of_one_process_are_ambiguous():
    """What stays for a process's life is in all of its visits, and no visit shows it."""

    def alone(by):
        return run(measurement(scaled(by), environment={"processes": 1}))

    (row,) = changes(alone(1), alone(1.13)).rows
    assert (row.verdict, row.times.value) == ("ambiguous", pytest.approx(1.13))
    assert row.reason == (
        "slower, but not by the 15% that two processes of the same code may differ by: measure both with --fresh"
    )
    assert found(alone(1.13), alone(1)) == {"pytorch": "ambiguous"}
    assert found(alone(1), run(measurement(scaled(1.13)))) == {"pytorch": "ambiguous"}
    assert found(alone(1), alone(1.2)) == {"pytorch": "slower"}
    assert found(alone(1), alone(1.01)) == {"pytorch": "same"}


def test_one_visit_decides_nothing_and_says_what_to_do():
    (row,) = changes(run(measurement(STEADY[:1])), run(measurement(scaled(3, STEADY[:1])))).rows
    assert (row.verdict, row.times.high) == ("ambiguous", math.inf)
    assert "--rounds 3" in row.reason


def test_the_threshold_is_what_counts_as_none():
    old, new = run(measurement(STEADY)), run(measurement(scaled(1.05)))
    assert found(old, new) == {"pytorch": "slower"}
    assert found(old, new, threshold=0.1) == {"pytorch": "same"}
    with pytest.raises(UsageError, match="--threshold -1 makes no sense"):
        changes(old, new, threshold=-1)


def test_results_of_other_machines_are_refused_unless_that_is_allowed():
    old, new = run(measurement(STEADY)), run(measurement(STEADY), cpu="Other CPU", governor="powersave")
    with pytest.raises(UsageError, match=r"can't be compared: cpu: Some CPU, now Other CPU .*--allow cpu"):
        changes(old, new)
    result = changes(old, new, allowed=("cpu",))
    assert [(d.name, d.refused) for d in result.differences] == [("cpu", False), ("governor", False)]
    assert result.exit_code == 0


def test_nothing_in_common_is_refused():
    with pytest.raises(UsageError, match="no row in common"):
        changes(run(measurement(STEADY, "jax")), run(measurement(STEADY, "pytorch")))


@pytest.mark.parametrize(("name", "value"), [("threads", 4), ("batch", 8), ("device", "cuda")])
def test_results_of_which_every_row_is_of_another_size_are_told_by_what(name, value):
    old, new = run(measurement(STEADY), measurement(STEADY, "jax")), run(measurement(scaled(2), **{name: value}))
    result = changes(old, new)
    assert [c.verdict for c in result.rows] == [REFUSED, MISSING]
    assert result.rows[0].reason.startswith(f"{name}: ")
    assert f", now {value} (" in result.rows[0].reason
    assert result.exit_code == 2
    allowed = changes(old, new, allowed=(name, "missing"))
    assert [c.verdict for c in allowed.rows] == ["slower", MISSING]
    several = run(*new.measurements, *(replace(m, case=replace(m.case, batch=16)) for m in new.measurements))
    with pytest.raises(UsageError, match="no row in common"):  # which of them it is nobody knows
        changes(old, several)


def test_a_row_that_computes_something_else_is_not_compared_and_costs_the_others_nothing():
    def result(tf32):
        return run(measurement(STEADY, "jax"), measurement(STEADY, environment={"tf32": tf32}))

    compared = changes(result(False), result(True))
    assert [c.verdict for c in compared.rows] == ["same", REFUSED]
    assert "tf32: False, now True" in compared.rows[1].reason
    assert compared.exit_code == 2
    slower = replace(result(True), measurements=(measurement(scaled(2), "jax"), result(True).measurements[1]))
    assert changes(result(False), slower).exit_code == 1  # what is known to be wrong comes first


def test_json_has_the_same_keys_whatever_became_of_a_row():
    old = run(measurement(STEADY, "jax"), measurement(STEADY, "pytorch"))
    new = run(measurement(STEADY, "jax"), measurement(STEADY, "tensorflow", outcome=Outcome.FAILED))
    result = changes(old, new)
    rows = json.loads(json.dumps([c.to_json() for c in result.rows]))
    assert {r["verdict"] for r in rows} == {"same", NEW, MISSING}
    assert len({tuple(r) for r in rows}) == 1
    assert json.loads(json.dumps(result.to_json()))["verdicts"] == {"same": 1, NEW: 1, MISSING: 1}


def wrong(noise, pairs, rows=8, changed=None, seed=0, **how):
    """Verdicts over simulated pairs of results; ``changed``: (row, factor) of one in the second result."""
    rng, times = np.random.default_rng(seed), np.geomspace(0.002, 0.2, rows)
    verdicts = []
    for _ in range(pairs):
        later = times.copy()
        if changed:
            later[changed[0]] *= changed[1]
        verdicts.append([c.verdict for c in changes(noise.result(rng, times), noise.result(rng, later), **how).rows])
    return verdicts


def test_equal_code_is_hardly_ever_told_to_be_slower_or_faster():
    """1,600 rows of pairs of results of the same code: what the docstring of the module says, with room."""
    verdicts = [v for pair in wrong(Noise(), 200) for v in pair]
    assert sum(v in ("slower", "faster") for v in verdicts) <= 8


def test_ten_percent_are_found():
    verdicts = wrong(Noise(), 100, changed=(3, 1.10))
    assert sum(v[3] == "slower" for v in verdicts) >= 75
    assert not any(v[3] == "faster" for v in verdicts)
    more = wrong(Noise(), 60, changed=(3, 1.10), seed=1)
    assert sum(v[3] == "slower" for v in more) >= 45


def test_a_lone_row_is_judged_by_its_own_noise():
    """Without neighbours drift between results can't be seen; on a steady machine it is as good."""
    quiet = Noise(between=0.0)
    assert sum(v in ("slower", "faster") for (v,) in wrong(quiet, 300, rows=1)) <= 6
    assert sum(v == "slower" for (v,) in wrong(quiet, 100, rows=1, changed=(0, 1.10))) >= 80


@settings(max_examples=12, derandomize=True)
@given(
    st.floats(0, 0.08), st.floats(0, 0.02), st.floats(0, 0.02), st.floats(0, 0.01), st.floats(0.002, 0.1),
    st.integers(2, 6), st.integers(1, 40), st.integers(4, 10),
)  # fmt: skip
def test_whatever_the_noise_false_alarms_are_rare(between, visits, visit, process, sample, rounds, samples, rows):
    noise = Noise(between, visits, visit, process, sample)
    rng, times = np.random.default_rng(rounds), np.full(rows, 0.01)
    told = [
        c.verdict
        for _ in range(20)
        for c in changes(*(noise.result(rng, times, visits=rounds, samples=samples) for _ in "ab")).rows
    ]
    assert sum(v in ("slower", "faster") for v in told) <= 0.03 * len(told)


@settings(max_examples=25, derandomize=True)
@given(st.integers(0, 10**6), st.floats(1.15, 3.0))
def test_what_is_slower_one_way_is_faster_the_other(seed, factor):
    rng, times = np.random.default_rng(seed), np.geomspace(0.002, 0.2, 5)
    noise = Noise(between=0.01, visits=0.002, visit=0.002, process=0.002)
    old, new = noise.result(rng, times), noise.result(rng, times * [1, 1, factor, 1, 1])
    assert [c.verdict for c in changes(old, new).rows][2] == "slower"
    assert [c.verdict for c in changes(new, old).rows][2] == "faster"


def test_what_an_interrupt_left_out_is_gone_and_no_regression():
    cut = measurement((), "jax", outcome=Outcome.FAILED, reason=INTERRUPTED)
    whole, short = run(measurement(STEADY), measurement(STEADY, "jax")), run(measurement(STEADY), cut)
    result = changes(whole, short)
    assert [(c.identity.framework, c.verdict) for c in result.rows] == [("pytorch", "same"), ("jax", MISSING)]
    assert result.exit_code == 2
    assert found(short, whole) == {"pytorch": "same", "jax": NEW}
    with pytest.raises(UsageError, match="no row in common"):
        changes(whole, Run(2, "", [], run().environment, [cut]))
