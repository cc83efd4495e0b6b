"""A kernel of each kind that networks are made of, at sites that are odd in every way, and what becomes of its mutants.

python -m tests.cuda_on_cpu.real                # every mutant of every kernel, some minutes
python -m tests.cuda_on_cpu.real direct fc      # of those whose names begin so
"""

import functools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from tvm import tirx

from tests.cuda_on_cpu import mutation, shim
from tests.lowering import on_cuda
from tests.lowering.networks import conv_data
from tests.lowering.on_cuda import AMPERE
from xframe import registry
from xframe.lowering.dense import dense_stages
from xframe.lowering.stage import Epilogue, Stage
from xframe.lowering.variants import Variant, choose
from xframe.lowering.windows import channels_stage, lrn_stage, pool_stage
from xframe.types import ERROR_BUDGET, ConvSite

Kernel = tuple[tirx.PrimFunc, list[np.ndarray]]

#: Prime extents and channels: no tile is full. AlexNet's first kernel and stride; its second; its others.
STRIDED = ConvSite(1, 3, (31, 27), 9, (11, 11), (4, 4), (2, 2, 2, 2))
WIDE = ConvSite(1, 6, (13, 11), 10, (5, 5), (1, 1), (2, 2, 2, 2))
USUAL = ConvSite(1, 7, (11, 9), 9, (3, 3), (1, 1), (1, 1, 1, 1))
#: Of ResNet-50: a short cut, at stride 2.
POINTWISE = ConvSite(1, 13, (9, 7), 11, (1, 1), (2, 2))
DEPTHWISE = ConvSite(1, 5, (9, 7), 5, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 5)


def convolution(lowering: str, site: ConvSite, detail: str | None = None) -> list[Stage]:
    _, w, b = conv_data(site, 0)
    found = registry.load(registry.LOWERINGS, lowering)
    known: dict[str, Variant] = {v.detail: v for v in found.variants(site)}
    variant = known[detail] if detail else choose(found, site, AMPERE, ERROR_BUDGET)
    return found.define(variant, w, Epilogue(b, math.inf), "NHWC", AMPERE)


def _dense() -> list[Stage]:
    g = np.random.default_rng(0)
    weight, bias = (g.standard_normal(s, dtype=np.float32) for s in ((390, 77), (77,)))
    return dense_stages(3, weight, bias, math.inf, AMPERE)


#: Name -> the stages of which each kernel is.
KINDS: dict[str, Callable[[], list[Stage]]] = {
    "direct 3x3": lambda: convolution("direct", USUAL),
    "direct 11x11 stride 4": lambda: convolution("direct", STRIDED),
    "direct depthwise": lambda: convolution("direct", DEPTHWISE),
    "gemm implicit": lambda: convolution("gemm", USUAL, "implicit"),
    "gemm im2col": lambda: convolution("gemm", USUAL, "im2col"),
    "gemm 1x1 stride 2": lambda: convolution("gemm", POINTWISE),
    "winograd 3x3": lambda: convolution("winograd", USUAL),
    "winograd 11x11 stride 4": lambda: convolution("winograd", STRIDED),
    "fft 5x5": lambda: convolution("fft", WIDE),
    "fft 11x11 stride 4": lambda: convolution("fft", STRIDED),
    "fc": _dense,
    "pooling max": lambda: [
        pool_stage("max", (1, 13, 11, 5), (6, 5), (3, 3), (2, 2), (0, 0, 0, 0), (1, 1), False, AMPERE)
    ],
    "pooling average": lambda: [
        pool_stage("average", (1, 11, 13, 5), (6, 7), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), True, AMPERE)
    ],
    "lrn": lambda: [lrn_stage((1, 5, 7, 9), 5, 1.0, 0.75, 1.0, AMPERE)],
    "concatenation": lambda: [channels_stage((1, 5, 7), [3, 7], AMPERE)],
}


def kernels(kind: str) -> dict[str, Callable[[], Kernel]]:
    """The kernels of a kind, by kind and role, with inputs of N(0, 1) and their own weights."""
    return {f"{kind}: {stage.role}": functools.partial(made, stage) for stage in KINDS[kind]()}


def made(stage: Stage, chosen: dict[str, int] | None = None) -> Kernel:
    """The stage's kernel with ``chosen`` knobs, and inputs."""
    g, func = np.random.default_rng(0), on_cuda.kernel(stage, chosen)
    given = func.params[: len(func.params) - 1 - len(stage.constants)]
    images = [g.standard_normal([int(n) for n in p.shape], dtype=np.float32) for p in given]
    return func, [*images, *stage.constants]


def main(names: list[str]) -> int:
    """Prints a row a kernel, each mutant that survived, and all together. 1 if there is one."""
    total: Counter[str] = Counter()
    wanted = tuple(names) or ("",)
    for kind in (k for k in KINDS if k.startswith(wanted) or any(n.startswith(k) for n in wanted)):
        for name, make in kernels(kind).items():
            if not name.startswith(wanted):
                continue
            func, inputs = make()
            started = time.perf_counter()
            found = mutation.judged(shim.default(), func, inputs, target=AMPERE.tvm)
            counts = Counter(v.how for v in found)
            noticed, proved = sum(v.noticed for v in found), sum(counts[p] for p in mutation.PROOFS)
            print(f"| {name} | {len(found)} | {noticed} | {proved} | {counts[mutation.SURVIVED]} |", flush=True)
            print(f"{time.perf_counter() - started:.1f} s: {dict(counts)}", file=sys.stderr)
            for verdict in (v for v in found if v.survived):
                print(f"survived: {verdict.mutant.what}", file=sys.stderr)
            total += counts
    print(f"all {total.total()}: {', '.join(f'{n} {how}' for how, n in total.most_common())}")
    return int(bool(total[mutation.SURVIVED]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
