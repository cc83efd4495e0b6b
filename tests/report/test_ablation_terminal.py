"""An ablation in the terminal: every setting is there, with its time or its reason, and the sum in words."""

import io
import re
from dataclasses import replace

import pytest

from tests.drifting import measurement, run
from xframe.report.ablation_terminal import render
from xframe.types import ConvSite, Kernel, Outcome, Profile

DRIFT = (1.0, 1.1, 0.9)


def row(step, seconds, number=0, outcome=Outcome.OK, framework="pytorch", load=0.0, **changed):
    about = {"ablation": {"set": number, "step": step, "changed": changed}, "foreign_load": [0.0, load]}
    rounds = [[seconds * d] * 4 for d in DRIFT]
    reason = "" if outcome == Outcome.OK else "not in this build"
    return measurement(rounds, framework, outcome=outcome, reason=reason, environment=about, batch=16)


def text(*measurements):
    out = io.StringIO()
    render(run(*measurements), out)
    return out.getvalue()


def cells(report, *start):
    (line,) = [x for x in report.splitlines() if x.split()[: len(start)] == list(start)]
    return re.split(r"\s{2,}", line.strip())[len(start) :]


@pytest.fixture
def report():
    return text(
        row("default", 0.020), row("alone", 0.010, mkldnn="off"), row("alone", 0.040, jit="off"),
        row("alone", 0.0, outcome=Outcome.UNSUPPORTED, nhwc="on"),
        row("default", 0.020, 4), row("together", 0.010, 4, mkldnn="off"), row("worst", 0.040, 4, jit="off"),
    )  # fmt: skip


def test_each_setting_has_its_time_its_gain_and_its_verdict(report):
    assert cells(report, "default") == ["OK", "20.00", "12", "1.00"]
    alone, again = (re.split(r"\s{2,}", x.strip()) for x in report.splitlines() if x.startswith("jit "))
    assert alone == ["jit", "off", "slower", "40.00", "12", "0.50", "0.50 to 0.50"]
    assert again == [*alone, "again"]
    assert "pytorch native, batch 16, threads 2" in report


def test_a_setting_that_is_computed_otherwise_says_by_what():
    site = ConvSite(1, 3, (224, 224), 64, (11, 11), (4, 4), (2, 2, 2, 2))

    def by(words, m):
        return replace(m, profiles=(Profile(1.0, (Kernel("k", 0.0, 1.0, site, algorithm=words),)),))

    report = text(
        by("implicit_gemm", row("default", 0.020)), by("implicit_gemm", row("alone", 0.020, use_tf32="on")),
        by("winograd_fwd", row("alone", 0.010, cudnn_conv_algo_search="heuristic")),
    )  # fmt: skip
    assert "default: convolutions: gemm (implicit_gemm)\n" in report
    assert "cudnn_conv_algo_search=heuristic: convolutions: winograd (winograd_fwd)\n" in report
    assert "use_tf32=on: convolutions" not in report


def test_a_setting_without_a_time_has_its_reason_below(report):
    assert cells(report, "nhwc", "on") == ["UNSUPPORTED", "-", "-", "-", "-"]
    assert "nhwc=on: UNSUPPORTED: not in this build\n" in report


def test_the_sum_is_a_sentence(report):
    assert "options alone give pytorch 2.00x (2.00 to 2.00) at batch 16: mkldnn=off\n" in report
    assert "from the worst single setting (jit=off) to the best (mkldnn=off): 4.00x (4.00 to 4.00)\n" in report


def test_a_sum_of_rows_that_were_disturbed_says_so():
    busy = text(row("default", 0.020), row("alone", 0.040, jit="off", load=1.8))
    assert busy.endswith("beware: other processes used up to 1.8 CPUs meanwhile; a quiet machine may say otherwise\n")
    assert "beware" not in text(row("default", 0.020), row("alone", 0.040, jit="off", load=0.05))


def test_where_nothing_helps_it_says_so():
    report = text(row("default", 0.020), row("alone", 0.025, jit="off"))
    assert "no option alone makes pytorch faster than its defaults at batch 16\n" in report
    assert "from the worst single setting (jit=off) to the best (the defaults): 1.25x" in report


@pytest.mark.parametrize("again", [[], [("together", Outcome.FAILED)]])
def test_what_helped_and_was_not_measured_again_is_said_to(again):
    """The run was cut short, or all of it together fails: no sentence may be held against the table above it."""
    report = text(
        row("default", 0.020), row("alone", 0.010, mkldnn="off"), row("alone", 0.025, jit="off"),
        *([row("default", 0.020, 4)] if again else []),
        *(row(step, 0.0, 4, outcome, mkldnn="off") for step, outcome in again),
    )  # fmt: skip
    assert "no option alone" not in report
    why = ": together they are FAILED" if again else ""
    told = "single options seemed to help pytorch at batch 16, and were not measured again"
    assert f"{told}{why}: mkldnn=off 2.00x (2.00 to 2.00)\n" in report
    assert "from the worst single setting (jit=off) to the defaults: 1.25x" in report


def test_the_threshold_of_the_run_is_said(report):
    assert "a difference below 2.0% is none" in report


def test_what_did_not_help_when_measured_again_is_no_headline():
    report = text(
        row("default", 0.020), row("alone", 0.010, mkldnn="off"), row("alone", 0.025, jit="off"),
        row("default", 0.020, 4), row("together", 0.0199, 4, mkldnn="off"),
    )  # fmt: skip
    assert "from the worst single setting (jit=off) to the best (the defaults): 1.25x" in report
    assert "options alone" not in report
    assert "mkldnn=off seemed to help pytorch at batch 16, and measured again gave 1.01x" in report


def test_a_long_name_stays_whole_and_several_have_a_line_each():
    long = row("tried", 0.010, **{"cudnn_conv_use_max_workspace": "off", "graph_optimization_level": "extended"})
    report = text(row("default", 0.020), long)
    assert cells(report, "cudnn_conv_use_max_workspace", "off", "faster")[0] == "10.00"
    assert cells(report, "graph_optimization_level") == ["extended"]


def test_defaults_that_fail_are_told():
    report = text(
        row("default", 0.0, outcome=Outcome.UNAVAILABLE), row("alone", 0.0, outcome=Outcome.UNAVAILABLE, a="1")
    )
    assert "default; a=1: UNAVAILABLE: not in this build\n" in report
    assert "its defaults are UNAVAILABLE" in report


def test_an_ablation_that_was_stopped_at_once_is_a_head_alone():
    assert text().startswith("xframe 0.1.0: Some CPU\n")
