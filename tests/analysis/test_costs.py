"""Costs read off measurements, and the choice they lead to, against all choices counted out."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.networks import HOST, conv_data, conv_network, everywhere
from xframe.analysis.costs import Costs
from xframe.lowering import pipeline
from xframe.lowering.graph import ROLE
from xframe.registry import LOWERINGS, defaults
from xframe.results import Measurement
from xframe.types import CONVERSIONS, Case, ConvSite, Kernel, Outcome, Plan, Profile

A, B, C, D = (ConvSite(1, 8, (n, n), 8, (3, 3)) for n in (9, 8, 7, 6))


def profiled(label, lowerings, *passes, seconds=0.01):
    """A measurement under a plan; a pass is a list of (site or None, role, seconds)."""

    def kernels(rows):
        ends = np.cumsum([s for *_, s in rows])
        return tuple(
            Kernel(role, end - s, end, site, role) for (site, role, s), end in zip(rows, ends.tolist(), strict=True)
        )

    case = Case("m", "jax", "tvm", Plan(label, tuple(lowerings.items())), "cpu", 1, 1)
    profiles = tuple(Profile(sum(s for *_, s in rows), kernels(rows)) for rows in passes)
    return Measurement(case, Outcome.OK, rounds=((seconds,) * 3,), profiles=profiles)


def test_kernels_are_summed_by_site_and_pass_conversions_and_others_apart():
    def one(k):
        return [(None, "", 0.5), (A, "pad", 1.0 * k), (A, "input", 2.0 * k), (A, "product", 3.0), (B, "product", 4.0),
                (A, "pad", 1.0), (A, "product", 8.0), (None, "", 0.25)]  # fmt: skip

    mixed = profiled("fft", {A: "fft", B: "direct"}, one(1), one(2), seconds=20.0)
    plain = profiled("direct", {A: "direct", B: "direct"}, [(A, "product", 9.0), (B, "product", 5.0)], seconds=13.0)
    found = Costs.of([mixed, plain])
    assert found.kernels[A, "fft"] == pytest.approx((13.0, 15.0))
    assert found.conversions[A, "fft"] == pytest.approx((2.0, 3.0))
    assert found.kernels[B, "direct"] == pytest.approx((4.0, 4.0, 5.0))  # a fallback is measured too
    assert found.conversions[B, "direct"] == (0.0, 0.0, 0.0)
    assert found.other == pytest.approx((0.75, 0.75, 0.0))
    assert found.beyond == pytest.approx((20.0 - (19.75 + 22.75) / 2, 13.0 - 14.0))  # signed
    assert found.lowerings(A) == ["fft", "direct"]
    assert Costs.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_conversions_are_the_stages_that_only_move_an_image():
    """Of all lowerings, over an image that needs padding and one that is looked at with a stride."""
    padded = ConvSite(1, 3, (9, 9), 8, (3, 3), pads=(1, 1, 1, 1))
    roles = set()
    for lowering, site in itertools.product(defaults(LOWERINGS), (padded, replace(padded, stride=(2, 2)))):
        _, weight, bias = conv_data(site, 0)
        mod, _, _ = pipeline.forced(conv_network(site, weight, bias, False), everywhere(lowering, site), HOST)
        roles |= {str(f.attrs[ROLE]) for f in mod.functions.values() if f.attrs and ROLE in f.attrs}
    assert roles >= CONVERSIONS
    assert {part for role in roles - CONVERSIONS for part in role.split("_")} == {"input", "product", "output"}


def test_what_was_not_measured_is_told_and_costs_nothing():
    good = profiled("direct", {A: "direct"}, [(A, "product", 1.0)])
    wrong = replace(profiled("fft", {A: "fft"}, [(A, "product", 0.1)]), outcome=Outcome.MISMATCH, reason="off by 1")
    bare = replace(profiled("gemm", {A: "gemm"}), notes=("no profile: it crashed",))
    found = Costs.of([good, wrong, bare])
    assert found.lowerings(A) == ["direct"]
    assert found.failed == {"fft": ("MISMATCH", "off by 1"), "gemm": ("OK", "no profile: it crashed")}
    assert Costs.from_json(found.to_json()) == found


def costs(table, other=0.0, beyond=0.0):
    """``table``: site -> lowering -> (kernels, conversion)."""
    flat = {(site, name): pair for site, row in table.items() for name, pair in row.items()}
    return Costs({c: (p[0],) for c, p in flat.items()}, {c: (p[1],) for c, p in flat.items()}, (other,), (beyond,))


def test_the_median_pass_decides_not_one_outlier():
    samples = {(A, "gemm"): (1.0, 1.0, 99.0), (A, "fft"): (2.0, 2.0, 0.1)}
    chosen, _ = Costs(samples, dict.fromkeys(samples, (0.0,)), (0.0,), (0.0,)).cheapest([A], [])
    assert chosen == {A: "gemm"}


def test_a_conversion_flips_the_choice():
    row = {"gemm": (3.0, 0.0), "fft": (2.0, 0.5)}
    assert costs({A: row, B: row}).cheapest([A, B], [(0, 1)])[0] == {A: "fft", B: "fft"}
    dear = {"gemm": (3.0, 0.0), "fft": (2.0, 1.5)}
    assert costs({A: row, B: dear}).cheapest([A, B], [(0, 1)])[0] == {A: "fft", B: "gemm"}
    assert costs({A: dear, B: row}).cheapest([A, B], [(0, 1)])[0] == {A: "gemm", B: "fft"}  # of the network's input


def test_the_prediction_says_what_the_time_is_spent_on():
    table = costs({A: {"gemm": (3.0, 0.5)}, B: {"gemm": (1.0, 0.0), "fft": (0.5, 0.25)}}, other=10.0, beyond=-1.0)
    chosen, prediction = table.cheapest([A, B], [(0, 1)])
    assert chosen == {A: "gemm", B: "fft"}
    assert prediction.to_json() == {
        "total_s": 13.25, "sites_s": 3.5, "conversions_s": 0.75, "other_s": 10.0, "beyond_s": -1.0, "optimal": True,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_a_net_with_sums_and_concatenations_counts_each_conversion_once(seed):
    """D reads what all others made, B feeds another convolution like it."""
    g = np.random.default_rng(seed)
    table = {s: {n: tuple(g.integers(1, 9, 2).astype(float)) for n in ("gemm", "direct", "fft")} for s in (A, B, C, D)}
    sites, edges = [A, B, B, C, D], [(0, 1), (1, 2), (0, 3), (1, 3), (2, 3), (0, 4), (1, 4), (2, 4), (3, 4)]
    chosen, prediction = costs(table).cheapest(sites, edges)
    totals = {
        names: sum(sum(table[s][n]) for s, n in zip((A, B, C, D), names, strict=True))
        for names in itertools.product(("gemm", "direct", "fft"), repeat=4)
    }
    assert prediction.optimal
    assert prediction.total_s == pytest.approx(min(totals.values()))
    assert totals[tuple(chosen[s] for s in (A, B, C, D))] == pytest.approx(min(totals.values()))
