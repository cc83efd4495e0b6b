"""Which lowering a convolution was, told from its runner's own words.

The lowerings are those that xframe can force: what counts is the computation, not the code. A column matrix makes
``gemm``, be it written as a whole, panel by panel, or on a GPU tile by tile in shared memory, as xframe's own does
there; one that a GPU writes to its memory first is ``gemm_explicit``, and products of TF32 are ``gemm_tf32``.
Transformed tiles around products make ``winograd`` or ``fft``; without any of these it is ``direct``, whatever the
kernel is called.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from xframe.analysis.labels import PLANNED
from xframe.analysis.shares import shares
from xframe.registry import LOWERINGS
from xframe.results import Measurement
from xframe.types import ConvSite, Kernel, Plan

#: (pattern, lowering, why it is that one); the first that is found anywhere in the words, in any case, decides.
PATTERNS: tuple[tuple[str, str, str], ...] = (
    (r"wino", "winograd", "every library calls it so: jit_wino, wino:acl, cuDNN's winograd kernels, F(4,3)"),
    (r"fft|cgemm|cf32", "fft", "transforms, or the products of complex numbers between them (cuDNN's names)"),
    (r"indirect[_ ]?(gemm|conv)", "direct", "pixels are read through a table of pointers, no matrix is written"),
    (r"(implicit|fprop)\w*tf32", "gemm_tf32", "cuDNN's implicit GEMM on tensor cores, which drop bits of float32"),
    (
        r"implicit|xmma_fprop|cutlass\w*fprop|scudnn|precomputed_convolve", "gemm",
        "cuDNN's implicit GEMM has tiles of the column matrix in shared memory: volta_scudnn_128x64_relu_*, too",
    ),
    (r"explicit|im2col4d|cudnn:gemm", "gemm_explicit", "cuDNN's explicit GEMM writes the column matrix beforehand"),
    (r"brg_?conv|brgemm", "direct", "oneDNN: batch-reduced products of blocks of the image itself"),
    (r"im2col", "gemm", "the column matrix is in the name"),
    (r"spatialconv|eigen", "gemm", "Eigen packs patches into panels, which it contracts: im2col panel by panel"),
    (r"gem[mv]|matmul", "gemm", "oneDNN's gemm:jit writes columns; of a 1x1 convolution the image is the matrix"),
    (r"depthwise|_dw\b|_dw[:_]|_c1_k1_", "direct", "one channel at a time has nothing to multiply matrices of"),
    (r"direct|nchwc|pointwise", "direct", "in the name; MLAS: blocks of channels, no column matrix"),
    (r"\bjit(_[a-z0-9]+)*(:|\b)", "direct", "oneDNN's generated kernels other than those above walk the image"),
    (r"\b(ref|simple|naive)(:|\b)", "direct", "loops over the definition"),
)  # fmt: skip


#: Lowerings whose products may be a library's.
_AROUND_PRODUCTS = ("winograd", "fft", "gemm_explicit")


def lowering(words: str) -> str | None:
    """The lowering that a runner's ``words`` for an algorithm name; None where they are empty or unknown."""
    text = words.lower()
    if text in LOWERINGS:
        return text
    return next((name for pattern, name, _ in PATTERNS if re.search(pattern, text)), None)


def used(kernels: Sequence[Kernel], seconds: Sequence[float], plan: Plan | None = None) -> dict[ConvSite, str | None]:
    """The lowering at each convolution site of a pass: that of the plan, else that of the kernels.

    Where the kernels of a site differ in it, the one that most of their ``seconds`` went to; a product of matrices
    between transforms, or after a column matrix was written, is part of their algorithm, though its kernel has any
    product's name.
    """
    planned = {site: lowering(name) for site, name in plan.lowerings} if plan else {}
    spent: dict[ConvSite, Counter[str]] = {}
    for kernel, taken in zip(kernels, seconds, strict=True):
        if kernel.site is not None:
            known = spent.setdefault(kernel.site, Counter())
            if (name := lowering(kernel.algorithm)) is not None:
                known[name] += taken  # type: ignore[assignment]
    for known in spent.values():
        if around := _most(Counter({name: known[name] for name in _AROUND_PRODUCTS if name in known})):
            known[around] += known.pop("gemm", 0)
    return {site: planned.get(site) or _most(known) for site, known in spent.items()}


def told(measurement: Measurement) -> dict[ConvSite, tuple[str | None, str]]:
    """Of each convolution that the passes of a row show: its lowering, None where nobody can tell, and the words of its
    kernels for what they are, empty where they have none."""
    case, passes = measurement.case, measurement.profiles
    kernels = [k for p in passes for k in p.kernels]
    seconds = [s for p in passes for s in shares(p.kernels).tolist()]
    words: dict[ConvSite, dict[str, None]] = {}
    for kernel in kernels:
        if kernel.site is not None and kernel.algorithm:
            words.setdefault(kernel.site, {})[kernel.algorithm] = None
    found = used(kernels, seconds, case.plan if case.runner == PLANNED else None)
    return {site: (name, " + ".join(words.get(site, ()))) for site, name in found.items()}


def unlabelled(measurement: Measurement) -> dict[ConvSite, str]:
    """The lowerings that a row's label does not name: of a plan that names several, or of a runner that picks."""
    plan = measurement.case.plan
    if plan.lowerings:
        return {site: name for site, name in plan.lowerings if name != plan.label}
    return {site: name for site, (name, _) in told(measurement).items() if name}


def _most(spent: Counter[str]) -> str | None:
    return min(spent, key=lambda name: (-spent[name], name), default=None)
