"""Cases of what is around the operators: constants, inputs, outputs, batches, files, noise."""

import numpy as np
import onnx
import pytest
from small_models import DIFFERENT, EQUIVALENT, UNCHECKED, model, node, weights

from xframe.errors import ModelError

W, B = weights(6, 3, 3, 3), weights(6, scale=0.3)
CHANGED = W.copy()
CHANGED[2, 1, 0, 1] += 0.01
CONV = node("Conv", "x w b", "y", pads=[1] * 4)


def plain(w=W, **options):
    return model(CONV, w=w, b=B, **options)


def as_nodes(w=W):
    tensors = [onnx.numpy_helper.from_array(v, k) for k, v in (("w", w), ("b", B))]
    return model(*(node("Constant", "", t.name, value=t) for t in tensors), CONV)


WAYS = {
    "listed": lambda w: plain(w, listed=True, opset=9),
    "nodes": as_nodes,
    "opset": lambda w: plain(w, opset=9, ir=4),
    "symbolic": lambda w: plain(w, x=("batch", 3, 9, 9)),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_weights_kept_in_another_way(checked, way):
    state, text = checked(plain(), WAYS[way](W))
    assert state is EQUIVALENT
    assert way != "symbolic" or "batch" in text


@pytest.mark.parametrize("way", WAYS)
def test_a_weight_changed_and_kept_in_another_way(checked, way):
    state, text = checked(plain(), WAYS[way](CHANGED))
    assert state is DIFFERENT
    assert "weight" in text


def test_a_symbolic_batch_takes_the_other_ones(checked):
    assert checked(plain(x=(2, 3, 9, 9)), plain(x=("batch", 3, 9, 9)))[0] is EQUIVALENT
    assert checked(plain(x=("n", 3, 9, 9)), plain(x=(2, 3, 9, 9)))[0] is EQUIVALENT
    both = plain(x=("n", 3, 9, 9)), plain(x=("batch", 3, 9, 9))
    assert checked(*both)[0] is EQUIVALENT


@pytest.mark.parametrize(("w", "state"), [(W, EQUIVALENT), (CHANGED, DIFFERENT)])
def test_external_data(checked, tmp_path, w, state):
    path = tmp_path / "apart.onnx"
    onnx.save(plain(w), path, save_as_external_data=True, location="apart.data", size_threshold=0)
    assert checked(plain(), path)[0] is state


def two(order="y z", swapped=False):
    y, z = ("z", "y") if swapped else ("y", "z")
    return model(
        node("Conv", "x w b", y), node("Conv", "x v b", z), outputs=order, w=W, v=weights(6, 3, 3, 3, seed=1), b=B
    )


def test_two_outputs(checked):
    assert checked(two(), two())[0] is EQUIVALENT


def test_two_outputs_swapped_by_name(checked):
    state, text = checked(two(), two("z y"))
    assert state is DIFFERENT
    assert "swapped" in text


def test_two_outputs_swapped_under_their_names(checked):
    state, text = checked(two(), two(swapped=True))
    assert state is DIFFERENT
    assert "weight" in text or "swapped" in text


def test_an_unused_input(checked):
    more = plain(inputs=[("mask", (1, 4))])
    for pair in ((plain(), more), (more, plain())):
        state, text = checked(*pair)
        assert state is EQUIVALENT
        assert "mask" in text


def test_an_input_that_is_used(checked):
    more = model(
        node("Conv", "x w b", "c", pads=[1] * 4), node("Add", "c more", "y"), w=W, b=B, inputs=[("more", (1,))]
    )
    state, text = checked(plain(), more)
    assert state is DIFFERENT
    assert "more" in text


def refusal(checked, a, b):
    """What is said where a model can't be judged: in an error or in a check, never in a pass."""
    try:
        state, text = checked(a, b)
    except ModelError as e:
        return str(e)
    assert state is UNCHECKED
    return text


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_a_random_operator_is_refused(checked, op):
    noisy = model(node("Conv", "x w b", "c", pads=[1] * 4), node(op, "c", "n"), node("Add", "c n", "y"), w=W, b=B)
    for pair in ((plain(), noisy), (noisy, plain()), (noisy, noisy)):
        assert "random" in refusal(checked, *pair)


def test_dropout_at_inference_is_nothing(checked):
    """With a ratio, a mask nobody reads, and training said to be off."""
    c = node("Conv", "x w b", "c", pads=[1] * 4)
    drop = node("Dropout", "c r t", "y")
    dropped = model(c, drop, w=W, b=B, r=np.float32(0.5), t=np.array(False))
    assert checked(plain(), dropped)[0] is EQUIVALENT


def test_dropout_in_training_mode_is_refused(checked):
    c = node("Conv", "x w b", "c", pads=[1] * 4)
    drop = node("Dropout", "c r t", "y")
    dropped = model(c, drop, w=W, b=B, r=np.float32(0.5), t=np.array(True))
    assert "training" in refusal(checked, plain(), dropped)


def test_dead_nodes_and_identities(checked):
    nodes = node("Identity", "x", "i"), node("Relu", "x", "dead"), node("Conv", "i w b", "c", pads=[1] * 4)
    more = model(*nodes, node("Identity", "c", "y"), w=W, b=B, unused=weights(3, 3))
    assert checked(plain(), more)[0] is EQUIVALENT


def test_nan_never_passes(checked):
    bad = W.copy()
    bad[0, 0, 0, 0] = np.nan
    assert checked(plain(), plain(bad))[0] is not EQUIVALENT
    assert checked(plain(bad), plain(bad))[0] is not EQUIVALENT
