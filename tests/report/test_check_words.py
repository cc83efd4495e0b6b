"""The sentences: one line says the verdict, and who is to blame; nothing from a model can break a line."""

import dataclasses

import pytest

from tests import check_samples as samples
from xframe.equivalence.result import Comparison, Difference, Level, LevelVerdict, State
from xframe.report import check_words as words


def verdict(level, state, reason=""):
    return LevelVerdict(level, state, reason)


UNASKED = Comparison("b.onnx", (verdict(Level.SIGNATURE, State.EQUIVALENT),))
OTHER_INPUTS = Comparison("b.onnx", (verdict(Level.SIGNATURE, State.DIFFERENT, "2 inputs against 1."),))
GRADIENTS = samples.comparison(
    states=("equivalent",) * 3 + ("different",), reasons=("", "", "", "that of conv1.weight")
)
WEIGHTS = Difference("weights", "conv1", "the weights of conv1 differ in one element")
UNSEEN = samples.comparison(states=("equivalent", "different", "equivalent"), differences=(WEIGHTS,))
NAN = samples.comparison(
    states=("equivalent", "equivalent", "different"), layers=(samples.layer("conv1", "Conv", float("nan")),)
)


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (samples.equal(), "equivalent: b.onnx computes what a.onnx computes, within 0.25 of the float32 bound"),
        (
            samples.check(samples.comparison(), samples.comparison("c.onnx")),
            "equivalent: b.onnx and c.onnx compute what a.onnx computes, within 0.25 of the float32 bound",
        ),
        (
            samples.check(runs=[samples.run(), samples.run(runner="ort disabled", own=0.5)]),
            "equivalent: a.onnx gives its float64 result under ort all and ort disabled, at most 0.5 of the bound",
        ),
        (
            samples.check(samples.comparison(outputs=(samples.layer("fc", "Gemm", 0.0),))),
            "equivalent: b.onnx computes what a.onnx computes, exactly",
        ),
        (samples.unequal(), "NOT equivalent: b.onnx parts from a.onnx at conv2 (Conv): 4e+04 times the bound"),
        (
            samples.check(samples.unequal().comparisons[0], dataclasses.replace(OTHER_INPUTS, name="c.onnx")),
            "NOT equivalent: b.onnx parts from a.onnx at conv2 (Conv): 4e+04 times the bound (also: c.onnx)",
        ),
        (samples.check(OTHER_INPUTS), "NOT equivalent: the signatures of a.onnx and b.onnx differ: 2 inputs against 1"),
        (samples.check(GRADIENTS), "NOT equivalent: the gradients of a.onnx and b.onnx differ: that of conv1.weight"),
        (
            samples.check(NAN),
            "NOT equivalent: b.onnx parts from a.onnx at conv1 (Conv): output conv1 at [0, 3, 1, 2] is 0.7, expected"
            " 0.5: nan times the bound",
        ),
        (
            samples.check(samples.comparison(), runs=[samples.run(own=3.0, first=3.0, blamed="conv1 (Conv)")]),
            "NOT equivalent: ort all on a.onnx leaves the float64 result of its own graph, first at conv1 (Conv)",
        ),
        (
            samples.unequal(runs=[samples.run("b.onnx", own=0.2, first=9.0)]),  # the graph's fault, told already
            "NOT equivalent: b.onnx parts from a.onnx at conv2 (Conv): 4e+04 times the bound",
        ),
        (
            samples.unchecked(),
            "can't tell: b.onnx against a.onnx: numerics unchecked: the reference has no rule for Twist",
        ),
        (samples.check(UNASKED), "can't tell: b.onnx against a.onnx: numerics, which decides, was not asked for"),
        (
            samples.check(UNSEEN),
            "can't tell: b.onnx against a.onnx: these inputs give the same outputs, but the graphs are not the same:"
            " the weights of conv1 differ in one element",
        ),
        (
            samples.check(
                samples.comparison(), runs=[samples.run(state=State.UNCHECKED, own=None, reason="no tvm here")]
            ),
            "can't tell: ort all on a.onnx was not checked: no tvm here",
        ),
        (samples.check(), "can't tell: nothing was compared"),
    ],
)
def test_the_verdict_is_one_sentence(check, told):
    assert words.headline(check) == told


def test_harmless_differences_come_last_and_equal_ones_once():
    twice = samples.comparison(differences=(samples.BIAS, samples.PADDING, samples.BIAS))
    assert words.sentences(twice) == [samples.PADDING, samples.BIAS]


def test_the_runner_and_the_graph_are_told_apart():
    lossy, wrong_export = samples.run(own=5.0, first=5.0), samples.run("b.onnx", own=0.1, first=5.0)
    assert "leaves the float64 result of its own graph" in words.conclusion(lossy, "a.onnx")
    assert words.conclusion(wrong_export, "a.onnx") == (
        "ort all on b.onnx is right for its own graph, which differs from a.onnx"
    )
    nan = dataclasses.replace(lossy, own=samples.statistics(float("nan")))
    assert "leaves the float64 result" in words.conclusion(nan, "a.onnx")


def test_a_name_from_a_model_stays_on_its_line():
    """Escape sequences, line breaks, and letters that turn the direction of writing."""
    evil = samples.comparison("b\x1b[2J\n\u202e.onnx", states=("equivalent", "equivalent", "unchecked"))
    assert words.headline(samples.check(evil)).isprintable()
    assert words.layer(samples.layer("a\x07", "Co\nnv", 2.0)) == "a\N{REPLACEMENT CHARACTER} (Co nv)"


@pytest.mark.parametrize(
    ("ratio", "fields", "state"),
    [(0.5, {}, "same"), (5.0, {}, "DIFFERENT"), (None, {}, "UNCHECKED"), (None, {"ok": True}, "UNCHECKED"),
     (0.5, {"reason": "its bound is larger than every value"}, "UNCHECKED"), (float("nan"), {}, "DIFFERENT")],
)  # fmt: skip
def test_a_layer_that_was_not_compared_is_neither_the_same_nor_different(ratio, fields, state):
    row = samples.layer("conv1", "Conv", ratio, **fields)
    assert words.row_state(row) == state
    one = samples.comparison(layers=(row,))
    assert one.first_divergence == (row if state == "DIFFERENT" else None)
    assert words.around((row,))[1] == ((row,) if state == "DIFFERENT" else ())


def test_a_layer_as_far_as_it_is_off():
    wrong, plain = samples.layer("conv1", "Conv", 4e4), samples.layer("conv1", "Conv", 4e4, reason="")
    whole = "max abs 0.2, max rel 40, RMS 0.04, cosine 0.99; ULPs 0 / 1 / 2 / 4e+05 (50, 90, 99, 100 %)"
    assert list(words.deviation(wrong, "a", "b")) == [wrong.reason, whole]
    worst = "at [0, 3, 1, 2] 0.5 in a, 0.7 in b, bound 5e-06: 4e+04 times the bound"
    assert list(words.deviation(plain, "a", "b")) == [worst, whole]
    assert list(words.deviation(samples.layer("conv1", "Conv", None), "a", "b")) == ["not compared"]


def test_a_layer_is_named_as_both_files_name_it():
    assert words.layer(samples.layer("conv1", "Conv", 2.0, b="Conv_0"), "b.onnx") == "conv1 (Conv; Conv_0 in b.onnx)"
    assert words.layer(samples.layer("conv1", "Conv", 2.0), "b.onnx") == "conv1 (Conv)"


@pytest.mark.parametrize(("bad", "shown"), [(0, (0, 4)), (1, (0, 5)), (5, (3, 9)), (19, (17, 20))])
def test_only_layers_around_the_first_that_differs_are_shown(bad, shown):
    rows = samples.rows(*[2.0 if i == bad else 0.5 for i in range(20)])
    start, found = words.around(rows)
    assert (start, start + len(found)) == shown
    assert words.around(samples.rows(0.5, 1.0)) == (0, ())
