"""The assertion for test suites: when it raises, and that its message is short and says what to do."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests import check_samples as samples
from xframe.equivalence.result import Difference
from xframe.testing import assert_equivalent


@pytest.fixture
def found(monkeypatch):
    """``found(check)``: what the checker finds from now on; returns the calls it gets."""

    def use(check):
        calls = []

        def fake(subjects, **options):
            calls.append((subjects, options))
            return check

        monkeypatch.setitem(sys.modules, "xframe.check.api", SimpleNamespace(check_equivalence=fake))
        return calls

    return use


def message(*args, **options):
    with pytest.raises(AssertionError) as e:
        assert_equivalent(*args, **options)
    return str(e.value)


def test_equivalent_models_pass_and_the_result_comes_back(found):
    check = samples.equal()
    calls = found(check)
    assert assert_equivalent("a.onnx", "b.onnx", "c.onnx", count=3) is check
    assert calls == [(["a.onnx", "b.onnx", "c.onnx"], {"count": 3})]


def test_the_message_of_a_failure(found):
    found(samples.unequal())
    assert message("a.onnx", "my port.onnx", seed=7, runners=("ort:all",), levels=("normal form", "numerics")) == (
        "NOT equivalent: b.onnx parts from a.onnx at conv2 (Conv): 4e+04 times the bound\n"
        "  b.onnx: normal form DIFFERENT: 2 differences, 1 of them harmless\n"
        "  b.onnx: numerics DIFFERENT: output fc at [0, 1] is 0.5, expected 0.7 +- 5e-06\n"
        "  first that differs: conv2 (Conv)\n"
        "    output conv2 at [0, 3, 1, 2] is 0.7, expected 0.5: 40000 times the bound\n"
        "  - b.onnx pads 0,0,1,1 where a.onnx pads 1,1,1,1.\n"
        "to see all of it and shrink it: xframe check a.onnx 'my port.onnx' --seed 7 --runner ort:all"
        " --level normal-form,numerics --reduce out/"
    )


def test_unchecked_is_not_passed_unless_that_is_allowed(found):
    found(samples.unchecked())
    text = message("a.onnx", "b.onnx")
    assert text.startswith("can't tell: b.onnx against a.onnx: numerics unchecked: the reference has no rule for Twist")
    assert assert_equivalent("a.onnx", "b.onnx", allow_unchecked=True).exit_code == 1
    found(samples.unequal())
    message("a.onnx", "b.onnx", allow_unchecked=True)


def test_a_runner_that_is_off_fails_too_and_is_named(found):
    found(samples.check(samples.comparison(), runs=[samples.run(runner="tvm fft", own=5.0, blamed="conv2 (Conv)")]))
    assert "tvm fft on a.onnx leaves the float64 result of its own graph, first at conv2 (Conv)" in message("a", "b")


@pytest.mark.parametrize(
    ("things", "options"),
    [
        ((object(), "b.onnx"), {}),
        (("a.onnx", "b.onnx"), {"inputs": [[np.zeros(3)]]}),
        (("a", "b"), {"inputs": iter(())}),
    ],
)
def test_what_a_command_can_not_hold_is_shrunk_by_the_same_call(found, things, options):
    found(samples.unequal())
    text = message(*things, **options)
    assert text.endswith("to shrink it: the same call with reduce=Path('out/')")
    assert "xframe check" not in text


def test_a_long_list_of_differences_is_cut_with_its_count(found):
    many = tuple(Difference("weights", f"conv{i}", f"the weights of conv{i} differ.") for i in range(40))
    found(samples.check(samples.comparison(states=("different",) * 3, differences=many)))
    text = message("a.onnx", "b.onnx")
    assert "  - and 35 more\n" in text
    assert len(text.splitlines()) < 15
