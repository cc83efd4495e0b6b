"""GEMM with products of TF32 and float16: right within the bound of what they round to, and of nothing coarser."""

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import cuda_compile, ptxas
from tests.cuda_on_cpu import shim
from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401
from tests.lowering import on_cuda
from tests.lowering.networks import conv_data, conv_network, everywhere
from tests.lowering.on_cuda import AMPERE, HOPPER
from tests.lowering.test_convolutions import reference, square
from tests.lowering.test_cuda import FULL, side_by_side
from xframe import planning, registry
from xframe.environment import cpu_device
from xframe.equivalence.verdict import judge
from xframe.errors import Unsupported
from xframe.lowering import pipeline
from xframe.lowering.cuda.target import Gpu
from xframe.lowering.stage import Epilogue
from xframe.lowering.variants import choose, refusal
from xframe.types import ERROR_BUDGET, NARROW_BUDGET, ConvSite, Device, Plan, Rounding

NARROW = {name: registry.load(registry.LOWERINGS, name) for name in ("gemm_tf32", "gemm_fp16")}
SITE = square(1, 16, 7, 24, 3, pad=1)
#: A reduction of no whole step; prime channels, no padding on one side; groups; dilation; a 1x1 with a stride; more
#: outputs than a tile, from fewer rows than a fragment has; several images.
SHAPES = [
    square(1, 3, 23, 16, 11, pad=2, stride=4),
    ConvSite(2, 7, (9, 6), 5, (3, 3), (1, 1), (0, 1, 2, 1)),
    square(1, 32, 5, 32, 3, pad=1, groups=2),
    square(1, 16, 6, 16, 3, pad=2, dilation=2),
    square(1, 24, 8, 40, 1, stride=2),
    ConvSite(1, 3, (4, 5), 65, (1, 3)),
    square(3, 48, 5, 32, 3, pad=1),
]


def gpu(arch):
    return Device(arch, "cuda", arch, arch, 0)


def stage(lowering, site, weight, bias, relu=None, target=AMPERE):
    """The kernel's stage; its image is NHWC and padded already."""
    low = NARROW[lowering]
    return low.define(choose(low, site, target, NARROW_BUDGET), weight, Epilogue(bias, relu), "NHWC", target)[-1]


def full(lowering, n, c, hw, o, k, pad, stride, target):
    site = square(n, c, hw, o, k, pad=pad, stride=stride)
    _, w, b = conv_data(ConvSite(1, c, (k, k), o, (k, k)), 0)
    return stage(lowering, site, w, b, math.inf, target)


def output(device, lowering, site, x, w, b, change=("", ""), chosen=None, **how):
    """What the kernel makes of an image; ``change``: what stands in its text, and what in its place, once."""
    made = stage(lowering, site, w, b)
    func = on_cuda.kernel(made, chosen)
    (top, left, bottom, right), shape = site.pads, [int(n) for n in func.params[0].shape]
    image = np.pad(x.transpose(0, 2, 3, 1), ((0, 0), (top, bottom), (left, right), (0, 0)))
    image = image[:, : shape[1], : shape[2] // site.in_channels].reshape(shape)
    before = shim.cuda_text(func, target=AMPERE.tvm)  # made here, where the compiler's own callback is
    text = before.replace(*change, 1)
    assert (text != before) == any(change)
    (y,) = device.run(func, [image, *made.constants], text=text, **how)
    return y.reshape(site.batch, *site.out_hw, site.out_channels).transpose(0, 3, 1, 2)


def verdict(lowering, site, x, w, b, y, rounding=None):
    rounding = rounding or NARROW[lowering].variants(site)[0].rounding
    return judge([y], reference(site, w, b, False).evaluate([x], {site: rounding}))


def test_in_a_network(cuda_on_cpu):  # noqa: F811
    """Padded, proven to be what the plan says, and each judged by its own bound."""
    lowerings = tuple((square(1, 16, 5 + i, 24, 3, pad=1), name) for i, name in enumerate(NARROW))
    side_by_side(cuda_on_cpu, Plan("mine", lowerings, error_budget=NARROW_BUDGET))


@pytest.mark.parametrize("lowering", NARROW)
@pytest.mark.parametrize("site", SHAPES, ids=lambda s: s.key)
def test_odd_shapes(cuda_on_cpu, lowering, site):  # noqa: F811
    x, w, b = conv_data(site, 0)
    order = "shuffled" if site is SHAPES[-1] else "reverse"
    found = verdict(lowering, site, x, w, b, output(cuda_on_cpu, lowering, site, x, w, b, order=order))
    assert found.ok, found.reason


@pytest.mark.parametrize("lowering", NARROW)
def test_products_are_of_few_bits_and_what_is_wrong_is_caught(cuda_on_cpu, lowering):  # noqa: F811
    """The bound holds what tensor cores do, and neither fewer bits nor a product that is left out; that of float32
    does not hold it, so the products are what the label says."""
    x, w, b = conv_data(SITE, 0)
    y = output(cuda_on_cpu, lowering, SITE, x, w, b)
    right = verdict(lowering, SITE, x, w, b, y)
    assert right.ok
    assert 0.1 < right.ratio < 0.9
    assert not verdict(lowering, SITE, x, w, b, y, Rounding(SITE.reduction)).ok

    def coarse(a, bits):  # as many bits of the significand are left
        mantissa, exponent = np.frexp(a)
        return np.ldexp(np.round(mantissa * 2**bits), exponent - bits).astype(np.float32)

    def exact(image, weight):
        return reference(SITE, weight, b, False).evaluate([image], {})[0].value.astype(np.float32)

    assert verdict(lowering, SITE, x, w, b, exact(coarse(x, 11), coarse(w, 11))).ok
    assert not verdict(lowering, SITE, x, w, b, exact(coarse(x, 8), coarse(w, 8))).ok
    without = w.copy()
    without[3, 5, 1, 1] = 0
    assert not verdict(lowering, SITE, x, w, b, exact(x, without)).ok
    multiply = "nvcuda::wmma::mma_sync(product_wmma_accumulator_ptr[1],"
    broken = output(cuda_on_cpu, lowering, SITE, x, w, b, (multiply, f"if (0) {multiply}"))
    assert not verdict(lowering, SITE, x, w, b, broken).ok


@pytest.mark.parametrize("lowering", NARROW)
def test_operands_that_round_alike(cuda_on_cpu, lowering):  # noqa: F811
    """All equal, and in the middle between two numbers of the type: every product errs by the same."""
    site = square(1, 32, 6, 8, 3)
    x = np.full((1, 32, 6, 6), 1 + 2.0**-11, dtype=np.float32)
    w = np.full((8, 32, 3, 3), 1 + 2.0**-11, dtype=np.float32)
    b = np.zeros(8, dtype=np.float32)
    y = output(cuda_on_cpu, lowering, site, x, w, b)
    assert verdict(lowering, site, x, w, b, y).ok
    error = 0 if lowering == "gemm_fp16" else 2.0**-9  # to even, and away from zero
    np.testing.assert_allclose(y / 288 - 1, error, atol=1e-5)


def test_the_range_of_float16(cuda_on_cpu):  # noqa: F811
    """Too large a number is infinite, which does not pass; one too small loses bits, which the bound knows."""
    x, w, b = conv_data(SITE, 0)
    for scale, fits in ((1e-6, True), (1e6, False)):
        scaled = (x * scale).astype(np.float32)
        y = output(cuda_on_cpu, "gemm_fp16", SITE, scaled, w, 0 * b)
        assert np.isfinite(y).all() == fits
        assert verdict("gemm_fp16", SITE, scaled, w, 0 * b, y).ok == fits
        if fits:
            bound = Rounding(SITE.reduction, operands=2.0**-11)
            assert not verdict("gemm_fp16", SITE, scaled, w, 0 * b, y, bound).ok
        assert verdict("gemm_tf32", SITE, scaled, w, 0 * b, output(cuda_on_cpu, "gemm_tf32", SITE, scaled, w, 0 * b)).ok


@pytest.mark.parametrize("lowering", NARROW)
def test_what_is_no_number_stays_none(cuda_on_cpu, lowering):  # noqa: F811
    """The NaN that GPUs make has all bits set: rounding must not carry into its sign."""
    site = square(1, 16, 1, 8, 1)
    x, w, b = conv_data(site, 0)
    x[0, 3] = np.uint32(0x7FFFFFFF).view(np.float32)
    assert np.isnan(output(cuda_on_cpu, lowering, site, x, w, b)).all()


@pytest.mark.parametrize("lowering", NARROW)
def test_knobs_only_reorder(cuda_on_cpu, lowering):  # noqa: F811
    site = square(1, 32, 4, 64, 3, pad=1)
    x, w, b = conv_data(site, 0)
    _, by_hand = stage(lowering, site, w, b).templated()
    assert set(by_hand.space) == {"row_warps", "column_warps", "depth"}
    right = output(cuda_on_cpu, lowering, site, x, w, b)
    for end in (0, -1):
        chosen = {name: values[end] for name, values in by_hand.space.items()}
        found = output(cuda_on_cpu, lowering, site, x, w, b, chosen=chosen)
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5, err_msg=str(chosen))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_are_legal_and_compile_without_spills(arch):
    target = Gpu.named(arch)
    stages = [full(name, *numbers, target) for name in NARROW for numbers in FULL]
    text, illegal = cuda_compile.generated(lambda: shim.compiled(on_cuda.module(stages), target.tvm))
    assert illegal == []
    bodies = re.findall(r'extern "C" __global__ void [^;{]*? (\w+)\([^;{]*\{(.*?)\n\}', text, re.DOTALL)
    of_tf32 = {name for name, body in bodies if "precision::tf32" in body}
    assert len(bodies) == len(stages)
    assert of_tf32 == {f"{s.role}{i}_kernel" for i, s in enumerate(stages) if i < len(FULL)}
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not on the PATH")
    kernels = ptxas.compiled(text, arch)
    assert len(kernels) == len(stages)
    assert [k for k in kernels if k.spills or k.shared > HOPPER.shared] == []


def test_where_there_are_no_such_tensor_cores():
    words = {
        (name, arch): registry.load(registry.LOWERINGS, name).refuses(SITE, gpu(arch) if arch else cpu_device())
        for name in NARROW
        for arch in ("", "sm_70", "sm_75", "sm_80", "sm_90")
    }
    assert all("this is a CPU" in words[name, ""] for name in NARROW)
    assert "TF32 from sm_80 on, and this is sm_75" in words["gemm_tf32", "sm_75"]
    assert "float16 from sm_75 on, and this is sm_70" in words["gemm_fp16", "sm_70"]
    able = {key for key, why in words.items() if why is None}
    assert able == {("gemm_fp16", "sm_75"), *((n, a) for n in NARROW for a in ("sm_80", "sm_90"))}
    with pytest.raises(Unsupported, match=r"tensor cores of a GPU, and this is a CPU.*--fallback"):
        planning.plan("gemm_tf32", [SITE], cpu_device())
    _, w, b = conv_data(SITE, 0)
    with pytest.raises(Unsupported, match="from sm_80 on, and this is sm_75"):  # a plan that nobody asked before
        pipeline.forced(conv_network(SITE, w, b, False), everywhere("gemm_tf32", SITE), Gpu.named("sm_75"))


@pytest.mark.parametrize("lowering", NARROW)
def test_they_are_used_where_they_are_asked_for_and_nowhere_else(lowering, tmp_path):
    assert lowering not in registry.defaults(registry.LOWERINGS)
    device, low = gpu("sm_90"), NARROW[lowering]
    why = refusal(low, SITE, device, ERROR_BUDGET)  # that of best, and of plans of the others
    assert "error budget is 0.002" in why
    assert planning.plan(lowering, [SITE], device)[SITE] == lowering
    assert planning.plan(lowering, [SITE], device).error_budget == NARROW_BUDGET
    with pytest.raises(Unsupported, match=r"may err by .*e-03 of the output's RMS, and the error budget is 0.001"):
        planning.plan(lowering, [SITE], device, error_budget=1e-3)
    assert planning.plan("gemm", [SITE], device).error_budget == ERROR_BUDGET
    path = tmp_path / "mine.json"
    path.write_text(f'{{"label": "mine", "lowerings": {{"{SITE.key}": "{lowering}"}}}}')
    assert planning.plan(str(path), [SITE], device).error_budget == NARROW_BUDGET


def test_the_prediction_is_above_the_budget_of_float32_at_every_size():
    for channels in (1, 64, 6000):
        site = replace(SITE, in_channels=channels)
        for low in NARROW.values():
            (variant,) = low.variants(site)
            assert ERROR_BUDGET < variant.error <= NARROW_BUDGET
            assert variant.error > 7 * 2.0**-11
    assert math.isclose(NARROW["gemm_tf32"].variants(SITE)[0].error, 7.7 * 2.0**-11, rel_tol=0.02)
