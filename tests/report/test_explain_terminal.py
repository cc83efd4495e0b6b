"""The tables of an explanation: every term, algorithm and note is there, and nothing is cut off."""

import io
import re
from dataclasses import replace

from tests import report_samples
from tests.analysis.profiles import A, forced, measured, one_pass
from xframe.analysis.decomposition import explained
from xframe.analysis.explanation import Explanation
from xframe.report import explain_terminal
from xframe.report.explain_terminal import TERM
from xframe.types import Outcome


def made(*runners, run=None):
    """The explanation of the made-up rows of these (framework, runner)."""
    run = run or report_samples.run()
    rows = tuple(m for m in run.measurements if (m.case.framework, m.case.runner) in runners and not m.case.options)
    rows = tuple(m for m in rows if m.outcome != Outcome.OK or m.profiles)
    run = replace(run, environment={**run.environment, "versions": {"xframe": "0.1.0"}})
    found = tuple(d for d in explained(run) if any(d.case is m.case for m in rows))
    return Explanation(run, rows, found, (), ("no floor: a reason",))


def text(explanation, details=False):
    out = io.StringIO()
    explain_terminal.render(explanation, out, details)
    return out.getvalue()


TWO = (("pytorch", "native"), ("tensorflow", "native"))


def lines(report, start):
    return [line for line in report.splitlines() if line.strip().startswith(start)]


def test_terms_stand_side_by_side_with_the_difference():
    report = text(made(*TWO))
    assert "pytorch - tensorflow" in report
    for number, name in enumerate(name for key, name in TERM.items() if key != "convolutions"):
        (line,) = lines(report, f"{'+' if number else '='} {name}")
        assert len(re.findall(r"-?\d+\.\d+ \(-?\d+\.\d+ to -?\d+\.\d+\)", line)) == 3
    assert len(re.findall("of wall", lines(report, "profiled step slower")[0])) == 2
    assert len(re.findall("of wall", lines(report, "unattributed")[0])) == 2


def test_parts_are_there_on_request():
    assert lines(text(made(*TWO)), "dispatch") == []
    assert lines(text(made(*TWO), details=True), "dispatch") != []


def test_each_convolution_has_its_algorithm_the_best_lowering_and_its_floor():
    report = text(made(*TWO))
    (line,) = lines(report, "conv2 ")
    assert len(re.findall(r"\d\.\d{3}", line)) == 4  # of both, of the best lowering, and the floor
    assert report.count("brgconv:avx512") == 2 * 5
    assert "winograd" in report
    assert "64x27x27 -> 192, 5x5" in report


def test_more_rows_than_fit_have_tables_of_their_own():
    four = made(*TWO, ("jax", "native"), ("pytorch", "ort"))
    report = text(four)
    assert len(lines(report, "= floor")) == 2
    assert "pytorch - tensorflow" not in report
    assert max(map(len, report.splitlines())) <= explain_terminal.WIDTH


def test_nothing_is_cut_off_and_no_colours_go_into_a_file():
    report = text(made(*TWO), details=True)
    assert "…" not in report
    assert "\x1b" not in report


def test_notes_the_executor_and_the_machine_are_told():
    report = text(made(*TWO))
    assert re.search(r"common executor, batch 1, 2 threads, ms of a whole pass: direct \d+\.\d\d, winograd", report)
    assert "fft: UNSUPPORTED, fft can't do conv1: its stride is 4" in report
    assert "this machine, 2 threads: 216 GFLOP/s, 160 GB/s from L2" in report
    assert "no floor: a reason" in report
    assert "pytorch: other processes took 3 % of the CPUs" in report
    assert "Each row is of one process." in report
    assert "Each row is of one process." not in text(made(TWO[0]))


def test_batches_have_tables_of_their_own():
    report = text(made(*TWO, run=report_samples.run((1, 16))))
    assert [x for x in report.splitlines() if "95 % intervals" in x] == [
        "batch 1, 2 threads: ms, with 95 % intervals", "batch 16, 2 threads: ms, with 95 % intervals",
    ]  # fmt: skip


def test_an_unknown_algorithm_and_a_site_that_is_not_seen_are_told():
    run = report_samples.run(layers={}, machines={})
    one = measured(one_pass(10.0, (A, 5.0, "?")), wall=10.0)
    two = measured(one_pass(10.0, ("fc", 5.0)), framework="jax")
    run = replace(run, measurements=(one, two, forced("fft", 5, 2)))
    report = text(made(("pytorch", "native"), ("jax", "native"), run=run))
    assert "unknown" in report
    assert "algorithm and quality are not told apart where the algorithm is unknown: " in report
    assert lines(report, "+ algorithm") == lines(report, "+ kernel quality") == []
    (line,) = lines(report, "+ convolution kernels")
    assert len(re.findall(r"-?\d+\.\d+ \(", line)) == 3


def test_long_times_and_wide_intervals_are_whole():
    """What is too wide for its column goes on below: it is never cut."""
    one, two = (
        measured(
            [one_pass(ms, (A, ms / 2, "jit"), ("fc", ms / 3)) for ms in (700.0, 1900.0, 2500.0)], framework, wall=wall
        )
        for framework, wall in (("pytorch", [900.0, 2400.0]), ("tensorflow", [400.0, 1700.0]))
    )
    run = replace(report_samples.run(layers={}, machines={}), measurements=(one, two, forced("fft", 500, 200)))
    report = text(made(*TWO, run=run), details=True)
    table = report[report.index("95 % intervals") : report.index("unattributed")]
    assert table.count("(") == table.count(")") == len(re.findall(r"\(-?\d+\.\d to\s", table))
    assert max(map(len, report.splitlines())) <= explain_terminal.WIDTH
    assert "tensorflow" in table
