"""What a profiler adds, from a dummy run both ways."""

import numpy as np
import onnx
import onnxruntime
import pytest

from xframe.backends import profiler_cost


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the runs below move."""
    now = [0.0]
    monkeypatch.setattr(profiler_cost.time, "perf_counter", lambda: now[0])

    def spend(*seconds):
        left = list(seconds)

        def run():
            now[0] += left.pop(0) if len(left) > 1 else left[0]

        return run

    return spend


def test_the_difference_of_medians(clock):
    assert profiler_cost.added(clock(50.0, 1.0), clock(9.0, 3.0)) == 2.0  # what is slow at first does not count


def test_it_may_be_negative(clock):
    assert profiler_cost.added(clock(2.0), clock(1.5)) == -0.5


def test_what_is_done_before_a_run_does_not_count(clock):
    assert profiler_cost.added(clock(1.0), clock(3.0), first=clock(70.0, 5.0)) == 2.0


def test_a_typical_run_is_the_median(clock):
    assert profiler_cost.typical(clock(50.0, 1.0, 3.0), 3) == 3.0


def test_the_chain_is_valid_and_as_long_as_asked():
    model = onnx.load_model_from_string(profiler_cost.chain("Sum", 3, 5))
    onnx.checker.check_model(model, full_check=True)
    assert [n.op_type for n in model.graph.node] == ["Sum"] * 5
    assert all(len(n.input) == 3 for n in model.graph.node)


def test_a_single_node_reads_what_it_is_told():
    session = onnxruntime.InferenceSession(profiler_cost.single("MatMul", ((1, 4), (4, 5))))
    (made,) = session.run(None, {"x0": np.full((1, 4), 2, np.float32), "x1": np.ones((4, 5), np.float32)})
    assert np.array_equal(made, np.full((1, 5), 8))
