"""What the benchmark counts, against known numbers; its rows, on made-up times."""

import json
import math
import sys

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks import roofline, rows
from tests.lowering.networks import HOST, conv_network, everywhere, network
from xframe.analysis.roofline import Work
from xframe.lowering import fft, ir, pipeline, straight_line, winograd
from xframe.lowering.graph import LOWERING, prepared
from xframe.lowering.stage import Tile
from xframe.results import Level, Machine, Measurement, Run
from xframe.types import Artifact, Case, ConvSite, Kernel, Outcome, Profile, SiteRecord

LANES = 4


def flop(args, body):
    return roofline.flop(ir.kernel(args, body))


def test_a_product_is_two_flop_a_step_and_a_copy_none():
    m, n, k = 3, 8, 5

    def product(x, y, z):
        with ir.units(1):
            ir.tile_product(
                m, n, LANES, k,
                lambda i, p: x[i, p], lambda p, j: y[p, j], lambda *_: ir.zero(),
                lambda i, j, total: ir.T.buffer_store(z, total, [i, j]),
            )  # fmt: skip

    def copy(x, y):
        with ir.units(7) as (i,):
            ir.copy(y, lambda j: [i, j], lambda j: ir.T.if_then_else(i * 2 + j > 3, x[i, j], ir.zero()), 9, LANES)

    assert flop({"x": (m, k), "y": (k, n), "z": (m, n)}, product) == 2 * m * n * k
    assert flop({"x": (7, 9), "y": (7, 9)}, copy) == 0


def test_loops_that_are_clipped_count_their_longest_and_a_maximum_is_one():
    def body(x, y):
        with ir.units(6) as (i,):
            first, end = ir.clip(i - 1, 3, 1, 0, 6)
            with ir.T.serial(first, end) as k:
                ir.T.buffer_store(y, ir.T.max(y[i], x[i - 1 + k]), [i])

    assert flop({"x": (6,), "y": (6,)}, body) == 6 * 3


@pytest.mark.parametrize(("transform", "adds"), [("B^T d B", 32), ("A^T m A", 24)])
def test_the_transforms_of_f_2_3_have_the_additions_of_the_paper(transform, adds):
    """32 for the data and 24 for the inverse transform of a tile: Lavin and Gray 2016, section 4.1."""
    inverse, _, data = winograd.matrices(2, 3)
    matrix = inverse if transform == "A^T m A" else data
    out = len(matrix)

    def body(x, y):
        with ir.units(1):
            half, scratch = ir.Scratch(16, LANES), ir.Scratch(64, LANES)
            with ir.T.vectorized(0, LANES) as v:
                store, keep = half.lane(v), scratch.lane(v)
                columns = [
                    [store(e) for e in straight_line.product(matrix, [x[k, j, v] for k in range(4)], keep)]
                    for j in range(4)
                ]
                for k in range(out):
                    for j, e in enumerate(straight_line.product(matrix, [column[k] for column in columns], keep)):
                        ir.T.buffer_store(y, e, [k, j, v])

    assert flop({"x": (4, 4, LANES), "y": (out, out, LANES)}, body) == adds * LANES


def test_weights_are_told_from_images():
    """A convolution and a fully connected layer; both read weights and a bias, which may be small enough to be code."""
    site = ConvSite(1, 16, (8, 8), 64, (3, 3), pads=(1, 1, 1, 1))
    g = np.random.default_rng(0)
    model = conv_network(site, *(g.standard_normal(s).astype(np.float32) for s in ((64, 16, 3, 3), (64,))), True)
    nodes = [
        *model.graph.node,
        helper.make_node("Flatten", ["y"], ["f"]),
        helper.make_node("Gemm", ["f", "fw", "fb"], ["z"], transB=1),
    ]
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    constants |= {"fw": np.ones((64, 64 * 64), np.float32), "fb": np.ones(64, np.float32)}
    model = network(nodes, {"x": (1, 16, 8, 8)}, {"z": (1, 64)}, constants)
    mod, parameters, _ = pipeline.forced(model, everywhere("direct", site), HOST)
    found = roofline.works(mod)
    weights = sum(w.weight_bytes for w in found.values())
    assert weights == sum(a.nbytes for a in parameters) > 4 * (64 * 64 * 64 + 64 * 16 * 9)
    (product,) = (w for name, w in found.items() if name == "conv1_direct_product")
    assert site.flop + 2 * 64 * 64 <= product.flop <= 2 * site.flop  # with bias and ReLU; partial tiles count whole
    assert product.image_bytes >= 4 * (16 * 64 + 64 * 64)
    assert found["fc1_product"].flop >= 2 * 64 * 64 * 64


MACHINE = Machine(1e9, (Level("L2", 1e6, 2e9), Level("memory", math.inf, 1e9)))
A, B = ConvSite(1, 8, (9, 9), 8, (3, 3)), ConvSite(1, 8, (7, 7), 8, (3, 3))


def measurement(runner="tvm", peak=None, seconds=(0.004, 0.002, 0.006)):
    """Two equal convolutions that share their kernels, and a layer that is none, in three passes."""

    def one(s):
        times = [("conv1_fft_pad", "pad", A), ("conv1_fft_product", "product", A), ("conv1_fft_pad", "pad", A),
                 ("conv1_fft_product", "product", A), ("fc2_product", "", None)]  # fmt: skip
        kernels = tuple(Kernel(name, i, i + s, site, role) for i, (name, role, site) in enumerate(times))
        return Profile(float(len(times)), kernels)

    artifact = Artifact("net.onnx", "", "m", "jax", "", 17, (), (), (("a", A), ("b", A)))
    case = Case("alexnet", "pytorch", runner, everywhere("fft", A), "cpu", 1, 2, artifact)
    sites = tuple(SiteRecord(A, f"conv{i}", "fft", "fft") for i in (1, 2))
    return Measurement(
        case, Outcome.OK, rounds=((0.01,) * 3,), sites=sites, profiles=tuple(map(one, seconds)), peak_bytes=peak
    )


WORK = {
    "conv1_fft_pad": Work(0, 400_000),
    "conv1_fft_product": Work(1_000_000, 100_000, 4 * (8 * 8 * 9 + 8) + 1000),
    "fc2_product": Work(1_000_000, 0, 2_000_000),
}


def test_a_row_a_kernel_and_their_sums():
    found = roofline.kernel_rows(measurement(), WORK, 2_000_000, MACHINE)
    pad, product, dense = found
    assert [r["calls"] for r in found] == [2, 2, 1]
    assert [r["role"] for r in found] == ["pad", "product", "fc_product"]
    assert [r["median_s"] for r in found] == pytest.approx([0.008, 0.008, 0.004])
    assert [r["limit"] for r in found] == ["L2", "compute", "memory"]
    assert [r["share"] for r in found] == pytest.approx([2 * 0.2e-3 / 8e-3, 2 * 1e-3 / 8e-3, 2e-3 / 4e-3])
    assert (pad["flop"], pad["attainable_flop_per_s"]) == (0, 0)
    assert dense["attainable_flop_per_s"] == pytest.approx(0.5e9)
    assert [r["site"] for r in found] == [A.key, A.key, None]
    other = {**product, "kernel": "conv2_fft_product", "median_s": 0.002, "attainable_s": 0.001, "limit": "memory"}
    sums = {r["role"]: r for r in roofline.by_role([*found, other])}
    assert sums["product"]["share"] == pytest.approx(0.003 / 0.010)
    assert (sums["product"]["calls"], sums["product"]["limit"]) == (4, "compute")
    assert sums["product"]["flop_per_s"] == pytest.approx(4e6 / 0.010)


def test_memory_beyond_the_transformed_weights_is_held_against_the_peer():
    m = measurement(peak=3_002_000)
    kernels = roofline.kernel_rows(m, WORK, 2_000_000, MACHINE)
    row = roofline.memory_row(m, kernels, measurement("ort", peak=2_000_000))
    assert row["transformed_bytes"] == 2 * 1000
    assert row["memory_ratio"] == pytest.approx(1.5)
    assert roofline.memory_row(m, kernels, None)["memory_ratio"] is None


def test_what_it_prints(monkeypatch, capsys):
    made = Run(1, "now", (), {}, (measurement("ort", 10), measurement(peak=4000)))
    monkeypatch.setattr(rows, "compare", lambda *_: made)
    monkeypatch.setattr(roofline, "machine", lambda _: MACHINE)
    monkeypatch.setattr(roofline, "lowered", lambda _: (WORK, 2_000_000))
    monkeypatch.setattr(sys, "argv", ["roofline.py", "--lowering", "fft", "--json"])
    assert rows.run(roofline.main) == 0
    found = [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]
    assert [r["kind"] for r in found] == ["machine", *["kernel"] * 3, *["role"] * 3, "memory"]
    monkeypatch.setattr(sys, "argv", ["roofline.py", "--lowering", "fft"])
    assert rows.run(roofline.main) == 0
    text = capsys.readouterr().out
    assert "threads 2: 1 GFLOP/s; GB/s: 2 from L2, 1 from memory" in text
    assert "| conv1_fft_product | 1 | 2 | fft | product | 2.0 |" in text


def test_the_product_of_complex_numbers_is_eight_operations():
    frequencies, rows, c, o, tile = 5, 8, 32, 48, Tile(4, 1, LANES)
    weights = np.zeros((frequencies, o // tile.columns, c, 2, tile.columns), np.float32)
    stage = fft._product_stage(frequencies, rows, rows, c, o, weights, tile, HOST)
    func = prepared(stage, {LOWERING: "fft"})
    assert roofline.flop(func) == 8 * frequencies * rows * c * o
