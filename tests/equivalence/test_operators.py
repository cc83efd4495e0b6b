"""Every operator against ONNX's own test cases: the expected float32 result lies within the bound of ours."""

import functools
import importlib
import pkgutil
import warnings

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from xframe.equivalence import graph
from xframe.equivalence.bounds import Quantity
from xframe.equivalence.reference import OPERATORS
from xframe.errors import ModelError

REFUSED = {
    "test_batchnorm_example_training_mode": "training",
    "test_batchnorm_epsilon_training_mode": "training",
    **{
        f"test_training_dropout{kind}": "training"
        for kind in ("", "_default", "_default_mask", "_mask", "_zero_ratio", "_zero_ratio_mask")
    },
    "test_quantizelinear_blocked_asymmetric": "blocks",
    "test_quantizelinear_blocked_symmetric": "blocks",
    "test_dequantizelinear_blocked": "blocks",
    "test_dropout_default_mask_ratio": "not compute its output z",
    "test_dropout_default_mask": "not compute its output z",
    "test_maxpool_with_argmax_2d_precomputed_pads": "not compute its output z",
    "test_maxpool_with_argmax_2d_precomputed_strides": "not compute its output z",
}
#: Empty sums are no networks; one expected result is written with four digits.
LEFT_OUT = {
    *(f"test_reduce_{op}_empty_set" for op in ("max", "min", "sum", "prod", "l1", "l2", "sum_square", "log_sum_exp")),
    "test_reduce_max_empty_set_bool",
    "test_reduce_min_empty_set_bool",
    "test_reduce_l1_empty_set_expanded",
    "test_reduce_sum_empty_axes_input_noop_example",
    "test_averagepool_2d_ceil_last_window_starts_on_pad",
    # Where scales give a fraction as length: the specification and runtimes take the tensor's own, these the fraction.
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}
#: Operators whose further outputs, which no inference uses, are not computed.
FIRST = {"LayerNormalization"}
DTYPES = (np.float32, np.float64, np.int32, np.int64, np.int8, np.uint8, np.bool_)


@functools.cache
def cases():
    """ONNX's node test cases by operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnx.backend.test.case.node as folder

        wanted = {op.lower() for op in OPERATORS}
        for module in pkgutil.iter_modules(folder.__path__):
            if module.name.replace("_", "").removesuffix("op") in wanted:
                importlib.import_module(f"{folder.__name__}.{module.name}")
    found: dict[str, list] = {op: [] for op in OPERATORS}
    for case in folder._NodeTestCases:
        nodes = case.model.graph.node
        arrays = [a for feeds, outputs in case.data_sets for a in (*feeds, *outputs)]
        plain = all(isinstance(a, (np.ndarray, np.generic)) and a.dtype in DTYPES for a in arrays)
        if len(nodes) == 1 and not nodes[0].domain and plain and case.name not in LEFT_OUT:
            found.setdefault(nodes[0].op_type, []).append(case)
    return found


def evaluate(proto, *feeds, roundings=None, outputs=()):
    g = graph.from_proto(proto, outputs)
    return graph.run(g, dict(zip(g.inputs, feeds, strict=True)), OPERATORS, roundings or {})


@pytest.mark.parametrize("op", sorted(set(OPERATORS) - {"Cast"}))
def test_agrees_with_onnx(op):
    assert cases()[op]
    for case in cases()[op]:
        for feeds, expected in case.data_sets:
            if case.name in REFUSED:
                with pytest.raises(ModelError, match=REFUSED[case.name]):
                    evaluate(case.model, *feeds)
                continue
            ends = [case.model.graph.output[0].name] if op in FIRST else ()
            results = evaluate(case.model, *feeds, outputs=ends)
            for ours, theirs in zip(results, expected, strict=not ends):
                assert ours.value.shape == theirs.shape, case.name
                finite = np.isfinite(theirs) if theirs.dtype.kind == "f" else np.ones(theirs.shape, bool)
                np.testing.assert_array_equal(ours.value[~finite], theirs[~finite], case.name)
                if theirs.dtype.kind != "f":
                    np.testing.assert_array_equal(ours.value, theirs, case.name)
                    continue
                off, bound = np.abs(ours.real - theirs)[finite], ours.bound[finite]
                assert (off <= bound).all(), case.name
                # The bound is a rounding error, not a tolerance: within 1e-4 of the largest value.
                assert (bound <= 1e-4 * np.abs(theirs[finite]).max(initial=1e-30)).all(), case.name


def model(op, shapes, opset=17, **attrs):
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)]
    node = helper.make_node(op, names, ["y"], **attrs)
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    return helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", opset)]
    )


def test_softmax_before_opset_13_is_over_all_later_axes():
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    old, new = (evaluate(model("Softmax", [x.shape], opset, axis=1), x)[0].value for opset in (11, 13))
    np.testing.assert_allclose(old.sum((1, 2)), 1)
    np.testing.assert_allclose(new.sum(1), 1)
    np.testing.assert_allclose(evaluate(model("Softmax", [x.shape], 13), x)[0].value.sum(2), 1)


def test_attribute_forms_of_old_operator_sets():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert evaluate(model("Slice", [x.shape], 9, starts=[0, 1], ends=[9, -1], axes=[1, 2]), x)[0].value.shape == (
        2,
        3,
        2,
    )
    assert evaluate(model("Unsqueeze", [x.shape], 9, axes=[0, 3]), x)[0].value.shape == (1, 2, 3, 1, 4)
    assert evaluate(model("Clip", [x.shape], 9, min=3.0, max=5.0), x)[0].value.max() == 5
    padded = evaluate(model("Pad", [x.shape], 9, pads=[0, 0, 1, 0, 0, 2], value=7.0), x)[0].value
    assert padded.shape == (2, 3, 7)
    assert padded[0, 0, 0] == 7


def test_a_cast_to_half_rounds():
    x = np.random.default_rng(0).standard_normal(99).astype(np.float32)
    assert (
        evaluate(model("Cast", [x.shape], to=onnx.TensorProto.INT64), x * 1.7)[0].value == (x * 1.7).astype(int)
    ).all()
    for to, dtype in ((onnx.TensorProto.FLOAT16, np.float16), (onnx.TensorProto.BFLOAT16, ml_dtypes.bfloat16)):
        # An exact number rounds as everywhere, a computed one by a share of it.
        assert (evaluate(model("Cast", [x.shape], to=to), x)[0].value == x.astype(dtype)).all()
        y = OPERATORS["Exp"](graph.Node("e", "Exp", ("x",), ("y",)), [Quantity(x)], {})
        half = OPERATORS["Cast"](graph.Node("c", "Cast", ("x",), ("y",), {"to": to}), [y], {})
        off = np.abs(np.exp(x).astype(dtype).astype(float) - half.value)
        assert (off <= half.bound).all()
        assert (
            half.bound <= 8 * np.abs(half.value) * np.finfo(np.float16).eps * (8 if dtype != np.float16 else 1)
        ).all()


def test_unknown_operators_are_named():
    x = np.ones((1, 3), np.float32)
    with pytest.raises(ModelError, match="NonZero"):
        evaluate(model("NonZero", [x.shape]), x)
    with pytest.raises(ModelError, match=r"com\.own\.Relu"):
        evaluate(model("Relu", [x.shape], domain="com.own"), x)


def test_tensors_are_freed():
    """A chain keeps one tensor alive at a time, however long it is."""
    alive, peak = set(), []

    class Tracked(np.ndarray):
        def __del__(self):
            alive.discard(id(self))

    def operator(node, args, roundings):
        y = np.zeros(4).view(Tracked)
        alive.add(id(y))
        peak.append(len(alive))
        return graph.Quantity(y)

    nodes = tuple(graph.Node(f"n{i}", "Own", (f"t{i}",), (f"t{i + 1}",)) for i in range(9))
    g = graph.Graph(nodes, {}, ("t0",), ("t9",), ((4,),))
    graph.run(g, {"t0": np.ones(4)}, {"Own": operator}, {})
    assert max(peak) == 2
