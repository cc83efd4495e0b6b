"""One row's passes: which were taken with which samples, and what its convolutions were."""

from dataclasses import replace

import pytest

from tests.analysis.profiles import MS, A, B, forced, measured, one_pass, run
from xframe.analysis.decomposition import groups
from xframe.analysis.passes import place, turns
from xframe.types import Kernel, Plan


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (Kernel("k", 0, 1, A, kind="conv"), ("conv", A)),
        (Kernel("pad", 0, 1, A, "pad", "layout"), ("conv", A)),
        (Kernel("k", 0, 1, A), ("conv", A)),
        (Kernel("k", 0, 1, kind="conv"), ("conv", None)),
        (Kernel("reorder", 0, 1, kind="layout", layer="conv1"), ("layout", None)),
        (Kernel("k", 0, 1), ("", None)),
    ],
)
def test_a_kernel_counts_as_the_convolution_that_it_is_tied_to_or_its_kind(kernel, expected):
    assert place(kernel) == expected


def test_samples_steps_and_passes_of_a_turn_are_told_or_spread_evenly():
    passes = [one_pass(float(i), (A, 1.0)) for i in range(1, 6)]
    m = measured(passes, wall=[(1.0, 1.1), (2.0,), (3.0,)], plain=tuple(range(1, 8)))
    even = turns(m)
    assert [len(t.passes) for t in even] == [1, 2, 2]
    assert [len(t.plain) for t in even] == [2, 2, 3]
    told = turns(replace(m, environment={"profiled": [[2, 4, 1], [3, 1, 6]]}))
    assert [[x / MS for x in t.samples] for t in told] == [pytest.approx([1.0, 1.1, 2.0]), pytest.approx([3.0])]
    assert [len(t.passes) for t in told] == [4, 1]
    assert [len(t.plain) for t in told] == [1, 6]
    assert turns(replace(m, environment={"profiled": [[1, 1, 1]]})) == even  # it is not of this measurement
    assert sum(len(t.passes) for t in turns(replace(m, rounds=m.rounds[:1]))) == 5


def test_another_backend_s_names_for_algorithms_are_its_own():
    """cuDNN's ``gemm`` writes the column matrix; the executor's on a GPU does not."""
    plan = Plan("gemm", ((A, "gemm"), (B, "gemm")))
    rows = (one_pass(9.0, (A, 1.0, "cudnn:gemm"), (B, 1.0, "cudnn:gemm")), forced("gemm", 1.0, 1.0))
    (group,) = groups(run(measured(rows[0], runner="cudnn", plan=plan), rows[1]))
    assert [r.lowerings[A] for r in group.rows] == ["gemm_explicit", "gemm"]
