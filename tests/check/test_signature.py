"""Which inputs and outputs correspond, and in what two models part before anything is computed."""

import numpy as np
import pytest

from xframe.check.interface import Interface, Port
from xframe.check.signature import LAST, align, relaid
from xframe.equivalence.result import Level, State
from xframe.errors import UsageError

IMAGE, LASTS, ROW = (1, 3, 8, 6), (1, 8, 6, 3), (1, 10)


def interface(name, inputs, outputs):
    """Ports by name: a shape, or a Port's fields."""

    def ports(given):
        return tuple(Port(n, **(p if isinstance(p, dict) else {"shape": p})) for n, p in given.items())

    return Interface(name, ports(inputs), ports(outputs))


def aligned(a, b, **options):
    return align(interface("A", *a), interface("B", *b), **options)


def words(signature):
    return [d.text for d in signature.verdict.differences]


PLAIN = ({"x": IMAGE}, {"y": ROW})


def test_equal():
    found = aligned(PLAIN, PLAIN)
    assert found.verdict.level is Level.SIGNATURE
    assert (found.verdict.state, found.verdict.reason, found.verdict.differences) == (State.EQUIVALENT, "", ())
    assert found.aligned
    assert [(b.a, b.b, b.axes_a, b.axes_b) for b in (*found.inputs, *found.outputs)] == [
        ("x", "x", (), ()), ("y", "y", (), ()),
    ]  # fmt: skip


def test_other_names_are_bound_by_position():
    found = aligned(({"a": IMAGE, "b": ROW}, {"y": ROW}), ({"c": IMAGE, "d": ROW}, {"z": ROW}))
    assert found.verdict.state is State.EQUIVALENT
    assert [(b.a, b.b) for b in found.inputs] == [("a", "c"), ("b", "d")]


@pytest.mark.parametrize(
    ("b", "kind", "text"),
    [
        (({"x": IMAGE, "z": ROW}, {"y": ROW}), "inputs", "B takes 2 inputs (x, z), A takes 1 input (x)"),
        (({"x": IMAGE}, {"y": ROW, "z": ROW}), "outputs", "B gives 2 outputs (y, z), A gives 1 output (y)"),
        (({"x": IMAGE}, {"y": (1, 11)}), "shape", "output y is [1, 10] in A and [1, 11] in B"),
        (({"x": IMAGE}, {"p": (1, 11)}), "shape", "output y (p in B) is [1, 10] in A and [1, 11] in B"),
        (({"x": (2, 3, 8, 6)}, {"y": ROW}), "shape", "input x is [1, 3, 8, 6] in A and [2, 3, 8, 6] in B"),
        (({"x": {"shape": IMAGE, "dtype": "int64"}}, {"y": ROW}), "values", "input x is int64 in B and float32 in A"),
    ],
)
def test_what_can_not_be_aligned(b, kind, text):
    found = aligned(PLAIN, b)
    assert found.verdict.state is State.DIFFERENT
    assert found.verdict.reason == text
    (difference,) = found.verdict.differences
    assert (difference.kind, difference.text, difference.harmless) == (kind, text, False)
    assert not found.aligned


def test_another_precision_is_a_difference_that_leaves_all_bound():
    found = aligned(PLAIN, ({"x": {"shape": IMAGE, "dtype": "float16"}}, {"y": ROW}))
    assert found.verdict.state is State.DIFFERENT
    assert [d.kind for d in found.verdict.differences] == ["precision"]
    assert words(found) == ["input x is float16 in B and float32 in A"]
    assert found.aligned


def test_outputs_swapped():
    a, b = ({"x": IMAGE}, {"p": ROW, "q": ROW}), ({"x": IMAGE}, {"q": ROW, "p": ROW})
    found = aligned(a, b)
    assert found.verdict.state is State.DIFFERENT
    assert found.verdict.reason.startswith("outputs swapped: p is output 0 of A and 1 of B, q is output 1 of A and 0")
    assert [(x.a, x.b) for x in found.outputs] == [("p", "p"), ("q", "q")]
    assert found.aligned
    mapped = aligned(a, b, names={"p": "p", "q": "q"})
    assert mapped.verdict.state is State.EQUIVALENT
    assert mapped.outputs == found.outputs
    crossed = aligned(a, b, names={"p": "q"})
    assert [(x.a, x.b) for x in crossed.outputs] == [("p", "q"), ("q", "p")]


@pytest.mark.parametrize("first", [True, False])
def test_an_input_that_nothing_reads(first):
    more = ({"x": IMAGE, "mask": {"shape": ROW, "read": False}}, {"y": ROW})
    found = aligned(more, PLAIN) if first else aligned(PLAIN, more)
    assert found.verdict.state is State.EQUIVALENT
    (difference,) = found.verdict.differences
    assert difference.harmless
    assert difference.text == f"the input mask of {'AB'[not first]} is read by nothing"
    assert [(b.a, b.b) for b in found.inputs] == [("x", "x")]
    assert found.aligned
    x, mask = np.ones(IMAGE, np.float32), np.ones(ROW, np.float32)
    fed = found.feed([x, mask] if first else [x])
    assert [f.shape for f in fed] == ([IMAGE] if first else [IMAGE, ROW])


def test_an_input_that_only_one_reads_stays_bound():
    a, b = ({"x": IMAGE, "m": ROW}, {"y": ROW}), ({"x": IMAGE, "m": {"shape": ROW, "read": False}}, {"y": ROW})
    found = aligned(a, b)
    assert [(x.a, x.b) for x in found.inputs] == [("x", "x"), ("m", "m")]
    assert words(found) == ["the input m of B is read by nothing"]


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        (IMAGE, LASTS, {}),
        (IMAGE, {"shape": LASTS, "layout": "NHWC"}, {}),
        ({"shape": IMAGE, "layout": "NCHW"}, LASTS, {}),
        ({"shape": (1, 4, 4, 4), "layout": "NCHW"}, {"shape": (1, 4, 4, 4), "layout": "NHWC"}, {}),
        ((1, 4, 4, 4), (1, 4, 4, 4), {"layouts": ("NCHW", "NHWC")}),
        (
            {"shape": (1, 4, 4, 4), "layout": "NHWC"},
            {"shape": (1, 4, 4, 4), "layout": "NHWC"},
            {"layouts": ("NCHW", None)},
        ),
    ],
)
def test_channels_first_against_channels_last(a, b, options):
    found = aligned(({"x": a}, {"y": ROW}), ({"x": b}, {"y": ROW}), **options)
    assert found.verdict.state is State.EQUIVALENT
    (binding,) = found.inputs
    assert (binding.axes_a, binding.axes_b) == ((), LAST)
    assert words(found) == ["input x is NCHW in A and NHWC in B"]
    x = np.random.default_rng(0).standard_normal(found.first.inputs[0].shape)
    (fed,) = found.feed([x])
    np.testing.assert_array_equal(fed, x.transpose(0, 2, 3, 1))


def test_channels_last_first():
    found = aligned(({"x": LASTS}, {"y": LASTS}), ({"x": IMAGE}, {"y": IMAGE}))
    assert [(b.axes_a, b.axes_b) for b in (*found.inputs, *found.outputs)] == [(LAST, ()), (LAST, ())]
    x = np.random.default_rng(0).standard_normal(LASTS)
    np.testing.assert_array_equal(found.feed([x])[0], x.transpose(0, 3, 1, 2))


def test_both_channels_last():
    stamped = {"shape": LASTS, "layout": "NHWC"}
    found = aligned(({"x": stamped}, {"y": ROW}), ({"x": LASTS}, {"y": ROW}))
    assert [(b.axes_a, b.axes_b) for b in found.inputs] == [(LAST, LAST)]
    assert found.verdict.differences == ()
    assert found.feed([np.ones(LASTS)])[0].shape == LASTS


def test_a_layout_that_shapes_leave_open_is_told():
    cube = (1, 4, 4, 4)
    found = aligned(({"x": {"shape": cube, "layout": "NHWC"}}, {"y": ROW}), ({"x": cube}, {"y": ROW}))
    assert [(b.axes_a, b.axes_b) for b in found.inputs] == [(LAST, LAST)]
    (difference,) = found.verdict.differences
    assert difference.harmless
    assert "declare the layouts" in difference.text


def test_stamps_that_an_output_contradicts():
    pooled = (1, 10, 1, 1)
    a = ({"x": IMAGE}, {"y": {"shape": pooled, "layout": "NCHW"}})
    b = ({"x": LASTS}, {"y": {"shape": pooled, "layout": "NHWC"}})
    found = aligned(a, b)
    assert found.aligned
    assert [(x.axes_a, x.axes_b) for x in found.outputs] == [((), ())]


def test_shapes_that_no_layout_makes_equal():
    found = aligned(PLAIN, ({"x": (1, 3, 6, 8)}, {"y": ROW}))
    assert words(found) == ["input x is [1, 3, 8, 6] in A and [1, 3, 6, 8] in B"]


def test_a_free_batch_against_a_fixed_one():
    free = {"shape": IMAGE, "free": {0: "N"}}
    found = aligned(PLAIN, ({"x": free}, {"y": ROW}))
    assert found.verdict.state is State.EQUIVALENT
    assert words(found) == ["input x: axis 0 (N) is free in B and fixed in A; compared at [N=1, 3, 8, 6]"]
    assert aligned(({"x": free}, {"y": ROW}), ({"x": free}, {"y": ROW})).verdict.differences == ()


def test_a_shape_that_is_not_known_is_left_to_the_numbers():
    assert aligned(PLAIN, ({"x": IMAGE}, {"y": {"shape": None}})).aligned


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"names": {"q": "x"}}, "A has no input or output 'q'; it has x, y"),
        ({"names": {"x": "q"}}, "B has no input or output 'q'"),
        ({"names": {"x": "y"}}, "one is an input, one an output"),
        ({"layouts": ("NCWH", None)}, "unknown layout 'NCWH'"),
    ],
)
def test_requests_that_make_no_sense(options, text):
    with pytest.raises(UsageError, match=text):
        aligned(PLAIN, PLAIN, **options)


def test_relaid_is_its_own_inverse():
    x = np.random.default_rng(0).standard_normal(IMAGE)
    np.testing.assert_array_equal(relaid(relaid(x, (), LAST), LAST, ()), x)
    assert relaid(x, LAST, LAST) is x
