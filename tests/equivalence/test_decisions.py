"""Operators that jump: exact away from the edge, either side near it, refused where the choice can't be bounded."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from xframe.equivalence.bounds import Quantity, Z
from xframe.equivalence.graph import Node
from xframe.equivalence.reference import OPERATORS
from xframe.errors import ModelError

#: Computed numbers with an error of 1e-6; the third is nearer to 0.5 than that.
X = Quantity(np.array([-1.0, 0.25, 0.5 + 1e-7, 0.75]), np.full(4, (1e-6 / Z) ** 2))
HALF = Quantity(np.float32(0.5))
EXACT = Quantity(np.array([-1.0, 0.25, 0.5, 0.75], np.float32))


def apply(op, *args, opset=17, **attrs):
    return OPERATORS[op](Node("n", op, ("a",), ("y",), attrs, opset), args, {})


@pytest.mark.parametrize("op", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
def test_comparisons(op):
    found = apply(op, X, HALF)
    assert found.value.dtype == bool
    np.testing.assert_allclose(found.bound, [0, 0, 1, 0], atol=1e-30)
    exact = apply(op, EXACT, HALF)
    assert exact.variance is None
    assert exact.value[2] == (op in ("GreaterOrEqual", "LessOrEqual", "Equal"))


def test_an_exact_zero_is_no_near_tie():
    """What a ReLU cut off is zero in every implementation."""
    cut = apply("Relu", Quantity(np.array([-3.0, 2.0]), np.full(2, 1e-12)))
    assert apply("Greater", cut, Quantity(np.float32(0))).variance is None


def test_logic_carries_a_doubt_only_where_it_matters():
    doubt = apply("Greater", X, HALF)
    for op, other, open_ in (("And", False, 0), ("And", True, 1), ("Or", True, 0), ("Or", False, 1), ("Xor", True, 1)):
        found = apply(op, doubt, Quantity(np.full(4, other)))
        np.testing.assert_allclose(found.bound, [0, 0, open_, 0], atol=1e-30)
    np.testing.assert_allclose(apply("Not", doubt).bound, [0, 0, 1, 0], atol=1e-30)
    assert apply("Not", apply("Greater", EXACT, HALF)).variance is None
    both = apply("Xor", doubt, doubt)
    assert both.bound[2] == pytest.approx(1)


def test_a_choice_may_go_either_way_where_its_condition_may():
    doubt = apply("Greater", X, HALF)
    found = apply("Where", doubt, X, Quantity(np.full(4, 7.0, np.float32)))
    np.testing.assert_allclose(found.value, [7, 7, 0.5 + 1e-7, 0.75])
    np.testing.assert_allclose(found.bound, [0, 0, 6.5 + 1e-6, 1e-6], rtol=1e-3, atol=1e-30)
    assert apply("Where", apply("Greater", EXACT, HALF), EXACT, EXACT).variance is None
    with pytest.raises(ModelError, match="which of two integers"):
        apply("Where", doubt, Quantity(np.arange(4)), Quantity(np.arange(4)))


@pytest.mark.parametrize(
    ("op", "edge"), [("Floor", 2.0), ("Ceil", 2.0), ("Round", 2.5), ("Sign", 0.0), ("ThresholdedRelu", 1.0)]
)
def test_steps(op, edge):
    x = Quantity(np.array([edge + 1e-7, edge + 1e-3]), np.full(2, (1e-6 / Z) ** 2))
    found = apply(op, x)
    assert found.bound[0] >= 1 - 1e-6
    assert found.bound[1] < 2e-6
    assert apply(op, Quantity(x.value)).variance is None


def test_computed_numbers_as_integers():
    to = {"to": TensorProto.INT64}
    clear = Quantity(np.array([-1.5, 0.25, 2.75]), np.full(3, 1e-14))
    found = apply("Cast", clear, **to)
    assert found.value.tolist() == [-1, 0, 2]
    assert found.variance is None
    with pytest.raises(ModelError, match="to which integers"):
        apply("Cast", Quantity(np.array([2.0 - 1e-9]), np.array([1e-12])), **to)
    flags = apply("Cast", Quantity(np.array([1e-9, 1.0]), np.full(2, 1e-12)), to=TensorProto.BOOL)
    np.testing.assert_allclose(flags.bound, [1, 0], atol=1e-30)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_positions(op):
    x = np.array([[1.0, 5.0, 1.0, 5.0], [2.0, 0.5, 0.0, 2.5]], np.float32)
    best = getattr(np, op.lower())
    assert apply(op, Quantity(x), axis=1).value.tolist() == best(x, 1)[:, None].tolist()
    last = apply(op, Quantity(x), axis=1, keepdims=0, select_last_index=1).value
    assert last.tolist() == [3 - best(x[0, ::-1]), 3 - best(x[1, ::-1])]
    computed = Quantity(x[1:].astype(float), np.full((1, 4), 1e-14))
    assert apply(op, computed, axis=1, keepdims=0).value.tolist() == [best(x[1])]
    for wrong in (Quantity(x.astype(float), np.full(x.shape, 1e-14)), Quantity(np.array([[np.nan, 1.0]]))):
        with pytest.raises(ModelError, match=r"ArgM.*(equal|finite)"):
            apply(op, wrong, axis=1)


def test_quantisation():
    x = Quantity(np.array([-1.0, 0.1, 0.26, 3.0], np.float32))
    scale, zero = Quantity(np.float32(0.02)), Quantity(np.int8(3))
    levels = apply("QuantizeLinear", x, scale, zero)
    assert levels.value.dtype == np.int8
    assert levels.value.tolist() == [-47, 8, 16, 127]
    back = apply("DequantizeLinear", levels, scale, zero)
    assert back.variance is None
    np.testing.assert_array_equal(back.value, (levels.value.astype(np.float32) - 3) * np.float32(0.02))
    per = Quantity(np.float32([0.5, 2.0]))
    weights = Quantity(np.array([[1, 2], [3, 4]], np.int8))
    assert apply("DequantizeLinear", weights, per, axis=0).value.tolist() == [[0.5, 1.0], [6.0, 8.0]]
    assert apply("DequantizeLinear", weights, per, axis=1).value.tolist() == [[0.5, 4.0], [1.5, 8.0]]
    with pytest.raises(ModelError, match="computed numbers are quantised"):
        apply("QuantizeLinear", X, scale, zero)
    with pytest.raises(ModelError, match="do not fit"):
        apply("DequantizeLinear", weights, Quantity(np.float32([1, 2, 3])), axis=0)


def test_what_overflows_in_half_precision_is_not_finite():
    x = Quantity(np.array([7e4, -7e4, 65504.0]), np.full(3, 1e-6))
    found = apply("Cast", x, to=TensorProto.FLOAT16)
    assert found.value.tolist() == [np.inf, -np.inf, 65504.0]
    assert helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT16) == np.float16


def test_a_mean_of_padding_alone_is_refused():
    with pytest.raises(ModelError, match="padding"):
        apply("AveragePool", Quantity(np.ones((1, 1, 3, 3))), kernel_shape=[1, 1], pads=[1, 1, 1, 1])


@pytest.mark.parametrize(
    ("op", "args", "attrs", "words"),
    [
        ("Resize", [np.ones((1, 1, 2, 2)), None, np.ones(3)], {}, "do not fit"),
        ("Resize", [np.ones((1, 1, 2, 2)), None, np.ones(4)], {"mode": "area"}, "area"),
        ("Resize", [np.ones((1, 1, 2, 2), np.int64), None, np.full(4, 2.0)], {"mode": "linear"}, "integers"),
        ("ConvTranspose", [np.ones((1, 3, 4, 4)), np.ones((4, 2, 3, 3))], {}, "do not fit"),
        ("Einsum", [np.ones((2, 3)), np.ones((4, 5))], {"equation": "ij,jk->ik"}, "does not fit"),
        ("GroupNormalization", [np.ones((1, 4, 2)), np.ones(4), np.ones(4)], {"num_groups": 3}, "equal groups"),
        ("ReduceMean", [np.arange(4)], {}, "rounds"),
    ],
)
def test_misfits_are_refused_in_words(op, args, attrs, words):
    with pytest.raises(ModelError, match=words):
        apply(op, *(None if a is None else Quantity(a) for a in args), **attrs)
