"""What ONNX Runtime's profiling costs: by what a node leaves in the caches."""

import pytest

from xframe.backends import ort_profiler_cost


def test_a_node_costs_more_the_less_of_the_profiler_is_left_in_the_caches(monkeypatch):
    """Between nodes of the calibration it is interpolated, beyond the largest it is as there."""
    given = iter([700e-6, 20e-6, 30e-6, 50e-6])

    def added(settings, nodes, first=lambda: None):
        first()
        return next(given)

    monkeypatch.setattr(ort_profiler_cost, "_added", added)
    cost = ort_profiler_cost.of_a_node.__wrapped__(1, ())
    assert cost(0) == pytest.approx(7e-6)
    conv = 4 * (256 * 169 + 384 * 256 * 9 + 384 * 169)
    assert cost(conv) == pytest.approx(20e-6)
    assert cost(conv / 2) == pytest.approx(13.5e-6)
    assert cost(1 << 30) == pytest.approx(50e-6)


def test_it_is_measured_here():
    cost = ort_profiler_cost.of_a_node(1, ())
    assert all(abs(cost(size)) < 1e-2 for size in (0, 1 << 20, 1 << 30))
