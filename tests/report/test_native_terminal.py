"""The native table: convolutions of each framework side by side, the other kinds summed, and what each computes by."""

import io

import pytest
from rich.console import Console

from xframe.report import native_terminal
from xframe.results import Measurement
from xframe.types import Artifact, Case, ConvSite, Kernel, Outcome, Plan, Profile

CONV1 = ConvSite(1, 3, (224, 224), 64, (11, 11), (4, 4), (2, 2, 2, 2))
CONV2 = ConvSite(1, 64, (27, 27), 192, (5, 5), pads=(2, 2, 2, 2))


def row(framework, conv1=1e-3, conv2=(2e-3, 3e-3), runner="native", options=(), outcome=Outcome.OK, **environment):
    """Two passes, the second of twice the times; conv2 is there twice; a kernel of conv1 that only moves data."""

    def profile(factor):
        spent = [("conv1", CONV1, "conv", conv1), ("conv1", CONV1, "layout", conv1)]
        spent += [(f"conv2{i}", CONV2, "conv", seconds) for i, seconds in enumerate(conv2)]
        spent += [("fc6", None, "fc", 5e-3), ("fc7", None, "fc", 1e-3), ("", None, "", 9.0)]
        kernels = [
            Kernel(
                "k",
                10.0 * i,
                10.0 * i + seconds * factor,
                site,
                "",
                kind,
                layer,
                "brgconv" if framework == "pytorch" else "",
            )
            for i, (layer, site, kind, seconds) in enumerate(spent)
        ]
        return Profile(100.0, tuple(kernels))

    artifact = Artifact("a.onnx", "0", "m", framework, "1", 17, (), (), ()) if runner != "native" else None
    case = Case("alexnet", framework, runner, Plan(), "cpu", 1, 2, artifact, options=options)
    reason = "" if outcome == Outcome.OK else "wrong"
    passes = profile(1.0), profile(2.0)
    return Measurement(case, outcome, reason, ((1.0,),), profiles=passes, environment=environment)


def lines(*rows):
    out = io.StringIO()
    Console(file=out, width=100).print(native_terminal.table(rows))
    return [line.split() for line in out.getvalue().splitlines()]


def test_each_convolution_and_the_sums_of_other_kinds():
    found = lines(row("pytorch"), row("caffe", conv1=4e-3, conv2=(6e-3, 7e-3)))
    assert found[0] == ["native", "pytorch", "caffe"]
    assert [x[-2:] for x in found[1:]] == [["3.000", "12.000"], ["7.500", "19.500"], ["9.000", "9.000"]]
    assert found[2][-3] == "(x2)"
    assert found[3][:2] == ["fully", "connected"]


def test_what_a_framework_has_not_is_a_dash():
    found = lines(row("pytorch"), row("caffe", conv2=()))
    assert found[2][-2:] == ["7.500", "-"]


@pytest.mark.parametrize(
    "left_out",
    [
        row("jax", runner="ort"),
        row("jax", options=(("jit", "off"),)),
        row("jax", outcome=Outcome.MISMATCH),
    ],
)
def test_only_native_rows_at_their_defaults_that_are_ok(left_out):
    kept = row("caffe")
    assert native_terminal.profiled([left_out, kept]) == [kept]


def test_a_row_without_sites_is_left_out():
    case = Case("alexnet", "theano", "native", Plan(), "cpu", 1, 2)
    bare = Measurement(case, Outcome.OK, rounds=((1.0,),), profiles=(Profile(1.0, (Kernel("k", 0.0, 1.0),)),))
    assert native_terminal.profiled([bare]) == []


def test_what_each_computes_by_and_its_threads():
    rows = row("caffe", convolution="im2col + GEMM, OpenBLAS 0.3", threads=1), row("pytorch"), row("jax")
    assert list(native_terminal.used(rows)) == [
        "caffe: im2col + GEMM, OpenBLAS 0.3; threads 1",
        "pytorch: direct (brgconv); threads 2",
        "jax: it does not tell by what; threads 2",
    ]
