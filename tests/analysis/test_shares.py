"""Shares and overhead against a clock that ticks: in whole seconds, one instant after the other."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xframe.analysis.shares import CALL, GAPS, OUTSIDE, OVERHEAD, PROFILER, busy, overhead, shares, site, spent
from xframe.types import HOST, ConvSite, Kernel, Profile, Span


def kernel(start, end):
    return Kernel("k", float(start), float(end))


def intervals(low=-3, high=15):
    return st.tuples(st.integers(low, high), st.integers(0, 8)).map(lambda x: (x[0], x[0] + x[1]))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], []),
        ([(0, 4)], [4]),
        ([(0, 4), (2, 4)], [3, 1]),
        ([(0, 3), (0, 3), (0, 3)], [1, 1, 1]),
        ([(0, 1), (5, 7)], [1, 2]),
        ([(3, 3), (2, 4)], [0, 2]),
        ([(5, 3), (2, 4)], [0, 2]),  # a clock that ran backwards
    ],
)
def test_an_instant_is_shared_by_what_runs_in_it(times, expected):
    assert shares([kernel(*t) for t in times]).tolist() == pytest.approx(expected)


@given(st.lists(intervals(), max_size=8))
def test_shares_are_those_of_a_ticking_clock(times):
    expected = [0.0] * len(times)
    for tick in range(-3, 30):
        running = [i for i, (a, b) in enumerate(times) if a <= tick < b]
        for i in running:
            expected[i] += 1 / len(running)
    found = shares([kernel(*t) for t in times])
    assert found.tolist() == pytest.approx(expected)
    assert found.sum() == pytest.approx(busy([kernel(*t) for t in times]))


@given(st.lists(st.tuples(st.floats(0, 1e-2), st.floats(0, 1e-2)), max_size=30))
def test_shares_sum_to_the_union(times):
    kernels = [Kernel("k", min(t), max(t)) for t in times]
    assert math.fsum(shares(kernels)) == pytest.approx(busy(kernels), rel=1e-12, abs=1e-16)


def ticking(profile):
    """The overhead, one second after the other."""
    out = dict.fromkeys(OVERHEAD, 0.0)
    runs = [k for k in profile.kernels if k.end > k.start]
    first, last = min((k.start for k in runs), default=99), max((k.end for k in runs), default=99)
    for tick in range(-3, 30):
        running = any(k.start <= tick < k.end for k in runs)
        if not 0 <= tick < profile.wall:
            out[OUTSIDE] -= running
        elif not running:
            around = [s for s in profile.host if s.start <= tick < s.end]
            inner = max(around, key=lambda s: (s.start, -s.end, HOST.index(s.kind)), default=None)
            out[inner.kind if inner else GAPS if first <= tick < last else CALL] += 1
    out[PROFILER] = -profile.cost
    return out


profiles = st.builds(
    lambda wall, kernels, host, cost: Profile(
        float(wall),
        tuple(kernel(*t) for t in kernels),
        tuple(Span("s", float(a), float(b), kind) for (a, b), kind in host),
        float(cost),
    ),
    st.integers(0, 15),
    st.lists(intervals(), max_size=5),
    st.lists(st.tuples(intervals(), st.sampled_from(HOST)), max_size=5),
    st.integers(0, 3),
)


@given(profiles)
def test_overhead_is_that_of_a_ticking_clock_and_sums_to_what_no_kernel_ran_in(profile):
    found = overhead(profile)
    assert found == pytest.approx(ticking(profile))
    assert sum(found.values()) == pytest.approx(profile.wall - busy(profile.kernels) - profile.cost)


@given(profiles, st.randoms(use_true_random=False))
def test_the_order_of_what_is_reported_does_not_matter(profile, random):
    kernels, host = list(profile.kernels), list(profile.host)
    random.shuffle(kernels)
    random.shuffle(host)
    assert overhead(Profile(profile.wall, tuple(kernels), tuple(host), profile.cost)) == overhead(profile)
    assert Counter(shares(kernels)) == Counter(shares(profile.kernels))


def test_the_innermost_span_has_the_instant():
    host = (Span("call", 0, 10, "python"), Span("op", 2, 8, "dispatch"), Span("malloc", 3, 5, "allocation"))
    found = overhead(Profile(12.0, (kernel(4, 6),), host, 0.5))
    expected = {"python": 4, "dispatch": 3, "allocation": 1, "call": 2, "gaps": 0, "profiler": -0.5}
    assert {k: v for k, v in found.items() if k in expected} == expected
    assert sum(found.values()) == 12 - 2 - 0.5


def test_a_site_has_the_shares_of_its_kernels_in_each_pass_that_has_any():
    one, other = ConvSite(1, 3, (8, 8), 4, (3, 3)), ConvSite(1, 4, (8, 8), 4, (3, 3))

    def profile(*kernels):
        return Profile(20.0, tuple(Kernel("k", float(a), float(b), site) for a, b, site in kernels))

    passes = [profile((0, 4, one), (2, 6, None), (7, 8, one)), profile(), profile((1, 3, other), (1, 3, one))]
    assert spent(passes, site) == {one: (4.0, 1.0), other: (1.0,)}
