"""The judge of a task against the reference of a network, and what it lets pass."""

import numpy as np
import pytest

from tests.tuning.planted import HOST, SITE, task
from xframe.equivalence.reference import Reference
from xframe.errors import Mismatch
from xframe.tuning.judge import Judge
from xframe.types import ModelSpec, layer


def exact(judge):
    """Value and bound of the whole output, channels last."""
    return (np.stack([getattr(e, what) for e in judge._exact]) for what in ("value", "bound"))


@pytest.fixture(scope="module")
def judge():
    return Judge(task(relu=float("inf")), HOST)


@pytest.mark.parametrize("relu", [None, float("inf"), 6.0])
def test_its_outputs_are_those_of_the_network(relu):
    made = Judge(task("winograd", relu=relu), HOST)
    rounding = made.task.variant.rounding
    conv = layer("conv", "conv", out=SITE.out_channels, kernel=SITE.kernel, pads=SITE.pads)
    after = {None: (), 6.0: (layer("act", "relu6"),)}.get(relu, (layer("act", "relu"),))
    spec = ModelSpec("one", (SITE.in_channels, *SITE.in_hw), (conv, *after))
    weights = {"conv.weight": made._weight, "conv.bias": made._bias}
    (expected,) = Reference.of_spec(spec, weights).evaluate([made._image], {SITE: rounding})
    value, bound = exact(made)
    np.testing.assert_allclose(value, expected.value.transpose(0, 2, 3, 1), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(bound, expected.bound.transpose(0, 2, 3, 1), rtol=1e-9)


def test_a_residual_image_is_added_before_the_activation():
    plain, added = Judge(task(), HOST), Judge(task(residual=True, relu=float("inf")), HOST)
    sums = exact(plain).__next__() + added._residual.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(exact(added).__next__(), np.maximum(sums, 0), rtol=1e-13, atol=1e-13)


def test_the_same_data_each_time():
    first, second = (Judge(task("fft"), HOST) for _ in range(2))
    for name in ("_image", "_weight", "_bias"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_what_is_within_its_bound_passes(judge):
    value, bound = exact(judge)
    assert judge.share(value.astype(np.float32)) < 0.5
    assert judge.share(value + 0.9 * bound) == pytest.approx(0.9)
    assert judge.share(value.astype(np.float32).reshape(-1, SITE.out_channels)) < 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_one_bad_element_is_enough(judge, bad):
    output = next(exact(judge)).astype(np.float32)
    output[1, 4, 7, 3] = bad
    with pytest.raises(Mismatch, match=r"of image 1.*\[4, 7, 3\]"):
        judge.share(output)


def test_an_element_just_beyond_its_bound_is_wrong(judge):
    value, bound = exact(judge)
    value[0, 2, 3, 5] -= 1.1 * bound[0, 2, 3, 5]
    with pytest.raises(Mismatch, match="times the bound"):
        judge.share(value)
