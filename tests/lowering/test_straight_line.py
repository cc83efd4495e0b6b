import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xframe.lowering.fourier import dft, inverse_dft
from xframe.lowering.straight_line import product
from xframe.lowering.winograd import matrices


class Counted:
    """A number that counts the additions done with its kind."""

    additions = 0

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        Counted.additions += 1
        return Counted(self.value + other.value)

    def __sub__(self, other):
        Counted.additions += 1
        return Counted(self.value - other.value)

    def __mul__(self, factor):
        return Counted(self.value * factor)


def multiply(matrix, x):
    """(result, additions used)."""
    Counted.additions = 0
    out = product(matrix, [None if v is None else Counted(v) for v in x], lambda e: e)
    return np.array([0.0 if y is None else y.value for y in out]), Counted.additions


@given(hnp.arrays(float, hnp.array_shapes(min_dims=2, max_dims=2, max_side=7), elements=st.integers(-2, 2)))
def test_any_matrix(matrix):
    x = np.linspace(1, 2, matrix.shape[1])
    np.testing.assert_allclose(multiply(matrix, x)[0], matrix @ x, atol=1e-12)


@given(st.integers(2, 32), st.data())
def test_known_zeros_need_not_be_given(n, data):
    x = np.random.default_rng(n).standard_normal(n)
    zeros = data.draw(st.sets(st.integers(0, n - 1)))
    values = [None if i in zeros else v for i, v in enumerate(x)]
    exact = dft(n) @ [0.0 if v is None else v for v in values]
    np.testing.assert_allclose(multiply(dft(n), values)[0], exact, atol=1e-10)


@pytest.mark.parametrize("n", range(2, 33))
def test_dft_and_its_inverse(n):
    x = np.random.default_rng(n).standard_normal(n)
    spectrum = np.fft.rfft(x)
    got, _ = multiply(dft(n), x)
    np.testing.assert_allclose(got, np.concatenate([spectrum.real, spectrum.imag]), atol=1e-12)
    np.testing.assert_allclose(multiply(inverse_dft(n), got)[0], x, atol=1e-12)


@pytest.mark.parametrize(("n", "at_most"), [(8, 20), (16, 58), (32, 160)])
def test_dft_is_halved_again_and_again(n, at_most):
    """The plain product of n = 16 takes 246 additions; the split-radix FFT of real numbers 58."""
    assert multiply(dft(n), np.ones(n))[1] <= at_most


def test_winograd_transforms_share_their_sums():
    _, _, bt = matrices(4, 3)
    assert multiply(bt, np.ones(6))[1] < np.count_nonzero(bt) - 6
