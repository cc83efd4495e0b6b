"""The summary of a check: rows, and the ratios that there are to look at."""

from dataclasses import replace

from xframe.gpucheck import words
from xframe.gpucheck.journal import DONE, INCOMPLETE, Found
from xframe.worker.device_clock import GATED, UNGATED


def row(backend, lowering, seconds, kernels=None, device=None, **more):
    times = {"median_s": seconds, "kernel_s": kernels, "device_median_s": device}
    told = {"framework": None, "options": {}, "outcome": "OK", "error_ratio": 0.5, "reason": "", "fallback": {}}
    return {**told, "backend": backend, "lowering": lowering, **times, **more}


def test_a_row_says_what_ran():
    engine = "cudnn graph engine 34: winograd, 4x4 tiles, workspace 0 bytes"
    one = row("cudnn", "graph_fastest", 1e-3, device=9e-4, detail=engine)
    lines = list(words.lines([Found("site c", DONE, rows=(one,))]))
    assert lines[2] == f"      1.0000 ms      0.9000 ms  cudnn graph_fastest: OK error 0.500 of its bound ({engine})"
    waits = {**one, "device_clock": f"{UNGATED}; with nothing between them 3.0 us"}
    assert list(words.lines([Found("site c", DONE, rows=(waits,))]))[2] == lines[2] + words.GAPS
    assert list(words.lines([Found("site c", DONE, rows=({**waits, "device_clock": GATED},))]))[2] == lines[2]
    refused = row("cudnn", "winograd", None, error_ratio=None, outcome="UNSUPPORTED", reason="not for this kernel")
    network = row("tvm", "fft", 1e-3, fallback={"a": "direct", "b": "direct"})
    lines = list(words.lines([Found("n", DONE, rows=({**refused, "lowering": "fft"}, refused, network))]))
    assert lines[2].split() == ["cudnn", "fft,", "winograd:", "UNSUPPORTED", "not", "for", "this", "kernel"]
    assert lines[3].endswith("tvm fft: OK error 0.500 of its bound (2 kinds of convolutions by the fallback)")


def test_ratios_are_of_the_best_verified_rows_of_a_site():
    rows = (row("tvm", "gemm", 2.0), row("tvm", "fft", None), row("tvm", "direct", 1.0), row("cudnn", "fft", 4.0))
    one = Found("a", DONE, rows=rows, facts={"site": "conv1"})
    other = replace(one, rows=(row("tvm", "gemm", 1.0), row("cudnn", "gemm", 1.0)), facts={"site": "conv2"})
    lines = list(words.ratios([one, other, replace(one, rows=rows[:2], facts={"site": "conv3"})]))
    assert "conv1: 4.00  (tvm direct, cudnn fft;" in lines[1]
    assert lines[-1].strip() == "geometric mean of 2: 2.00"
    assert list(words.ratios([])) == []


def test_a_clock_is_told_where_all_rows_have_it_and_the_hosts_where_none_is():
    rows = (
        row("tvm", "gemm", 2.0, 1.0, 1.8),
        row("tvm", "fft", 1.0, 3.0, 0.5),
        row("cudnn", "gemm", 9.0, 1.5, 2.0),
    )
    one = Found("a", DONE, rows=rows, facts={"site": "conv1"})
    text = "\n".join(words.ratios([one]))
    assert "whole rows by the GPU's clock" in text
    assert "conv1: 4.00  (tvm fft, cudnn gemm;" in text
    assert "kernels alone" in text
    assert "conv1: 1.50  (tvm gemm, cudnn gemm;" in text
    assert "host" not in text
    lacking = replace(one, rows=(*rows[:2], row("cudnn", "gemm", 9.0)), facts={"site": "conv2"})
    text = "\n".join(words.ratios([one, lacking]))
    assert "whole rows by the host's clock\n  conv2: 9.00  (tvm fft, cudnn gemm;" in text
    assert text.count("conv2") == 1


def test_tuned_kernels_the_whole_network_and_the_peak_have_ratios_of_their_own():
    site = Found("at c", DONE, rows=(row("tvm", "gemm", 4.0, 1.0), row("cudnn", "gemm", 2.0, 0.5)))
    site = replace(site, facts={"site": "c", "flop": 8e12})
    tuned = replace(site, rows=(row("tvm", "gemm", 1.0, 0.25),), facts={"site": "c", "tuned": True})
    rows = (
        row("tvm", "best", 1.0, device=0.5),
        row("ort", "auto", 3.0),
        row("native", "auto", 2.0, device=0.75, framework="jax"),
        row("cudnn", "auto", 9.0),
    )
    network = Found("best batch 128", DONE, rows=rows, facts={"network": "alexnet", "batch": 128})
    roofs = Found("roofs", DONE, facts={"roofs": {"flop_per_s": 1e13, "bytes_per_s": 4.5e12, "sm_clock_mhz": 1980}})
    text = "\n".join(words.ratios([site, tuned, network, roofs]))
    assert "untuned, site: cuDNN's best over TVM's best, the convolution's kernels alone" in text
    assert text.index("  c: 0.50") < text.index("\ntuned at c, site") < text.index("  c: 2.00")
    assert "alexnet batch 128, best batch 128, ort: 3.00 by the host's clock (tvm best)\n" in text
    assert "jax: 2.00 by the host's clock (tvm best), 1.50 by the GPU's (tvm best)\n" in text
    assert "128, cudnn" not in text
    assert "measured at most: 10.00 TFLOP/s in float32, 4500 GB/s read from memory, multiplying at 1980 MHz" in text
    assert "at c: gemm at 80% of it" in text
    unprofiled = replace(site, rows=(row("tvm", "gemm", 3.0),))
    assert "gemm at" not in "\n".join(words.ratios([unprofiled, roofs]))
    unprofiled = replace(site, rows=(row("tvm", "gemm", 3.0, device=2.0),))
    assert "at c: gemm at 40% of it at least, by the whole row" in "\n".join(words.ratios([unprofiled, roofs]))


def test_the_tuned_mean_is_of_all_sites():
    """Where tuning found nothing, what was not tuned is what runs."""
    sites = [
        Found(name, DONE, rows=(row("tvm", "gemm", 2.0), row("cudnn", "gemm", 1.0)), facts={"site": name})
        for name in ("conv1", "conv2")
    ]
    tuned = replace(sites[0], rows=(row("tvm", "gemm", 0.5),), facts={"site": "conv1", "tuned": True})
    text = "\n".join(words.ratios([*sites, tuned]))
    assert "tuned at conv1, site: cuDNN's best over TVM's best" in text
    assert text[text.index("tuned at conv1") :].count("geometric mean of 2: 1.00") == 1


def test_what_cudnns_best_may_lack_is_told():
    rows = [row("tvm", "gemm", 1.0), *(row("cudnn", name, 2.0) for name in words.VENDORS_BEST)]
    one = Found("a", DONE, rows=tuple(rows), facts={"site": "conv1"})
    assert "conv1: 2.00  (tvm gemm, cudnn auto)" in "\n".join(words.ratios([one]))
    late = replace(one, rows=(*rows[:2], row("cudnn", "graph_fastest", None, outcome="TIMEOUT"), rows[3]))
    text = "\n".join(words.ratios([late]))
    assert "conv1: 2.00  (tvm gemm, cudnn auto; without cuDNN's graph_fastest)" in text


def test_rounded_products_have_no_part_in_ratios():
    rows = (row("tvm", "gemm", 2.0), row("tvm", "gemm_tf32", 0.1), row("cudnn", "gemm", 1.0))
    text = "\n".join(words.ratios([Found("a", DONE, rows=rows, facts={"site": "conv1"})]))
    assert "conv1: 0.50  (tvm gemm," in text


def test_the_gravest_row_decides_what_the_exit_code_is():
    def code(state, *outcomes):
        return words.exit_code([Found("a", state, rows=tuple(row("tvm", "gemm", 1.0, outcome=o) for o in outcomes))])

    assert code(DONE, "OK", "UNSUPPORTED", "UNAVAILABLE") == 0
    assert code(INCOMPLETE, "OK", "TIMEOUT") == 1
    assert code(DONE, "OK", "NOT_HONOURED") == 4
    assert code(INCOMPLETE, "NOT_HONOURED", "MISMATCH") == 3


def test_a_tuned_site_is_the_best_of_what_was_tuned_and_what_was_not():
    """Only lowerings that tuning found something for are measured again."""
    site = Found("s", DONE, rows=(row("tvm", "fft", 1.0), row("cudnn", "gemm", 2.0)), facts={"site": "c"})
    tuned = Found("t", DONE, rows=(row("tvm", "gemm", 1.5),), facts={"site": "c", "tuned": True})
    text = "\n".join(words.ratios([site, tuned]))
    assert text.count("c: 2.00  (tvm fft, cudnn gemm;") == 2
    for rows in ((), (row("tvm", "gemm", None), row("cudnn", "gemm", 2.0))):
        assert "\ntuned" not in "\n".join(words.ratios([site, replace(tuned, rows=rows)]))
