"""Words of runners for algorithms, as seen in their profiles."""

import re

import pytest

from xframe.analysis.algorithms import PATTERNS, lowering, told, unlabelled, used
from xframe.registry import LOWERINGS
from xframe.results import Measurement
from xframe.types import Case, ConvSite, Kernel, Outcome, Plan, Profile

A, B, C = (ConvSite(1, 8, (n, n), 8, (3, 3)) for n in (9, 8, 7))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("brgconv:avx512_core", "direct"),
        ("brgconv_1x1:avx512_core", "direct"),
        ("brg_conv_fwd:avx2", "direct"),
        ("jit:avx512_core", "direct"),
        ("jit_1x1:avx512_core", "direct"),
        ("jit_uni_dw:avx512_core", "direct"),
        ("jit_uni_dw", "direct"),
        ("jit:uni", "direct"),
        ("ref:any", "direct"),
        ("gemm:jit", "gemm"),
        ("x64:gemm:jit", "gemm"),
        ("jit_wino:avx512_core", "winograd"),
        ("jit_wino_4x3:avx512_core", "winograd"),
        ("wino:acl", "winograd"),
        ("indirect_gemm:acl", "direct"),
        ("brgconv_avx512_1x1_f32", "direct"),  # OpenVINO spells them with underscores
        ("jit_avx512_f32", "direct"),
        ("jit_gemm_FP32", "gemm"),
        ("mlas:nchwc", "direct"),
        ("mlas:nchwc_from_nchw", "direct"),
        ("mlas:nchwc_pointwise", "direct"),
        ("mlas:nchwc_depthwise", "direct"),
        ("mlas:im2col_gemm", "gemm"),
        ("mlas:gemm_direct", "gemm"),
        ("MLAS NCHWc direct", "direct"),
        ("MLAS im2col+gemm", "gemm"),
        ("eigen spatial convolution", "gemm"),
        ("eigen convolution", "gemm"),
        ("Eigen contraction", "gemm"),
        ("matmul (xla dot)", "gemm"),
        ("xla naive loops", "direct"),
        ("im2col + gemm", "gemm"),
        ("gemm im2col", "gemm"),
        ("cudnn::cnn::im2col4d_kernel", "gemm_explicit"),
        ("explicit_convolve_sgemm", "gemm_explicit"),
        ("void implicit_convolve_sgemm<float, float, 1024>", "gemm"),  # as xframe's own gemm on a GPU
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32", "gemm_tf32"),
        ("cutlass_tensorop_s1688fprop_optimized_tf32_128x128", "gemm_tf32"),
        ("void precomputed_convolve_sgemm", "gemm"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4", "winograd"),
        ("void fft2d_r2c_32x32<float, false>", "fft"),
        ("cf32gemm_sm80", "fft"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "gemm"),
        ("ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "winograd"),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float>", "direct"),
        ("void cudnn::cnn::conv2d_c1_k1_nchw_hw_packed_kernel<float, float, 3, 3>", "direct"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_stage3", "gemm"),
        ("sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32", "gemm_tf32"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_80_simt_sfprop_optimized_128x64_8x5_nhwc_align4>", "gemm"),
        ("void cgemm_strided_batched_sm35<float2>", "fft"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>", "gemm"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>", None),
        ("void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>", None),
        ("cudnn:implicit_gemm", "gemm"),
        ("cudnn:implicit_precomp_gemm", "gemm"),
        ("cudnn:gemm", "gemm_explicit"),
        ("cudnn:fft_tiling", "fft"),
        ("cudnn:winograd_nonfused", "winograd"),
        ("winograd F(4,3)", "winograd"),
        ("gemm", "gemm"),
        ("FFT", "fft"),
        ("direct", "direct"),
        ("", None),
        ("onednn", None),
        ("ynnpack", None),
        ("something new", None),
    ],
)
def test_what_runners_call_it(words, expected):
    assert lowering(words) == expected


def test_the_table_is_of_our_lowerings_and_every_row_says_why():
    for pattern, name, reason in PATTERNS:
        assert re.compile(pattern)
        assert name in LOWERINGS
        assert len(reason.split()) > 3


def kernel(site, algorithm):
    return Kernel("k", 0.0, 1.0, site, algorithm=algorithm)


def test_most_of_the_time_decides_and_a_plan_before_it():
    kernels = [kernel(A, "gemm:jit"), kernel(A, "jit:avx2"), kernel(A, ""), kernel(B, "?"), kernel(C, "jit_wino"),
               kernel(None, "gemm:jit"), kernel(A, "gemm:jit")]  # fmt: skip
    seconds = [2.0, 3.0, 50.0, 1.0, 1.0, 99.0, 2.0]
    assert used(kernels, seconds) == {A: "gemm", B: None, C: "winograd"}
    assert used(kernels, seconds, Plan("best", ((B, "fft"), (C, "direct")))) == {A: "gemm", B: "fft", C: "direct"}


def test_a_tie_does_not_depend_on_the_order():
    kernels = [kernel(A, "gemm:jit"), kernel(A, "jit:avx2")]
    assert used(kernels, [1.0, 1.0]) == used(kernels[::-1], [1.0, 1.0]) == {A: "direct"}


def test_a_product_between_transforms_is_theirs():
    names = ("winogradForwardData4x4<float, float>", "ampere_sgemm_128x64_nn", "winogradForwardOutput4x4<float>")
    kernels = [*(kernel(A, name) for name in names), kernel(B, "im2col4d_kernel"), kernel(B, names[1])]
    assert used(kernels, [1.0, 8.0, 1.0, 1.0, 8.0]) == {A: "winograd", B: "gemm_explicit"}


def row(runner, plan, *kernels):
    case = Case("m", "pytorch", runner, plan, "cuda", 1, 1)
    return Measurement(case, Outcome.OK, rounds=((1.0,),), profiles=(Profile(1.0, kernels),) * 2)


def test_a_row_tells_the_algorithm_of_each_site_and_the_words_of_its_kernels():
    m = row("ort", Plan(), kernel(A, "winogradForwardData"), kernel(A, "sgemm"), kernel(B, "?"), kernel(C, ""))
    assert told(m) == {A: ("winograd", "winogradForwardData + sgemm"), B: (None, "?"), C: (None, "")}
    assert unlabelled(m) == {A: "winograd"}


def test_what_a_label_names_is_not_told_again_and_what_it_does_not_is():
    kernels = kernel(A, "gemm"), kernel(B, "direct")
    assert unlabelled(row("tvm", Plan("gemm", ((A, "gemm"), (B, "direct"))), *kernels)) == {B: "direct"}
    assert unlabelled(row("cudnn", Plan("auto"), *kernels)) == {A: "gemm", B: "direct"}
    other = row("cudnn", Plan("graph_plain", ((A, "graph_plain"),)), kernel(A, "engine 3, implicit_gemm"))
    assert (unlabelled(other), told(other)) == ({}, {A: ("gemm", "engine 3, implicit_gemm")})
