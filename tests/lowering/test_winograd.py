import numpy as np
import pytest

from xframe.lowering.winograd import LARGEST, growth, matrices

SIZES = [(m, r) for r in range(1, LARGEST) for m in range(1, LARGEST) if m + r - 1 <= LARGEST]


@pytest.mark.parametrize(("m", "r"), SIZES)
def test_the_matrices_convolve(m, r):
    g = np.random.default_rng(0)
    data, taps = g.standard_normal(m + r - 1), g.standard_normal(r)
    at, gg, bt = matrices(m, r)
    np.testing.assert_allclose(at @ ((gg @ taps) * (bt @ data)), np.correlate(data, taps, "valid"), atol=1e-11)


def test_f23_is_the_textbook_one():
    """Lavin and Gray's F(2,3), up to the sign and scale that a point may carry."""
    at, g, bt = matrices(2, 3)
    assert np.array_equal(np.abs(at), [[1, 1, 1, 0], [0, 1, 1, 1]])
    assert sorted(np.abs(g).sum(1)) == [1, 1, 1.5, 1.5]
    assert np.abs(bt).sum(1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (4, 5)])
def test_growth_is_what_a_simulation_finds(m, r):
    """Independent relative errors of each product, against the same in a plain sum of r products."""
    g = np.random.default_rng(1)
    n, a = 20000, m + r - 1
    at, gg, bt = matrices(m, r)
    data, taps = g.standard_normal((n, a)), g.standard_normal((n, r))
    error = ((taps @ gg.T) * (data @ bt.T) * g.standard_normal((n, a))) @ at.T
    measured = np.sqrt((error**2).mean(0).max() / r)
    assert measured == pytest.approx(growth(m, r), rel=0.1)
