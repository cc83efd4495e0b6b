import numpy as np
import pytest

from xframe.normal import form
from xframe.normal.form import Weight

SHAPES = [(), (0,), (7,), (3, 0), (40, 30), (1, 900), (900, 1), (6, 5, 3, 3), (2, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 64, 1 << 18])
def test_equal_arrays_have_one_digest_in_any_memory_layout(shape, block, monkeypatch):
    monkeypatch.setattr(form, "BLOCK", block)
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32).reshape(shape)
    turned = np.array(a.T, order="C").T
    assert Weight(a).digest == Weight(turned).digest == Weight(a, ("w",), ("scaled",)).digest
    for at in range(0, a.size, 7):
        other = a.copy()
        other.reshape(-1)[at] += 1
        assert Weight(other).digest != Weight(a).digest


def test_shape_and_type_are_part_of_it_and_the_sign_of_zero_is_not():
    zeros = np.zeros((2, 3), np.float32)
    assert Weight(zeros).digest == Weight(-zeros).digest
    for other in (zeros.T, zeros.astype(np.int32), zeros.astype(np.float64)):
        assert Weight(zeros).digest != Weight(other).digest
