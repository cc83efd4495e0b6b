"""Winograd convolution F(m, r): transformed tiles, batched products over the channels, inverse transform.

Y = A^T [(G g G^T) * (B^T d B)] A for each m x m tile of outputs (Lavin and Gray 2016, doi 10.1109/CVPR.2016.435), with
the matrices of Toom and Cook's algorithm, made from their interpolation points in exact arithmetic. The weight
transform is a constant: done here, in float64.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from tvm import te

from xframe.lowering import ir
from xframe.lowering.ir import T
from xframe.lowering.padding import Window
from xframe.lowering.stage import Stage, Tile, activate, clear_product, packed, pad_to, tile_product, transformed
from xframe.lowering.straight_line import product as multiply
from xframe.lowering.target import Cpu
from xframe.types import ConvSite, Device, Rounding

#: Finite interpolation points in the order of use; the last point is at infinity. Pairs of opposite points let the
#: transforms share sums; beyond these seven the error grows too fast for float32.
POINTS = tuple(Fraction(p) for p in ("0", "1", "-1", "2", "-2", "1/2", "-1/2"))
LARGEST = len(POINTS) + 1  # m + r - 1
#: Bytes of products that should stay in the cache of a core.
NEAR = 1 << 19


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
    """Stride 1, undilated, ungrouped, kernels of 2 to 7 taps a side (one side may have 1)."""

    name = "winograd"
    parts = frozenset({"input"})

    def refuses(self, site: ConvSite, device: Device) -> str | None:
        if site.stride != (1, 1):
            return f"stride {site.stride[0]}x{site.stride[1]}: tiles of outputs share inputs only at stride 1"
        if site.dilation != (1, 1):
            return f"dilation {site.dilation[0]}x{site.dilation[1]}: the transforms need neighbouring taps"
        if site.groups != 1:
            return f"{site.groups} groups: its products run over all input channels"
        if site.kernel == (1, 1):
            return "a 1x1 kernel has nothing to transform"
        if max(site.kernel) > LARGEST - 1:
            return f"a {site.kernel[0]}x{site.kernel[1]} kernel needs tiles over {LARGEST} wide, too inexact in float32"
        return None

    def rounding(self, site: ConvSite, cpu: Cpu) -> tuple[str, Rounding]:
        """Sums run over channels; both transforms add their few terms; the transforms enlarge what is there."""
        geometry = self._choose(site, cpu)
        amount = growth(geometry.m[0], geometry.r[0]) * growth(geometry.m[1], geometry.r[1])
        (mh, mw), (rh, rw) = geometry.m, geometry.r
        detail = f"F({mh},{rh})" if (mh, rh) == (mw, rw) else f"F({mh}x{mw},{rh}x{rw})"
        length = site.in_channels + 2 * sum(geometry.a)
        return detail, Rounding(length, amount, (mh - 1, mw - 1))

    def _choose(self, site: ConvSite, cpu: Cpu) -> _Geometry:
        """The tile with the least estimated time (``Cpu.cost``)."""

        def cost(m):
            t = _Geometry.of(site, m)
            frequencies, tiles = t.a[0] * t.a[1], site.batch * t.tiles[0] * t.tiles[1]
            c, o = site.in_channels, site.out_channels
            moved = 2 * 4 * frequencies * tiles * (c + o)
            return cpu.cost(2 * frequencies * tiles * c * o, 4 * frequencies * c * o, moved)

        return _Geometry.of(site, min(range(2, LARGEST - max(site.kernel) + 2), key=cost))

    def define(self, site: ConvSite, weight: np.ndarray, bias: np.ndarray, relu: bool, layout: str, cpu: Cpu):
        """See ``xframe.lowering.direct.Direct.define``."""
        t = self._choose(site, cpu)
        c, o = pad_to(site.in_channels, cpu.lanes), pad_to(site.out_channels, cpu.lanes)
        frequencies, points = t.a[0] * t.a[1], site.batch * t.tiles[0] * t.tiles[1]
        height, width = ((n - 1) * m + a for n, m, a in zip(t.tiles, t.m, t.a, strict=True))
        tile = Tile.choose(points, o, cpu)
        rows, columns = pad_to(points, tile.rows), pad_to(o, tile.columns)

        spectrum = transformed(np.kron(matrices(t.m[0], t.r[0])[1], matrices(t.m[1], t.r[1])[1]), weight)
        spectrum = np.pad(spectrum, ((0, 0), (0, c - site.in_channels), (0, 0)))
        weights = packed(spectrum, columns, tile.columns)
        bias, window = np.pad(bias, (0, o - len(bias))), Window.of(site, height, width, layout, cpu)
        stages = [
            window.stage,
            _input_stage(site, t, window, rows, cpu),
        ]
        block = _block(site, t, rows, c, tile)
        if block:
            stages.append(_product_output_stage(site, t, rows, c, block, weights, bias, tile, relu, cpu))
        else:
            stages.append(_product_stage(frequencies, rows, c, o, weights, tile))
            stages.append(_output_stage(site, t, rows, o, bias, relu, cpu))
        return [s for s in stages if s]


def _block(site, t, rows, c, tile) -> tuple[int, int] | None:
    """(tiles, channels) of a block whose products are transformed back at once, or None: all products first.

    A block saves writing and reading all products (2 * outputs values a tile and frequency), but reads the transformed
    image once for each of its channels' blocks. Worth it where that is less and the products would not stay in a cache.
    """
    o, frequencies = site.out_channels, t.a[0] * t.a[1]
    if o % tile.columns or 4 * frequencies * rows * o < NEAR:
        return None
    channels = max(n for n in range(tile.columns, max(tile.columns, 64) + 1, tile.columns) if o % n == 0)
    if 2 * o <= c * (o // channels - 1):
        return None
    steps = rows // tile.rows
    fitting = [n for n in range(1, steps + 1) if steps % n == 0 and 4 * frequencies * n * tile.rows * channels <= NEAR]
    return max(fitting, default=1) * tile.rows, channels


def _input_stage(site, t, window, rows, cpu) -> Stage:
    """V = B^T d B of every tile: (frequency, tile, channel)."""
    c = window.channels
    bh, bw = matrices(t.m[0], t.r[0])[2], matrices(t.m[1], t.r[1])[2]
    (ah, aw), (th, tw), lanes = t.a, t.tiles, cpu.lanes

    def body(x, v):
        with ir.units(site.batch, th, tw, c // lanes) as (i, ty, tx, block):
            half = ir.Scratch(ah * aw, lanes)
            scratch = ir.Scratch(4 * ah * aw, lanes)
            with T.vectorized(0, lanes) as lane:
                keep, store = scratch.lane(lane), half.lane(lane)
                channel = block * lanes + lane
                columns = []
                for j in range(aw):
                    pixels = [window.pixel(x, i, ty * t.m[0] + k, tx * t.m[1] + j, channel) for k in range(ah)]
                    columns.append([store(e) for e in multiply(bh, pixels, keep)])
                for k in range(ah):
                    for j, e in enumerate(multiply(bw, [column[k] for column in columns], keep)):
                        T.buffer_store(v, e, [k * aw + j, (i * th + ty) * tw + tx, channel])

    shape = (ah * aw, rows, c)
    return Stage("input", ir.kernel({"x": window.shape, "v": shape}, body), (), shape)


def _product_stage(frequencies, rows, c, o, weights, tile) -> Stage:
    """M = U V for each frequency: (frequency, tile, output channel)."""
    v = te.placeholder((frequencies, rows, c), name="v")
    u = te.placeholder(weights.shape, name="u")
    k = te.reduce_axis((0, c), "k")
    acc = te.compute(
        (frequencies, rows, weights.shape[1] * tile.columns),
        lambda f, p, q: te.sum(v[f, p, k] * u[f, q // tile.columns, k, q % tile.columns], axis=[k]),
        name="product",
    )
    out = te.compute((frequencies, rows, o), lambda f, p, q: acc[f, p, q], name="epilogue")

    def schedule(sch):
        product, epilogue = sch.get_sblock("product"), sch.get_sblock("epilogue")
        around, _, reduction = tile_product(sch, product, epilogue, tile, row=1, column=2)
        sch.parallel(sch.fuse(*around))
        clear_product(sch, product, reduction)

    return Stage("product", te.create_prim_func([v, u, out]), (weights,), (frequencies, rows, o), schedule)


def _product_output_stage(site, t, rows, c, block, weights, bias, tile, relu, cpu) -> Stage:
    """Products and inverse transform of one block of tiles and channels after the other."""
    (oh, ow), channels = site.out_hw, site.out_channels
    (tiles, width), frequencies = block, t.a[0] * t.a[1]
    panels = width // tile.columns

    def body(v, u, b, y):
        with ir.units(channels // width, rows // tiles) as (part, group):
            m = T.alloc_buffer((frequencies, tiles, width), ir.FLOAT)
            with T.serial(0, frequencies) as f, T.serial(0, panels) as panel, T.serial(0, tiles // tile.rows) as r:
                first = r * tile.rows
                ir.tile_product(
                    tile.rows,
                    tile.columns,
                    tile.lanes,
                    c,
                    lambda i, k: v[f, group * tiles + first + i, k],
                    lambda k, j: u[f, part * panels + panel, k, j],
                    lambda i, j: ir.zero(),
                    lambda i, j, value: T.buffer_store(m, value, [f, first + i, panel * tile.columns + j]),
                )
            with T.serial(0, tiles) as p:
                point = group * tiles + p
                with T.If(point < site.batch * t.tiles[0] * t.tiles[1]), T.Then(), T.serial(0, width // cpu.lanes) as k:
                    lanes_of = k * cpu.lanes
                    _inverse(
                        site,
                        t,
                        lambda f, lane: m[f, p, lanes_of + lane],
                        (point, part * width + lanes_of, cpu.lanes),
                        (b, y),
                        relu,
                    )

    shape = (site.batch, oh, ow, channels)
    func = ir.kernel({"v": (frequencies, rows, c), "u": weights.shape, "b": bias.shape, "y": shape}, body)
    return Stage("product_output", func, (weights, bias), shape)


def _output_stage(site, t, rows, o, bias, relu, cpu) -> Stage:
    """Inverse transform of all products."""
    th, tw = t.tiles

    def body(m, b, y):
        with ir.units(site.batch, th, tw) as (i, ty, tx):
            point = (i * th + ty) * tw + tx

            def transform(base, width):
                where = (point, base, width)
                _inverse(site, t, lambda f, lane: m[f, point, base + lane], where, (b, y), relu)

            ir.vectors(site.out_channels, cpu.lanes, transform)

    shape = (site.batch, *site.out_hw, site.out_channels)
    func = ir.kernel({"m": (t.a[0] * t.a[1], rows, o), "b": (o,), "y": shape}, body)
    return Stage("output", func, (bias,), shape)


def _inverse(site, t, product, where, buffers, relu) -> None:
    """Y = A^T M A, bias and activation of one tile and vector of channels; what a last tile has too much is dropped.

    ``product(f, lane)`` is M at frequency f; ``where`` is (tile, first channel, channels); ``buffers`` (bias, y).
    """
    (point, base, width), (b, y), (oh, ow) = where, buffers, site.out_hw
    (th, tw), (mh, mw), (fh, fw) = t.tiles, t.m, t.a
    ah, aw = matrices(mh, t.r[0])[0], matrices(mw, t.r[1])[0]
    half, result, scratch = ir.Scratch(mh * fw, width), ir.Scratch(mh * mw, width), ir.Scratch(4 * fh * fw, width)
    with T.vectorized(0, width) as lane:
        keep, store, finish = scratch.lane(lane), half.lane(lane), result.lane(lane)
        columns = []
        for j in range(fw):
            products = [product(k * fw + j, lane) for k in range(fh)]
            columns.append([store(e) for e in multiply(ah, products, keep)])
        for k in range(mh):
            for e in multiply(aw, [column[k] for column in columns], keep):
                finish(activate(e + b[base + lane], relu))
    i, ty, tx = point // (th * tw), point // tw % th, point % tw
    for k in range(mh):
        for j in range(mw):
            with T.If((ty * mh + k < oh) & (tx * mw + j < ow)), T.Then(), T.vectorized(0, width) as lane:
                T.buffer_store(y, result.buffer[k * mw + j, lane], [i, ty * mh + k, tx * mw + j, base + lane])
