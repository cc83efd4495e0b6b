"""The benchmark's arithmetic, on made-up measurements."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import equivalence, errors, fleet, layers, lowerings, peers, robustness, rows, transfer
from xframe import artifact, registry, zoo
from xframe.equivalence import kernels
from xframe.errors import ModelError, XframeError
from xframe.lowering.target import Cpu
from xframe.normal import loading
from xframe.registry import LOWERINGS, defaults
from xframe.results import Measurement, Run
from xframe.types import Case, ConvSite, Kernel, Outcome, Plan, Profile

#: Of AlexNet's fully connected layers.
WEIGHTS = 9216 * 4096 + 4096 * 4096 + 4096 * 1000
SITE = ConvSite(1, 3, (8, 8), 4, (3, 3))


def measurement(runner, label, batch, seconds=(), reason="", model="alexnet", framework="pytorch", profiles=()):
    case = Case(model, framework, runner, Plan(label), "cpu", batch, 2)
    if seconds:
        return Measurement(case, Outcome.OK, rounds=(tuple(seconds),), profiles=profiles)
    return Measurement(case, Outcome.FAILED, reason)


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a benchmark prints for these measurements, and its exit code."""

    def run(*measurements, options=("--json",), benchmark=lowerings):
        made = Run(1, "now", (), {}, tuple(measurements))
        monkeypatch.setattr(rows, "compare", lambda *_: made)
        monkeypatch.setattr(peers, "read_bandwidth", lambda threads: 4 * WEIGHTS)
        monkeypatch.setattr(sys, "argv", [benchmark.__name__, *options])
        code = rows.run(benchmark.main)
        return code, capsys.readouterr().out.splitlines()

    return run


def test_ratio_is_the_peers_median_over_ours(printed):
    code, lines = printed(
        measurement("ort", "auto", 1, (2.0, 3.0, 10.0)),
        measurement("tvm", "winograd", 1, (1.0, 2.0, 2.0)),
        measurement("ort", "auto", 16, (8.0,)),
        measurement("tvm", "winograd", 16, (16.0,)),
    )
    rows = [json.loads(line) for line in lines]
    assert code == 0
    assert [(r["batch"], r["peer"], r["ratio"]) for r in rows] == [
        (1, None, None),
        (1, "ort", 1.5),
        (16, None, None),
        (16, "ort", 0.5),
    ]


def test_a_failed_row_is_shown_without_a_ratio(printed):
    code, lines = printed(measurement("ort", "auto", 1, (2.0,)), measurement("tvm", "fft", 1, reason="it crashed"))
    assert code == 1
    assert json.loads(lines[1])["ratio"] is None
    _, lines = printed(measurement("tvm", "fft", 1, reason="it crashed"), options=())
    assert lines == ["alexnet      batch 1   threads 2 tvm           fft       FAILED: it crashed"]


def test_what_fails_at_once_is_a_row_and_a_request_without_sense_an_error(printed, monkeypatch, capsys):
    def fails(*_):
        raise ModelError("no reference")

    monkeypatch.setattr(sys, "argv", ["lowerings.py", "--json"])
    monkeypatch.setattr(rows, "compare", fails)
    assert rows.run(lowerings.main) == 1
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["outcome"], row["reason"], row["peer"]) == ("FAILED", "no reference", None)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", ["lowerings.py", "--model", "alexnt"])
    assert rows.run(lowerings.main) == 2
    assert "did you mean" in capsys.readouterr().err


def network_rows():
    """AlexNet at batch 1: a plan of 1 s, of which 0.2 s are convolutions, and two peers; the faster one failed."""
    kernels = (Kernel("conv1", 0.0, 0.2, SITE), Kernel("max", 0.2, 0.3), Kernel("fc1_product", 0.4, 0.9))
    return (
        measurement("native", "auto", 1, (3.0,)),
        measurement("native", "auto", 1, (1.5,), framework="jax"),
        measurement("ort", "auto", 1, reason="it crashed"),
        measurement("tvm", "best", 1, (1.0,), profiles=(Profile(0.95, kernels),)),
    )


def test_a_network_is_held_against_its_fastest_peer(printed):
    code, lines = printed(*network_rows(), options=("--json", "--case", "alexnet:1", "--threads", "2"), benchmark=peers)
    *others, ours = map(json.loads, lines)
    assert code == 1  # a peer failed
    assert [r["peer"] for r in others] == [None] * 3
    assert (ours["peer"], ours["ratio"], ours["conv_s"], ours["fc_read_share"]) == ("jax", 1.5, 0.2, 2.0)


def test_the_table_shows_the_bar_beside_what_was_reached(printed):
    failed = measurement("tvm", "winograd", 1, reason="out of memory")
    options = ("--table", "--case", "alexnet:1", "--threads", "2", "--lowering", "best,winograd")
    _, lines = printed(*network_rows(), failed, options=options, benchmark=peers)
    head, _, body = (line for line in lines if line.startswith("|"))
    cells = dict(zip((c.strip() for c in head.split("|")), (c.strip() for c in body.split("|")), strict=True))
    assert (cells["jax"], cells["ort"], cells["openvino"], cells["best"]) == ("1500.00", "FAILED", "-", "1000.00")
    assert (cells["winograd"], cells["ratio"], cells["must reach"], cells["reached"]) == (
        "FAILED",
        "1.50x jax",
        "1.4x",
        "yes",
    )
    notes = "\n".join(lines)
    assert "all convolutions 200.00 ms (at most 2.6); fully connected layers at 200% (at least 90%)" in notes
    assert "winograd: FAILED, out of memory" in notes


def test_a_miss_stays_in_the_table(printed):
    options = ("--table", "--case", "alexnet:1", "--threads", "2")
    slow = measurement("tvm", "best", 1, (1.4,))
    _, lines = printed(*network_rows()[:2], slow, options=options, benchmark=peers)
    assert lines[4].endswith("| 1.07x jax | 1.4x | no |")


def test_a_case_without_sense_is_an_error(printed, capsys):
    code, _ = printed(options=("--case", "alexnet"), benchmark=peers)
    assert code == 2


def test_every_peer_and_every_bar_is_there():
    assert {model for model, _ in peers.BARS} <= {*zoo.names()}
    assert {f for f, _ in peers.PEERS} == {f for f, row in registry.FRAMEWORKS.items() if not row.environment}
    backends = {name for name, row in registry.BACKENDS.items() if "cpu" in row.devices}
    assert {r for _, r in peers.PEERS} == {"native", *backends} - {peers.OURS}


def test_layers_are_those_of_the_network_one_by_one():
    specs = {spec.name: spec for spec in layers.site_specs()}
    assert list(specs) == ["conv1", "conv2", "conv3", "conv4", "conv5"]
    assert zoo.shapes(specs["conv2"], 16) == {"input": (16, 64, 27, 27), "conv2": (16, 192, 27, 27)}
    assert [zoo.shapes(spec, 1)["conv"][2] for spec in layers.layer_specs()] == [118, 56, 24, 10, 11]


def test_tables_of_layers_show_the_best_and_the_misses(monkeypatch):
    def group(model, batch, **seconds):
        native = [
            measurement("native", "auto", batch, (s,), model=model, framework=f)
            for f, s in (("pytorch", 3.0), ("channels_last", 2.0))
        ]
        ours = [measurement("tvm", n, batch, (s,) if s else (), "refused", model, "jax") for n, s in seconds.items()]
        return rows.with_peers([*native, *ours], lambda r: r["backend"] == "native")

    groups = [
        group("L1", 16, direct=4.0, gemm=5.0, winograd=1.0, fft=0),
        group("conv1", 16, direct=4.0, gemm=2.0, winograd=0, fft=1.6),
        group("conv2", 16, direct=2.0, gemm=2.0, winograd=1.25, fft=0.5),
    ]
    text = layers.tables(groups, 2)
    assert text.count("FAILED: refused") == 2  # with its reason
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    at = {name: i for i, name in enumerate(cells[0])}
    assert [cells[2][at[n]] for n in ("layer", "direct", "fft", "oneDNN", "best")] == [
        "L1",
        "4000.00",
        "-",
        "2000.00",
        "winograd, 2.00x",
    ]
    at = {name: i for i, name in enumerate(cells[3])}
    assert [[row[at[n]] for n in ("direct", "gemm", "winograd", "fft")] for row in cells[5:]] == [
        ["0.50x (0.97x)", "1.00x", "FAILED", "1.25x"],
        ["1.00x", "1.00x", "1.60x (2x)", "4.00x"],
    ]


def test_the_table_of_errors_has_every_variant_and_none_beyond_its_prediction(monkeypatch):
    """Windows of FFT between the two smallest and the two largest, up to a second each to compile, are taken as right:
    they are code of the same kind, even or odd, and the transform of each size has tests of its own."""
    site, compiled, run = ConvSite(1, 5, (9, 9), 6, (5, 5)), [], errors.output

    def output(lowering, variant, images, weight, cpu):
        if lowering.name == "fft" and 7 < max(variant.geometry.window) < 31 and not variant.geometry.whole:
            window = kernels.Window(site.kernel, site.stride, site.pads, site.dilation)
            return kernels.conv(images, weight, window).astype(np.float32)
        compiled.append(variant.detail)
        return run(lowering, variant, images, weight, cpu)

    monkeypatch.setattr(errors, "output", output)
    rows = list(errors.rows(site, Cpu("llvm -mcpu=x86-64", 2)))
    every = {name: registry.load(LOWERINGS, name).variants(site) for name in defaults(LOWERINGS)}
    assert [(r.lowering, r.detail) for r in rows] == [(name, v.detail) for name, all_ in every.items() for v in all_]
    assert {"6x6 tiles", "7x7 tiles", "31x31 tiles", "32x32 tiles", "10x10 image"} <= {*compiled}
    assert len(compiled) == len(rows) - 23
    assert {r.detail for r in rows} >= {"F(2,5)", "F(4,5)", "8x8 tiles", "10x10 image"}
    assert all(0 < r.measured <= r.predicted for r in rows)
    header, _, *lines = errors.table([rows, rows])
    assert len(lines) == len(rows)
    assert {line.count("|") for line in lines} == {header.count("|")} == {9}


def test_the_table_of_what_is_done_has_every_kind_and_no_silence():
    header, _, *lines = errors.done()
    assert header == f"| convolution | {' | '.join(defaults(LOWERINGS))} |"
    cells = {line.split(" | ")[0][2:]: line[:-2].split(" | ")[1:] for line in lines}
    assert set(cells) == set(errors.KINDS)
    assert all(answer == "yes" or len(answer.split()) > 3 for row in cells.values() for answer in row)
    assert cells["3x3, 5x5, 7x7"] == ["yes"] * len(defaults(LOWERINGS))


def test_a_figure_stands_beside_its_bar():
    row = equivalence.figure("a chain", 2.5, "GB", 2.0)
    assert not row["reached"]
    assert equivalence.line(row).endswith("2.50 GB (under 2.00: no)")


def test_the_models_that_are_checked(tmp_path):
    first, second = equivalence.chain(tmp_path, 3, width=2, size=5)
    assert len(artifact.load(first).conv_sites) == len(artifact.load(second).conv_sites) == 3
    assert first.read_bytes() != second.read_bytes()
    path = equivalence.large(tmp_path, width=16, products=3)
    constants = loading.load(path).constants
    assert [w.shape for w in constants.values()] == [(16, 16)] * 3
    assert len({w.tobytes() for w in constants.values()}) == 3


def test_work_is_measured_in_a_process_of_its_own(tmp_path):
    found = equivalence.measured("normalised", [equivalence.large(tmp_path, width=16, products=2)])
    assert found["seconds"] > 0
    assert 1e7 < found["peak"] < 1e9
    with pytest.raises(XframeError, match="checked of none"):
        equivalence.measured("checked", [tmp_path / "none.onnx", tmp_path / "none.onnx"])


def test_the_parts_of_the_benchmark_of_equivalence(monkeypatch, capsys):
    monkeypatch.setattr(equivalence, "speed", lambda: iter([equivalence.figure("a chain", 1.0, "GB", 2.0)]))
    options = ["equivalence.py", "--robustness", "1", "--executed", "0", "--json"]
    monkeypatch.setattr(sys, "argv", options)
    assert rows.run(equivalence.main) == 0
    figure, *robust = map(json.loads, capsys.readouterr().out.splitlines())
    assert figure["reached"]
    totals = {r["planted"]: r for r in robust if r["kind"] == "all"}
    assert (totals[True]["pairs"], totals[True]["equivalent"]) == (1, 0)
    assert (totals[False]["pairs"], totals[False]["different"]) == (1, 0)
    monkeypatch.setattr(sys, "argv", ["equivalence.py", "sped"])
    with pytest.raises(SystemExit):
        rows.run(equivalence.main)


def test_a_journal_is_gone_on_from(monkeypatch, tmp_path):
    """What stands in it is not asked again, by whatever process it was asked; what another seed or runner said is not
    taken for it."""
    drawn = []
    equal = robustness.pairs.equal
    monkeypatch.setattr(
        robustness.pairs, "equal", lambda seed, *args: drawn.append((seed, args[-1])) or equal(seed, *args)
    )
    asked = robustness.Questions(1, journal=str(tmp_path / "told.jsonl"))
    (second,) = replace(asked, share=(2, 2)).answers(2, planted=False)
    assert (second.number, second.said) == (1, "equivalent")
    known, first = asked.answers(2, planted=False)
    assert (known, first.number) == (second, 0)
    assert {*asked.answers(2, planted=False)} == {first, second}
    assert drawn == [(1, 1), (1, 0)]
    with open(asked.journal, "a") as file:
        file.write('\n{"seed": 1, "runn')  # its process was killed
    assert len([*asked.answers(2, planted=False)]) == 2
    list(replace(asked, seed=2).answers(1, planted=False))
    assert drawn[2:] == [(2, 0)]


def test_what_is_no_journal_is_not_written_to(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("nothing to do with it\n")
    with pytest.raises(XframeError, match=r"notes\.txt is no journal"):
        next(robustness.Questions(journal=str(path)).answers(1))
    assert path.read_text() == "nothing to do with it\n"


@pytest.mark.parametrize("share", ["3/2", "0/2", "half"])
def test_a_share_without_sense_is_an_error(share, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["equivalence.py", "robustness", "--share", share])
    with pytest.raises(SystemExit):
        rows.run(equivalence.main)
    assert "--share" in capsys.readouterr().err


def test_a_lost_and_a_doubled_trial_are_counted():
    assert fleet.tally(["a", "b"], ["b", "a"]) == {"lost": 0, "doubled": 0}
    assert fleet.tally(["a", "b"], ["b", "b"]) == {"lost": 1, "doubled": 1}
    assert fleet.tally(["a"], ["a", "c"]) == {"lost": 0, "doubled": 1}


def test_transfer_is_the_ratio_of_the_geometric_means():
    common = {"lowering": "fft", "kernels": 4, "trials": 24}
    found = [
        {**common, "seed": seed, "with": using, "gain": gain, "tuned": 3, "transferred": 2 if using else 0}
        for seed, using, gain in ((0, True, 1.2), (0, False, 1.0), (1, True, 1.2), (1, False, 1.44))
    ]
    (row,) = transfer.summary(found)
    assert (row["gain_with"], row["gain_without"]) == (pytest.approx(1.2), pytest.approx(1.2))
    assert row["ratio"] == pytest.approx(1.0)
    assert (row["seeds"], row["begun_with_one"], row["kept"]) == (2, 4, 6)
