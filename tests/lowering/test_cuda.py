"""CUDA schedules without a GPU: each kernel run on the CPU against float64, and looked at by TVM."""

import math

import numpy as np
import pytest
from onnx import helper

from benchmarks import cuda_compile
from tests.cuda_on_cpu import mutation, shim
from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401
from tests.lowering import on_cuda
from tests.lowering.networks import HOST, conv_data, conv_node, everywhere, network, run
from tests.lowering.on_cuda import AMPERE, HOPPER
from tests.lowering.test_convolutions import reference, square
from xframe import registry
from xframe.equivalence.verdict import judge
from xframe.errors import UsageError
from xframe.lowering import pipeline
from xframe.lowering.cuda.dense import slices_of
from xframe.lowering.cuda.target import Gpu
from xframe.lowering.dense import dense_stages
from xframe.lowering.pointwise import pointwise_stage
from xframe.lowering.stage import Epilogue, Tile
from xframe.lowering.variants import choose
from xframe.types import ERROR_BUDGET, ConvSite

LOWERINGS = registry.defaults(registry.LOWERINGS)
# A kernel's text does not grow with its extents, but with the tiles that they choose: the sites below are as small as
# leaves each kind of kernel, and g++ less to read.
#: AlexNet's convolutions with fewer channels; the image only of the third is as large as there.
ALEXNET = [
    square(1, 3, 31, 16, 11, pad=2, stride=4),
    square(2, 8, 15, 24, 5, pad=2),
    square(1, 24, 13, 48, 3, pad=1),
    square(3, 48, 8, 32, 3, pad=1),
    square(2, 30, 6, 32, 3, pad=1),
]
#: Odd in every way: prime channels, no padding on one side, fewer pixels than a tile.
ODD = [
    square(1, 3, 31, 16, 11, pad=2, stride=4),
    ConvSite(2, 7, (9, 6), 5, (3, 3), (1, 1), (0, 1, 2, 1)),
    square(1, 16, 7, 24, 3, pad=1),
]
#: What real networks have beside those, in turn NCHW and NHWC: strided, pointwise, grouped, depthwise, dilated, tall,
#: with padding on some sides, and channels that fill no vector.
REAL = [
    square(2, 8, 11, 24, 7, pad=3, stride=2),
    square(1, 24, 8, 40, 1),
    square(1, 24, 14, 40, 1, stride=2),
    square(1, 24, 9, 24, 3, pad=1, groups=2),
    ConvSite(1, 5, (12, 9), 16, (7, 1), (1, 1), (3, 0, 3, 0)),
    ConvSite(1, 6, (9, 9), 16, (1, 7), (1, 1), (0, 3, 0, 3)),
    ConvSite(2, 20, (7, 5), 17, (3, 3), (1, 1), (0, 1, 2, 1)),
    ConvSite(1, 8, (10, 10), 8, (3, 3), (2, 2), (0, 0, 1, 1)),
    square(1, 40, 14, 40, 3, pad=1, groups=40),
    square(2, 24, 9, 24, 5, pad=2, groups=24),
    ConvSite(1, 20, (14, 14), 20, (3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 20),
    ConvSite(1, 12, (13, 13), 12, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 12),
    square(3, 5, 4, 5, 7, pad=3, groups=5),
    ConvSite(1, 6, (9, 9), 12, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 6),
    ConvSite(1, 6, (12, 12), 24, (5, 5), (1, 1), (4, 3, 1, 0), (2, 2)),
]
#: With loops of one step: one input channel, one pixel, one output channel, and all of them.
LONE = [
    square(1, 1, 9, 16, 3, pad=1),
    square(1, 1, 9, 16, 1),
    square(1, 8, 3, 16, 3),
    square(1, 8, 1, 16, 1),
    square(1, 8, 9, 1, 3, pad=1),
    square(1, 1, 3, 1, 3),
    square(1, 1, 1, 1, 1),
]


def check(device, lowering, sites, order="forward", arch="sm_80", layouts=("NCHW",)):
    """All that the lowering does not refuse, side by side in one graph, judged by the lowering's own bound."""
    low = registry.load(registry.LOWERINGS, lowering)
    sites = [s for s in sites if low.refuses(s, None) is None]
    side_by_side(device, everywhere(lowering, *sites), order, arch, layouts)


def side_by_side(device, plan, order="forward", arch="sm_80", layouts=("NCHW",)):
    """The plan's sites in one graph, each judged by the bound of its lowering; in turn with these layouts."""
    sites = [s for s, _ in plan.lowerings]
    nodes, feeds, made, constants = [], {}, {}, {}
    for i, site in enumerate(sites):
        feeds[f"x{i}"], constants[f"w{i}"], constants[f"b{i}"] = conv_data(site, i)
        image = f"x{i}"
        if layouts[i % len(layouts)] == "NHWC":
            feeds[image], image = feeds[image].transpose(0, 2, 3, 1), f"t{i}"
            nodes.append(helper.make_node("Transpose", [f"x{i}"], [image], perm=[0, 3, 1, 2]))
        nodes += [conv_node(site, image, f"w{i}", f"b{i}", f"c{i}"), helper.make_node("Relu", [f"c{i}"], [f"y{i}"])]
        made[f"y{i}"] = (site.batch, site.out_channels, *site.out_hw)
    model = network(nodes, {k: v.shape for k, v in feeds.items()}, made, constants)
    request = model.SerializeToString(), plan, list(feeds.values()), Gpu.named(arch)
    outputs, records = device.call(on_cuda.outputs, *request, order=order, arch=arch)
    assert [(s.site, s.selected) for s in records] == list(plan.lowerings)
    roundings = {s.site: s.rounding for s in records}
    for i, (site, y) in enumerate(zip(sites, outputs, strict=True)):
        x, w, b = conv_data(site, i)
        verdict = judge([y], reference(site, w, b, True).evaluate([x], roundings))
        assert verdict.ok, f"{site.key}: {verdict.reason}"


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_alexnet(cuda_on_cpu, lowering):  # noqa: F811
    check(cuda_on_cpu, lowering, ALEXNET)


@pytest.mark.parametrize("order", ["reverse", "shuffled"])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_no_order_of_threads_matters(cuda_on_cpu, lowering, order):  # noqa: F811
    check(cuda_on_cpu, lowering, ODD, order, "sm_90")


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sites_of_real_networks(cuda_on_cpu, lowering):  # noqa: F811
    check(cuda_on_cpu, lowering, REAL, layouts=("NCHW", "NHWC"))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_loops_of_one_step(cuda_on_cpu, lowering):  # noqa: F811
    check(cuda_on_cpu, lowering, LONE)


@pytest.mark.parametrize("tile", [(128, 128), (64, 128), (128, 64)], ids=str)
def test_large_tiles(cuda_on_cpu, tile):  # noqa: F811
    """Such as networks have at many images: whole and partly filled."""
    g, site = np.random.default_rng(0), ConvSite(1, 24, (13, 11), 140, (1, 1))
    x, w = g.standard_normal((143, 24), np.float32), g.standard_normal((140, 24, 1, 1), np.float32)
    b = g.standard_normal(140, dtype=np.float32)
    stage = pointwise_stage(site, w, Epilogue(b, None), AMPERE, Tile(*tile, 1))
    (y,) = cuda_on_cpu.run(on_cuda.kernel(stage), [x, *stage.constants])
    np.testing.assert_allclose(y, x.astype(float) @ w[:, :, 0, 0].T + b, rtol=1e-4, atol=1e-4)


def product(lowering, site):
    """The stage of a site that has a template."""
    _, w, b = conv_data(site, 0)
    low = registry.load(registry.LOWERINGS, lowering)
    stages = low.define(choose(low, site, AMPERE, ERROR_BUDGET), w, Epilogue(b, math.inf), "NHWC", AMPERE)
    return next(s for s in stages if s.schedule)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_knobs_only_reorder(cuda_on_cpu, lowering):  # noqa: F811
    """Every knob at its ends computes what the hand-written choice does: one at its first value, the next at its last,
    and the other way round."""
    stage = product(lowering, square(1, 16, 13, 24, 3, pad=1))
    _, by_hand = stage.templated()
    assert len(by_hand.space) == 3 + ("buffers" in by_hand.space)
    g = np.random.default_rng(0)
    x = g.standard_normal([int(n) for n in stage.func.params[0].shape], dtype=np.float32)
    (right,) = cuda_on_cpu.run(on_cuda.kernel(stage), [x, *stage.constants])
    for ends in ((0, -1), (-1, 0)):
        chosen = {name: values[ends[i % 2]] for i, (name, values) in enumerate(by_hand.space.items())}
        (found,) = cuda_on_cpu.run(on_cuda.kernel(stage, chosen), [x, *stage.constants])
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5, err_msg=str(chosen))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_barriers_matter(cuda_on_cpu, lowering):  # noqa: F811
    """Without one the kernel is caught, or no thread comes to what another one touched before."""
    stage = product(lowering, square(1, 48, 5, 24, 3, pad=1))  # more channels than are in shared memory at a time
    x = np.random.default_rng(0).standard_normal([int(n) for n in stage.func.params[0].shape], dtype=np.float32)
    found = mutation.judged(cuda_on_cpu, on_cuda.kernel(stage), [x, *stage.constants], target=AMPERE.tvm, bounds=False)
    assert any(v.noticed for v in found)
    assert [v.mutant.what for v in found if v.survived] == []


@pytest.mark.parametrize(("rows", "inputs"), [(1, 390), (3, 390), (40, 390), (3, 60), (1, 60), (3, 1), (1, 1)])
def test_fully_connected(cuda_on_cpu, rows, inputs):  # noqa: F811
    g = np.random.default_rng(rows)
    x, w = (g.standard_normal(s, dtype=np.float32) for s in ((rows, inputs), (inputs, 77)))
    b = g.standard_normal(77, dtype=np.float32)
    (stage,) = dense_stages(rows, w, b, math.inf, AMPERE)
    (y,) = cuda_on_cpu.run(on_cuda.kernel(stage), [x, *stage.constants])
    np.testing.assert_allclose(y, np.maximum(x.astype(float) @ w + b, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "outputs"), [(1, 1000), (16, 1000), (1, 4096), (3, 77)])
def test_no_bound_is_checked_for_each_slice(rows, outputs):
    """The last kernel of a fully connected layer: a thread asks for all of its terms before it adds them."""
    weight, bias = np.zeros((4096, outputs), np.float32), np.zeros(outputs, np.float32)
    (stage,) = dense_stages(rows, weight, bias, math.inf, HOPPER)
    last = shim.cuda_text(on_cuda.kernel(stage), target=HOPPER.tvm).rpartition("__launch_bounds__")[2]
    assert "for (" in last
    assert [line for line in last.splitlines() if "if (" in line and "threadIdx" in line] == []


def test_slices_fill_the_turns_of_the_multiprocessors():
    """AlexNet's first fully connected layer at many images: 6 turns but for a few blocks, not 4.4; where no number is
    fuller, and where no more can be, the first that is enough."""
    assert HOPPER.multiprocessors == 132
    assert slices_of(9216, 64, HOPPER) == 12
    assert slices_of(4096, 33, HOPPER) == 16
    assert slices_of(4096, 1, HOPPER) == 64
    assert slices_of(60, 1, HOPPER) == 1


def test_what_is_not_a_convolution(cuda_on_cpu):  # noqa: F811
    """Pooling, normalisation, concatenation, element-wise chains, a residual, softmax and reductions, as on the CPU."""
    site = square(2, 6, 11, 10, 3, pad=1)
    x, w, b = conv_data(site, 0)
    nodes = [
        conv_node(site, "x", "w", "b", "c"),
        helper.make_node("LRN", ["c"], ["n"], size=5, alpha=0.1),
        helper.make_node("MaxPool", ["n"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 0]),
        helper.make_node(
            "AveragePool", ["n"], ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 0], count_include_pad=1
        ),
        helper.make_node("Concat", ["m", "a"], ["j"], axis=1),
        helper.make_node("Sigmoid", ["j"], ["s"]),
        helper.make_node("Mul", ["j", "s"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["g"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], axis=1),
        helper.make_node("ReduceMean", ["f"], ["r"], axes=[1], keepdims=0),
    ]
    shapes = {"y": (2, 20 * 6 * 5), "g": (2, 20, 1, 1), "r": (2,), "e": (2, 20, 6, 5)}
    model = network(nodes, {"x": x.shape}, shapes, {"w": w, "b": b})
    plan = everywhere("direct", site)
    right = run(pipeline.build(model, plan, HOST), [x])
    found, _ = cuda_on_cpu.call(on_cuda.outputs, model.SerializeToString(), plan, [x], Gpu.named("sm_80"))
    for name, a, c in zip(shapes, found, right, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_residual_is_added_in_the_last_kernel(cuda_on_cpu):  # noqa: F811
    site = square(1, 6, 7, 6, 3, pad=1)
    x, w, b = conv_data(site, 0)
    right = np.maximum(reference(site, w, b, False).evaluate([x], {})[0].value + x, 0)
    nodes = [
        conv_node(site, "x", "w", "b", "c"),
        helper.make_node("Add", ["c", "x"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    model = network(nodes, {"x": x.shape}, {"y": x.shape}, {"w": w, "b": b})
    for lowering in LOWERINGS:
        plan = everywhere(lowering, site)
        (found,), _ = cuda_on_cpu.call(on_cuda.outputs, model.SerializeToString(), plan, [x], Gpu.named("sm_80"))
        np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4, err_msg=lowering)


@pytest.mark.parametrize(
    ("lowering", "detail", "pixels"),
    [("winograd", "F(2,3)", 16), ("winograd", "F(5,3)", 49), ("fft", "6x6 tiles", 6), ("fft", "9x9 tiles", 9)],
)
def test_a_thread_reads_each_pixel_once(lowering, detail, pixels):
    """A transform whose image is clipped as it is read; of FFT's, a thread has a row of a window."""
    site, low = square(1, 8, 12, 8, 3, pad=1), registry.load(registry.LOWERINGS, lowering)
    _, w, b = conv_data(site, 0)
    variant = next(v for v in low.variants(site) if v.detail == detail)
    first, *_ = low.define(variant, w, Epilogue(b, None), "NHWC", AMPERE)
    assert first.role == "input"
    assert shim.cuda_text(on_cuda.kernel(first)).count("x_ptr[") == pixels


#: AlexNet's convolutions at full size.
FULL = [
    (1, 3, 224, 64, 11, 2, 4),
    (128, 64, 27, 192, 5, 2, 1),
    (16, 192, 13, 384, 3, 1, 1),
]


def full(lowering):
    for n, c, hw, o, k, pad, stride in FULL:
        site = square(n, c, hw, o, k, pad=pad, stride=stride)
        _, w, b = conv_data(ConvSite(1, c, (k, k), o, (k, k)), 0)
        low = registry.load(registry.LOWERINGS, lowering)
        yield from low.define(choose(low, site, HOPPER, ERROR_BUDGET), w, Epilogue(b, math.inf), "NHWC", HOPPER)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_kernels_are_legal(lowering):
    module = on_cuda.module(list(full(lowering)))
    _, illegal = cuda_compile.generated(lambda: shim.compiled(module, HOPPER.tvm))
    assert illegal == []


def test_a_gpu_has_a_name():
    assert Gpu.named("sm_90") == Gpu.named("cuda -arch=sm_90")
    assert Gpu.named("sm_90").text == "cuda -arch=sm_90"
    for text in ("sm_12", "cuda", "llvm -mcpu=znver4", "sm_90 -x"):
        with pytest.raises(UsageError, match="cuda -arch=sm_90"):
            Gpu.named(text)


def test_tiles_follow_the_work():
    """A product of many rows and columns has large tiles; one of few has tiles enough for all multiprocessors."""
    large, small = (HOPPER.tiles(rows, 256)[0] for rows in (1 << 16, 169))
    assert math.prod(large) > math.prod(small)
    assert HOPPER.tiles(1, 4096)[0][0] == 1
    assert all(rows * columns <= 128 * 64 for rows, columns in HOPPER.tiles(1 << 16, 256, parts=2))
