"""The terminal report: what it shows for each outcome, and that nothing is cut off."""

import io
import re
from dataclasses import replace

import pytest

from xframe.report import terminal
from xframe.results import Measurement, Run
from xframe.store import SCHEMA
from xframe.types import Artifact, Case, ConvSite, Kernel, Outcome, Plan, Profile, SiteRecord

CONV1 = ConvSite(1, 3, (224, 224), 64, (11, 11), (4, 4), (2, 2, 2, 2))
CONV2 = ConvSite(1, 64, (27, 27), 192, (5, 5), pads=(2, 2, 2, 2))
SITES = (("conv1", CONV1), ("conv2", CONV2), ("conv2b", CONV2))
FELL_BACK = Plan("winograd", ((CONV1, "direct"), (CONV2, "winograd")), ((CONV1, "direct, because of its stride"),))
LONG = "output fc at [0, 4] is 0.4979, expected -0.5020 +- 5.19e-06: " + "and so on, " * 30 + "the end"


def measurement(framework, runner, seconds, plan=None, kernels=(), batch=1, threads=2, outcome=Outcome.OK, **fields):
    artifact = Artifact("a.onnx", "0", "m", framework, "1", 17, (), (), SITES) if runner != "native" else None
    case = Case("alexnet", framework, runner, plan or Plan(), "cpu", batch, threads, artifact)
    rounds = ((seconds, seconds * 1.5), (seconds,)) if seconds else ()
    placed = tuple(Kernel("k", i, i + s, site) for i, (site, s) in enumerate(kernels))
    return Measurement(case, outcome, rounds=rounds, profiles=(Profile(sum(s for _, s in kernels), placed),), **fields)


def text(*measurements, request=None):
    facts = {"versions": {"xframe": "0.1.0"}, "cpu": "Some CPU", "request": request or {"lowerings": ("auto",)}}
    out = io.StringIO()
    terminal.render(Run(SCHEMA, "2026-01-01T00:00:00+00:00", [], facts, measurements), out)
    return out.getvalue()


def cells(report, *start):
    """The words of the table row that starts with ``start``."""
    (line,) = [x for x in report.splitlines() if x.split()[: len(start)] == list(start)]
    return line.split()[len(start) :]


def test_a_row_has_its_statistics_and_its_ratio_to_the_best():
    report = text(
        measurement("pytorch", "native", 0.020, error=1e-6, error_bound=1e-5, error_ratio=0.1),
        measurement("pytorch", "ort", 0.010, error=2e-6, error_bound=1e-5, error_ratio=0.25),
    )
    assert cells(report, "pytorch", "native", "auto") == ["OK", "20.00", "5.00", "3", "2.00", "1.0e-06", "0.1"]
    assert cells(report, "pytorch", "ort", "auto") == ["OK", "10.00", "2.50", "3", "1.00", "2.0e-06", "0.25"]


CLOCK = {"device_clock": {"how": "CUDA events behind a gate", "empty_s": 2e-6}}


def test_what_the_clock_of_a_gpu_says_has_a_column_where_a_row_has_it():
    report = text(
        measurement("pytorch", "native", 0.020, device_rounds=((0.018, 0.016), (0.017,)), environment=CLOCK),
        measurement("jax", "native", 0.010),
    )
    assert " ".join(cells(report, "framework")).endswith("n x best device ms error of bound notes")
    assert cells(report, "pytorch", "native", "auto") == ["OK", "20.00", "5.00", "3", "2.00", "17.000", "-", "-", "1"]
    assert cells(report, "jax", "native", "auto") == ["OK", "10.00", "2.50", "3", "1.00", "-", "-", "-"]
    assert "[1] device ms: CUDA events behind a gate; with nothing between them 2.0 us" in report
    assert "device ms" not in text(measurement("jax", "native", 0.010))


def test_a_row_that_is_not_ok_never_shows_a_time_nor_sets_the_best():
    wrong = {"outcome": Outcome.MISMATCH, "reason": LONG, "error": 1.0, "error_bound": 5e-6, "error_ratio": 2e5}
    report = text(
        measurement("jax", "native", 0.001, **wrong),
        measurement("jax", "ort", 0.010),
        measurement("jax", "tvm", None, Plan("fft"), outcome=Outcome.UNSUPPORTED, reason="not here"),
    )
    assert cells(report, "jax", "native", "auto") == ["MISMATCH", "-", "-", "-", "-", "1.0e+00", "2e+05", "1"]
    assert cells(report, "jax", "ort", "auto")[:5] == ["OK", "10.00", "2.50", "3", "1.00"]
    assert cells(report, "jax", "tvm", "fft") == ["UNSUPPORTED", "-", "-", "-", "-", "-", "-", "2"]
    assert f"[1] MISMATCH: {LONG}\n" in report  # whole, on one line that a search can find
    assert "[2] UNSUPPORTED: not here\n" in report


def test_products_of_fewer_bits_are_not_ranked_with_float32():
    """Neither as the best row, nor as the best of a site; and both sides say why."""
    where = {"kernels": ((CONV1, 2e-3), (CONV2, 2e-3))}
    found = {n: measurement("jax", "tvm", 0.01, Plan(n), **where) for n in ("gemm", "gemm_tf32")}
    fast = measurement("jax", "tvm", 0.005, Plan("gemm_tf32"), kernels=((CONV1, 1e-3), (CONV2, 1e-3)))
    for name, m in (("gemm", found["gemm"]), ("gemm_tf32", fast)):
        found[name] = replace(m, sites=tuple(SiteRecord(s, "c", name, name) for _, s in SITES))
    report = text(measurement("jax", "native", 0.02), found["gemm"], found["gemm_tf32"])
    assert cells(report, "jax", "native", "auto", "OK")[3] == "2.00"
    assert cells(report, "jax", "tvm", "gemm", "OK")[3] == "1.00"
    assert cells(report, "jax", "tvm", "gemm_tf32", "OK")[3] == "-"
    assert "not ranked with the others: products tf32, not float32 (products of fewer bits are another" in report
    (line,) = [x for x in report.splitlines() if x.startswith("3x224")]
    assert line.split()[-2:] == ["2.000*", "1.000"]


def test_equal_notes_are_told_once():
    report = text(*[measurement(f, "native", 0.01, notes=("busy", f"only {f}")) for f in ("jax", "pytorch")])
    assert report.count("busy") == 1
    assert cells(report, "jax", "native", "auto")[-1] == "1,2"
    assert cells(report, "pytorch", "native", "auto")[-1] == "1,3"


def test_sites_are_summed_by_artifact_then_the_median_over_frameworks_with_the_best_marked():
    def tvm(framework, seconds):
        return measurement(framework, "tvm", 0.01, FELL_BACK, [(CONV1, 1e-3), (CONV2, seconds), (CONV2, seconds)])

    report = text(
        measurement("pytorch", "ort", 0.01, None, [(CONV1, 0.7e-3), (CONV2, 9e-3), (None, 1.0)]),
        tvm("pytorch", 1e-3), tvm("tensorflow", 2e-3), tvm("jax", 4e-3),
    )  # fmt: skip
    conv1, conv2 = (next(x for x in report.splitlines() if x.startswith(s)) for s in ("3x224x224", "64x27x27"))
    assert re.split(r"\s{2,}", conv1.strip()) == ["3x224x224 -> 64, 11x11 /4", "0.700*", "(1.000)"]
    assert re.split(r"\s{2,}", conv2.strip()) == ["64x27x27 -> 192, 5x5 (x2)", "9.000", "4.000*"]
    assert "profiled pass, which is not the timed one" in report
    assert "1 of 2 different convolutions fell back: 3x224x224 -> 64, 11x11 /4: direct, because of its stride" in report


def test_a_site_has_the_median_over_passes_of_what_its_kernels_share():
    m = measurement("pytorch", "ort", 0.01)
    passes = [Profile(9.0, (Kernel("k", 0.0, x, CONV1), Kernel("r", x / 2, x))) for x in (4e-3, 40e-3, 8e-3)]
    report = text(replace(m, profiles=tuple(passes)))
    (line,) = (x for x in report.splitlines() if x.startswith("3x224x224"))
    assert line.split()[-1] == "6.000*"


def test_a_fallback_is_never_the_best_of_its_site():
    report = text(
        measurement("jax", "tvm", 0.01, Plan("direct"), [(CONV1, 2e-3)]),
        measurement("jax", "tvm", 0.01, FELL_BACK, [(CONV1, 1e-3)]),
    )
    (line,) = (x for x in report.splitlines() if x.startswith("3x224x224"))
    assert re.split(r"\s{2,}", line.strip())[1:] == ["2.000*", "(1.000)"]


def test_a_plan_of_several_lowerings_shows_which_it_took():
    best = Plan("best", ((CONV1, "direct"), (CONV2, "winograd")))
    report = text(
        measurement("jax", "tvm", 0.01, FELL_BACK, [(CONV1, 1e-3), (CONV2, 2e-3)]),
        measurement("jax", "tvm", 0.01, best, [(CONV1, 1.5e-3), (CONV2, 1e-3)]),
    )
    conv1, conv2 = (next(x for x in report.splitlines() if x.startswith(s)) for s in ("3x224x224", "64x27x27"))
    assert re.split(r"\s{2,}", conv1.strip())[1:] == ["(1.000)", "direct 1.500*"]
    assert re.split(r"\s{2,}", conv2.strip())[1:] == ["2.000", "winograd 1.000*"]


def test_a_backend_that_picks_shows_what_each_site_was_computed_by_and_how_its_kernels_are_called():
    names = {CONV1: "void implicit_convolve_sgemm<float, 128>", CONV2: "winograd_fwd_4x4"}
    m = measurement("jax", "ort", 0.01)
    kernels = tuple(Kernel("k", i * 1e-3, (i + 1) * 1e-3, s, algorithm=names[s]) for i, (_, s) in enumerate(SITES))
    report = text(replace(m, profiles=(Profile(3e-3, kernels),)))
    conv1, conv2 = (next(x for x in report.splitlines() if x.startswith(s)) for s in ("3x224x224", "64x27x27"))
    assert re.split(r"\s{2,}", conv1.strip())[1:] == ["gemm 1.000*"]
    assert re.split(r"\s{2,}", conv2.strip())[1:] == ["winograd 2.000*"]
    note = (
        "[1] convolutions: gemm (void implicit_convolve_sgemm<float, 128>) at 3x224x224 -> 64, 11x11 /4; winograd"
        " (winograd_fwd_4x4) at 64x27x27 -> 192, 5x5\n"
    )
    assert note in report
    alike = tuple(replace(k, algorithm="?") for k in kernels)
    assert "[1] convolutions: ?\n" in text(replace(m, profiles=(Profile(3e-3, alike),)))
    assert "convolutions: " not in text(replace(m, profiles=(Profile(3e-3, (Kernel("k", 0, 1e-3, CONV1),)),)))
    told = replace(m, case=replace(m.case, runner="cudnn", plan=Plan("gemm", ((CONV1, "gemm"), (CONV2, "gemm")))))
    named = tuple(replace(k, algorithm=f"cudnn:{x}") for k, x in zip(kernels, ("gemm", "fft"), strict=False))
    report = text(replace(told, profiles=(Profile(3e-3, named[:2]),)))
    assert "convolutions: fft (cudnn:fft) at 64x27x27 -> 192, 5x5\n" in report


@pytest.mark.parametrize(
    ("schedules", "note"),
    [
        (("template",) * 3, "template (scheduled by hand): all 3 kernels"),
        (("tuned, logs/a",) * 3, "tuned: 3 of 3 kernels, from logs/a"),
        (
            ("fixed", "tuned, logs/a", "template"),
            "tuned: 1 of 3 kernels, from logs/a; fixed (no template): 3x224x224 -> 64, 11x11 /4;"
            " template (scheduled by hand): 64x27x27 -> 192, 5x5",
        ),
        (("tuned, logs/a", "tuned, b", "tuned, b"), "tuned: 3 of 3 kernels, from logs/a (1) and b (2)"),
        (
            ("template", "template, as the record in b is refused: no", "template, as the record in b is refused: no"),
            "template (scheduled by hand): 3x224x224 -> 64, 11x11 /4;"
            " template, as the record in b is refused: no: 64x27x27 -> 192, 5x5 (x2)",
        ),
    ],
)
def test_a_row_says_where_its_schedules_are_from(schedules, note):
    sites = [SiteRecord(s, name, "fft", "fft", schedule=x) for (name, s), x in zip(SITES, schedules, strict=True)]
    report = text(measurement("jax", "tvm", 0.01, Plan("fft"), sites=tuple(sites)), measurement("jax", "ort", 0.01))
    assert f"\n[1] {note}\n" in report
    assert cells(report, "jax", "tvm", "fft")[-1] == "1"
    assert "[2]" not in report


def test_no_site_table_without_profiled_sites_or_from_rows_that_are_not_ok():
    bad = {"outcome": Outcome.MISMATCH, "reason": "wrong"}
    report = text(measurement("jax", "native", 0.01), measurement("jax", "tvm", 0.01, None, [(CONV1, 1e-3)], **bad))
    assert "profiled pass" not in report


def test_each_batch_and_thread_count_has_its_own_tables():
    report = text(*[measurement("jax", "native", 0.01 * b, batch=b, threads=t) for b in (1, 16) for t in (2, 1)])
    assert [x for x in report.splitlines() if x.startswith("batch")] == [
        "batch 1, threads 2", "batch 1, threads 1", "batch 16, threads 2", "batch 16, threads 1",
    ]  # fmt: skip
    assert report.count("1.00") >= 4  # each is the best of its own table


@pytest.mark.parametrize(("named", "told"), [(None, True), (("auto", "fft"), False)])
def test_an_implied_fallback_is_told(named, told):
    request = {"lowerings": named, "resolved": {"fallback": "direct"}}
    report = text(measurement("jax", "tvm", 0.01, Plan("fft")), request=request)
    assert ("direct runs (noted)" in report) == told


def test_all_but_notes_fits_in_100_columns():
    kernels = [(CONV1, 1e-3), (CONV2, 123e-3)]
    labels = ("auto", "gemm", "direct", "winograd", "fft")
    bad = {"outcome": Outcome.NOT_HONOURED, "reason": LONG, "error": 1e-6, "error_ratio": 1e-3}
    report = text(
        measurement("tensorflow", "ort", 1.5, None, kernels),
        *[measurement("tensorflow", "tvm", 1.234, Plan(x), kernels, error=1e-6, error_ratio=1e-3) for x in labels],
        measurement("tensorflow", "tvm", 1.2, Plan("winograd"), **bad),
    )
    lines = [x for x in report.splitlines() if not x.startswith("[")]
    assert max(map(len, lines)) <= terminal.WIDTH
    assert "…" not in report
    assert "\x1b" not in report  # no colours into a file
