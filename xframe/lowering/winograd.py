"""Winograd convolution F(m, r): transformed tiles, batched products over the channels, inverse transform.

Y = A^T [(G g G^T) * (B^T d B)] A for each m x m tile of outputs (Lavin and Gray 2016, doi 10.1109/CVPR.2016.435), with
the matrices of Toom and Cook's algorithm, made from their interpolation points in exact arithmetic. The weight
transform is a constant: done here, in float64.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from tvm import te

from xframe.lowering import fused, ir, prefetch
from xframe.lowering.cuda.product import REINDEXED, scheduled
from xframe.lowering.ir import T
from xframe.lowering.padding import Window
from xframe.lowering.space_to_depth import one_tap, unit, unit_weight
from xframe.lowering.stage import (
    SKEW,
    Epilogue,
    Stage,
    Tile,
    clear_product,
    packed,
    pad_to,
    shared_rows,
    tile_product,
    transformed,
)
from xframe.lowering.straight_line import product as multiply
from xframe.lowering.target import Gpu, Target
from xframe.lowering.variants import Variant, transform_flop
from xframe.types import ConvSite, Device, Rounding

#: Finite interpolation points in the order of use; the last point is at infinity. Pairs of opposite points let the
#: transforms share sums; beyond these seven the error grows too fast for float32.
POINTS = tuple(Fraction(p) for p in ("0", "1", "-1", "2", "-2", "1/2", "-1/2"))
LARGEST = len(POINTS) + 1  # m + r - 1


@lru_cache
def matrices(m: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A^T, G, B^T) of F(m, r), float64 of shapes (m, a), (a, r), (a, a) with a = m + r - 1.

    For r = 1 all three are trivial: one tap has nothing to transform.
    """
    if r == 1:
        return np.eye(m), np.ones((m, 1)), np.eye(m)
    a = m + r - 1
    points = POINTS[: a - 1]

    def monomials(n):
        rows = [[p**j for j in range(n)] for p in points]
        return [*rows, [Fraction(int(j == n - 1)) for j in range(n)]]

    def polynomial(roots):  # coefficients of prod (x - root), lowest power first
        c = [Fraction(1)]
        for root in roots:
            c = [(c[i - 1] if i else 0) - root * (c[i] if i < len(c) else 0) for i in range(len(c) + 1)]
        return c

    g, b = monomials(r), []
    for i, p in enumerate(points):
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        g[i] = [v / scale for v in g[i]]
        b.append([*polynomial(others), Fraction(0)])
    b.append(polynomial(points))
    at = np.array(monomials(m), dtype=float).T
    return at, np.array(g, dtype=float), np.array(b, dtype=float)


@lru_cache
def growth(m: int, r: int) -> float:
    """Factor by which F(m, r) in one dimension enlarges the rounding error of a plain sum of r products.

    Independent errors relative to each of the a products, weights and inputs of equal variance: the variance of the
    worst output is sum_i A_i^2 |G_i|^2 |B_i|^2, where the plain sum has r.
    """
    at, g, bt = matrices(m, r)
    return float(np.sqrt((at**2 @ ((g**2).sum(1) * (bt**2).sum(1))).max() / r))


@dataclass(frozen=True)
class _Geometry:
    """Tiles of one site: outputs a tile ``m``, window ``a``, and tiles in each direction."""

    m: tuple[int, ...]
    r: tuple[int, ...]
    a: tuple[int, ...]
    tiles: tuple[int, ...]

    @staticmethod
    def of(site: ConvSite, m: int) -> "_Geometry":
        ms = tuple(min(m, o) for o in site.out_hw)
        a = tuple(x + r - 1 for x, r in zip(ms, site.kernel, strict=True))
        tiles = tuple(-(-o // x) for o, x in zip(site.out_hw, ms, strict=True))
        return _Geometry(ms, site.kernel, a, tiles)


class Winograd:
    """Undilated, ungrouped, kernels of 2 to 7 taps a side (one side may have 1); strides through space to depth."""

    name = "winograd"
    parts = frozenset({"input"})

    def refuses(self, site: ConvSite, device: Device) -> str | None:
        if site.dilation != (1, 1):
            return f"dilation {site.dilation[0]}x{site.dilation[1]}: the transforms need neighbouring taps"
        if site.groups != 1:
            return f"{site.groups} groups: its products run over all input channels"
        kernel = unit(site).kernel
        if kernel == (1, 1):
            return one_tap(site)
        if max(kernel) > LARGEST - 1:
            return f"a {kernel[0]}x{kernel[1]} kernel needs tiles over {LARGEST} wide, too inexact in float32"
        return None

    def variants(self, given: ConvSite) -> list[Variant]:
        """One for each tile size.

        Sums run over channels; both transforms add their few terms; the transforms enlarge what is there.
        """
        found, site = [], unit(given)
        for m in range(2, LARGEST - max(site.kernel) + 2):
            t = _Geometry.of(site, m)
            (mh, mw), (rh, rw) = t.m, t.r
            detail = f"F({mh},{rh})" if (mh, rh) == (mw, rw) else f"F({mh}x{mw},{rh}x{rw})"
            rounding = Rounding(site.in_channels + 2 * sum(t.a), growth(mh, rh) * growth(mw, rw), (mh - 1, mw - 1))
            frequencies, tiles = t.a[0] * t.a[1], site.batch * t.tiles[0] * t.tiles[1]
            c, o = site.in_channels, site.out_channels
            flop = 2 * frequencies * tiles * c * o + transform_flop(t.a) * tiles * (c + o)
            moved = 2 * 4 * frequencies * tiles * (c + o)
            found.append(Variant(given, rounding, detail, flop, 4 * frequencies * c * o, moved, t))
        return found

    def define(self, variant: Variant, weight: np.ndarray, epilogue: Epilogue, layout: str, cpu: Target):
        """See ``xframe.protocols.Lowering``."""
        given, t = variant.site, variant.geometry
        site, weight = unit(given), unit_weight(given, weight)
        c, o = pad_to(site.in_channels, cpu.lanes), pad_to(site.out_channels, cpu.lanes)
        frequencies, points = t.a[0] * t.a[1], site.batch * t.tiles[0] * t.tiles[1]
        height, width = ((n - 1) * m + a for n, m, a in zip(t.tiles, t.m, t.a, strict=True))
        tiles = Tile.ranked(points, o, cpu, batch=frequencies)
        tile = variant.tile or tiles[0]
        rows, columns = pad_to(points, tile.rows), pad_to(o, tile.columns)

        spectrum = transformed(np.kron(matrices(t.m[0], t.r[0])[1], matrices(t.m[1], t.r[1])[1]), weight)
        spectrum = np.pad(spectrum, ((0, 0), (0, c - site.in_channels), (0, 0)))
        weights = packed(spectrum, columns, tile.columns)
        window = Window.of(given, height, width, layout, cpu)
        groups = fused.in_groups(weights, points, c, columns, cpu)
        if fused.pays(weights, points, c, columns, cpu):
            stages = [window.stage, _fused_stage(site, t, window, weights, tile, epilogue, cpu)]
        elif groups > 1:
            stages = [window.stage, _fused_stage(site, t, window, weights, tile, epilogue, cpu, groups)]
        else:
            stages = [
                window.stage,
                _input_stage(site, t, window, rows, cpu),
                replace(_product_stage(frequencies, points, rows, c, o, weights, tile, cpu), tiles=tiles),
                _output_stage(site, t, rows, o, epilogue, cpu),
            ]
        return [s for s in stages if s]


def _transform_input(t, window, x, v, place, slot, block, cpu):
    """V at ``slot`` = B^T d B of the tile at ``place`` (image, row and column of tiles), one vector of channels.

    A pixel may be clipped, which on a GPU is a branch wherever it is read: so it is read once. A CPU has no registers
    for that many vectors.
    """
    bh, bw = matrices(t.m[0], t.r[0])[2], matrices(t.m[1], t.r[1])[2]
    (ah, aw), (i, ty, tx), lanes = t.a, place, cpu.lanes
    half, scratch = ir.Scratch(ah * aw, lanes), ir.Scratch(4 * ah * aw, lanes)
    near = ir.Scratch(ah * aw, lanes) if isinstance(cpu, Gpu) else None
    with T.vectorized(0, lanes) as lane:
        keep, store = scratch.lane(lane), half.lane(lane)
        read = near.lane(lane) if near else lambda pixel: pixel
        channel = block * lanes + lane
        columns = []
        for j in range(aw):
            pixels = [read(window.pixel(x, i, ty * t.m[0] + k, tx * t.m[1] + j, channel)) for k in range(ah)]
            columns.append([store(e) for e in multiply(bh, pixels, keep)])
        for k in range(ah):
            for j, e in enumerate(multiply(bw, [column[k] for column in columns], keep)):
                T.buffer_store(v, e, [k * aw + j, slot * window.channels + channel])


def _input_stage(site, t, window, rows, cpu) -> Stage:
    """V = B^T d B of every tile: (frequency, tile * channels + channel), and SKEW."""
    (th, tw), lanes = t.tiles, cpu.lanes

    def body(x, v):
        with ir.units(site.batch, th, tw, window.channels // lanes) as (i, ty, tx, block):
            _transform_input(t, window, x, v, (i, ty, tx), (i * th + ty) * tw + tx, block, cpu)

    shape = (t.a[0] * t.a[1], rows * window.channels + SKEW)
    return Stage("input", ir.kernel({"x": window.shape, "v": shape}, body), (), shape)


def _product_stage(frequencies, points, rows, c, o, weights, tile, cpu) -> Stage:
    """M = U V for each frequency: (frequency, tile, output channel)."""
    v = te.placeholder((frequencies, rows * c + SKEW), name="v")
    u = te.placeholder(weights.shape, name="u")
    k = te.reduce_axis((0, c), "k")

    def row(p):  # of those that a last tile has too many, a CPU may read whatever lies there
        return te.min(p, points - 1) if isinstance(cpu, Gpu) else p

    acc = te.compute(
        (frequencies, rows, weights.shape[1] * tile.columns),
        lambda f, p, q: te.sum(v[f, row(p) * c + k] * u[f, q // tile.columns, k, q % tile.columns], axis=[k]),
        name="product",
    )
    out = te.compute((frequencies, rows, o), lambda f, p, q: acc[f, p, q], name="epilogue")

    def on_cpu(sch, knobs):
        product, epilogue = sch.get_sblock("product"), sch.get_sblock("epilogue")
        around, row, reduction = tile_product(sch, product, epilogue, tile, row=1, column=2)
        tiles = rows // tile.rows
        shared_rows(sch, knobs, around, row, tiles, tiles, cpu)
        block = math.prod(weights.shape[2:])
        reduction = prefetch.mark(sch, knobs, reduction, cpu, block, weights.shape[1], tiles)
        clear_product(sch, knobs, product, reduction)

    schedule = scheduled(cpu, tile, 1, 2, REINDEXED, c) if isinstance(cpu, Gpu) else on_cpu
    return Stage("product", te.create_prim_func([v, u, out]), (weights,), (frequencies, rows, o), schedule)


def _transform_output(site, t, m, start, place, epilogue, b, image, y, lanes, channel=None):
    """Y = A^T M A of the tile at m[:, start], bias and activation; what a last tile has too much is dropped.

    Of all channels, ``lanes`` at a time, or of one.
    """
    (oh, ow), (mh, mw), (fh, fw), (i, ty, tx) = site.out_hw, t.m, t.a, place
    ah, aw = matrices(mh, t.r[0])[0], matrices(mw, t.r[1])[0]

    def transform(base, width):
        half, result, scratch = (ir.Scratch(n, width) for n in (mh * fw, mh * mw, 4 * fh * fw))
        with T.vectorized(0, width) as lane:
            keep, store, finish = scratch.lane(lane), half.lane(lane), result.lane(lane)
            columns = []
            for j in range(fw):
                products = [m[k * fw + j, start + base + lane] for k in range(fh)]
                columns.append([store(e) for e in multiply(ah, products, keep)])
            for k in range(mh):
                for e in multiply(aw, [column[k] for column in columns], keep):
                    finish(e)
        for k in range(mh):
            for j in range(mw):
                with T.If((ty * mh + k < oh) & (tx * mw + j < ow)), T.Then(), T.vectorized(0, width) as lane:
                    at = [i, ty * mh + k, tx * mw + j, base + lane]
                    value = epilogue(result.buffer[k * mw + j, lane], b[base + lane], image, *at)
                    T.buffer_store(y, value, at)

    if channel is None:
        ir.vectors(site.out_channels, lanes, transform)
    else:
        transform(channel, 1)


def _output_stage(site, t, rows, o, epilogue, cpu) -> Stage:
    """The outputs of every tile."""
    th, tw = t.tiles

    def body(m, b, *rest):
        *image, y = rest
        by_channel = (site.out_channels,) if cpu.kind == "cuda" else ()
        with ir.units(site.batch, th, tw, *by_channel) as (i, ty, tx, *channel):
            slot = (i * th + ty) * tw + tx
            _transform_output(site, t, m, slot * o, (i, ty, tx), epilogue, b, image, y, cpu.lanes, *channel)

    shape = (site.batch, *site.out_hw, site.out_channels)
    func = ir.kernel({"m": (t.a[0] * t.a[1], rows * o), "b": (o,), **epilogue.image(shape), "y": shape}, body)
    return Stage("output", func, (epilogue.padded(o),), shape)


def _fused_stage(site, t, window, weights, tile, epilogue, cpu, groups=0) -> Stage:
    frequencies, blocks, c, _ = weights.shape
    columns = blocks * tile.columns

    def product(v, u, m, count, loops):
        with loops(frequencies, blocks) as (f, q), T.serial(0, count) as p:
            ir.tile_product(
                tile.rows,
                tile.columns,
                cpu.lanes,
                c,
                lambda i, k: v[f, (p * tile.rows + i) * c + k],
                lambda k, j: u[f, q, k, j],
                lambda i, j: ir.zero(),
                lambda i, j, e: T.buffer_store(m, e, [f, (p * tile.rows + i) * columns + q * tile.columns + j]),
            )

    steps = (
        lambda x, v, place, slot, block: _transform_input(t, window, x, v, place, slot, block, cpu),
        product,
        lambda m, slot, place, b, image, y: _transform_output(
            site, t, m, slot * columns, place, epilogue, b, image, y, cpu.lanes
        ),
    )
    outputs = (*site.out_hw, site.out_channels)
    shape = site.batch, t.tiles, tile.rows, (frequencies,), weights, columns, outputs
    return fused.fused_stage(window, *shape, epilogue, cpu, steps, groups)
