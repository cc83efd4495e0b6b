"""The terminal report of a check: the verdict comes first, nothing is cut off, nothing unchecked looks passed."""

import dataclasses
import io

import pytest

from tests import check_samples as samples
from xframe.equivalence.result import Difference, State
from xframe.report import check_terminal

RUNS = (
    samples.run(),
    samples.run("b.onnx", own=0.2, first=4e4),
    samples.run(runner="tvm winograd", own=5.0, first=5.0, blamed="conv2 (Conv)", reason="output fc is off"),
)
GOLDEN = """\
NOT equivalent: b.onnx parts from a.onnx at conv2 (Conv): 4e+04 times the bound (also: tvm winograd
on a.onnx)

a.onnx: ONNX file, sha256 000000000000
b.onnx: ONNX file, sha256 111111111111
inputs: 2 seeded inputs of N(0, 1), seed 0
note: 3 nodes absorbed

b.onnx against a.onnx: DIFFERENT
  signature    equivalent  -
  normal form  DIFFERENT   2 differences, 1 of them harmless
  numerics     DIFFERENT   output fc at [0, 1] is 0.5, expected 0.7 +- 5e-06

  differences
  - b.onnx pads 0,0,1,1 where a.onnx pads 1,1,1,1.
  - harmless: b.onnx adds the bias of fc in a node of its own.

  first that differs: conv2 (Conv), 1x8x7x7, 3 of 9
    output conv2 at [0, 3, 1, 2] is 0.7, expected 0.5: 40000 times the bound
    max abs 0.2, max rel 40, RMS 0.04, cosine 0.99; ULPs 0 / 1 / 2 / 4e+05 (50, 90, 99, 100 %)

  layer    operator  shape    max abs    RMS  of bound  verdict
  1 conv1  Conv      1x8x7x7    5e-07  1e-07       0.1  same
  2 relu1  Relu      1x8x7x7    5e-07  1e-07       0.1  same
  3 conv2  Conv      1x8x7x7      0.2   0.04     4e+04  DIFFERENT
  4 relu2  Relu      1x8x7x7     0.15   0.03     3e+04  DIFFERENT
  5 conv3  Conv      1x8x7x7      0.1   0.02     2e+04  DIFFERENT
  6 relu3  Relu      1x8x7x7     0.05   0.01     1e+04  DIFFERENT

runs: own, against the float64 result of the same graph; first, against that of a.onnx
  subject  runner        verdict     own error  of bound  first error  of bound  leaves at
  a.onnx   ort all       equivalent    1.5e-06       0.3      1.5e-06       0.3  -
  b.onnx   ort all       DIFFERENT       1e-06       0.2          0.2     4e+04  -
  a.onnx   tvm winograd  DIFFERENT     2.5e-05         5      2.5e-05         5  conv2 (Conv)
  - ort all on b.onnx is right for its own graph, which differs from a.onnx
  - tvm winograd on a.onnx leaves the float64 result of its own graph, first at conv2 (Conv): output
    fc is off

environment: onnx 1.23.2, tvm missing
"""


def text(check):
    out = io.StringIO()
    check_terminal.render(check, out)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def test_the_whole_report():
    assert text(samples.unequal(runs=RUNS, notes=("3 nodes absorbed",))) == GOLDEN


def test_an_equal_pair_is_short_and_says_how_near_it_came():
    report = text(samples.equal())
    assert report.startswith("equivalent: ")
    assert "5 of 5 layers and outputs compared, none differs; nearest to its bound: fc (Gemm), 0.25 of it" in report
    assert "normal form  DIFFERENT   1 difference, harmless: another way to write the same function" in report
    assert "operator" not in report
    assert len(report.splitlines()) < 20


@pytest.mark.parametrize("state", ["equivalent", "different"])
def test_unchecked_never_looks_like_a_pass(state):
    form = samples.comparison(
        states=("equivalent", state, "unchecked"), reasons=("", "", "no rule for Twist"), layers=()
    )
    report = text(samples.check(form, runs=[samples.run(state=State.UNCHECKED, own=None, first=None, reason="no tvm")]))
    assert report.startswith("can't tell: ")
    assert "b.onnx against a.onnx: UNCHECKED" in report
    assert "numerics     UNCHECKED   no rule for Twist" in report
    assert "a.onnx   ort all  UNCHECKED" in report
    assert "ort all on a.onnx was not checked: no tvm" in report


def test_long_texts_are_wrapped_in_100_columns_and_none_is_cut_off():
    long = "model/" + "a_very_long_layer_name/" * 6 + "Conv2D"
    sentence = Difference("padding", long, "it pads differently, " * 20 + "the end.")
    check = samples.unequal(runs=RUNS, notes=("a note " * 30 + "the end of it",))
    (one,) = check.comparisons
    levels = (dataclasses.replace(one.levels[1], differences=(sentence,)), *one.levels[1:])
    rows = tuple(dataclasses.replace(row, a=long) for row in one.layers)
    report = text(dataclasses.replace(check, comparisons=(dataclasses.replace(one, levels=levels, layers=rows),)))
    lines = report.splitlines()
    assert [x for x in lines if len(x) > check_terminal.WIDTH and long not in x] == []
    assert "the end." in report
    assert "the end of it" in report
    assert "…" not in report
    assert "\x1b" not in report


def test_what_a_model_calls_its_layers_is_no_markup_and_no_escape_sequence():
    row = samples.layer("[red]conv\x1b[2J", "[bold]Conv", 9.0)
    report = text(samples.check(samples.comparison(states=("equivalent", "equivalent", "different"), layers=(row,))))
    assert "[red]conv\N{REPLACEMENT CHARACTER}[2J ([bold]Conv)" in report
    assert "1 [red]conv\N{REPLACEMENT CHARACTER}[2J  [bold]Conv" in report
    assert "\x1b" not in report
