"""FFT convolution: real DFT of image tiles, complex products over the channels, inverse real DFT.

The method is that of Mathieu et al. (2014, arXiv:1312.5851). Tiles overlap (overlap-save): a window of N x N inputs
gives t x t outputs, t = N - r + 1. One window may also hold the whole image, its borders sharing the same zeros
circularly; then N >= image + padding is enough. Of the N x N frequencies of a real image those that are conjugates of
others are left out. The kernel transform is a constant: done here, in float64.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from tvm import te, tirx

from xframe.lowering import fourier, fused, ir, prefetch
from xframe.lowering.cuda import fft as cuda_fft
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
from xframe.lowering.target import Gpu, Target
from xframe.lowering.variants import Variant, transform_flop
from xframe.types import ConvSite, Device, Rounding

LARGEST = 32  # of a window: straight-line code grows with its square


@dataclass(frozen=True)
class _Geometry:
    """``window`` N and outputs a tile ``t``, both (height, width); ``whole``: one window holds the whole image."""

    window: tuple[int, ...]
    t: tuple[int, ...]
    tiles: tuple[int, ...]
    whole: bool

    @staticmethod
    def tiled(site: ConvSite, n: int) -> "_Geometry":
        t = tuple(n - k + 1 for k in site.kernel)
        return _Geometry((n, n), t, tuple(-(-o // x) for o, x in zip(site.out_hw, t, strict=True)), False)

    @staticmethod
    def of_whole(site: ConvSite) -> "_Geometry":
        top, left, bottom, right = site.pads
        h, w = site.in_hw
        sizes = (max(h + max(top, bottom), site.out_hw[0]), max(w + max(left, right), site.out_hw[1]))
        window = tuple(pad_to(max(n, k), 2) for n, k in zip(sizes, site.kernel, strict=True))
        return _Geometry(window, site.out_hw, (1, 1), True)

    @property
    def mixed(self) -> int:
        """Columns of the row transform that stay complex: without 0 and N/2, which are real."""
        return (self.window[1] - 1) // 2

    @property
    def real(self) -> list[int]:
        """The columns that are real: only half of their frequencies are needed."""
        n = self.window[1]
        return [0, n // 2] if n % 2 == 0 else [0]

    @property
    def frequencies(self) -> int:
        return self.mixed * self.window[0] + len(self.real) * (self.window[0] // 2 + 1)

    def index(self, q, k):
        """Where frequency (row q, column k) is kept. Column k in 1..mixed may be a loop variable."""
        rows = self.window[0]
        if not isinstance(k, int) or k not in self.real:
            return (k - 1) * rows + q
        return self.mixed * rows + self.real.index(k) * (rows // 2 + 1) + q

    def kernel_matrix(self, kernel: tuple[int, int]) -> np.ndarray:
        """Conjugate of a kernel's transform, as the products correlate: (frequency * 2, taps), real and imaginary."""
        (nh, nw), (y, x) = self.window, np.indices(kernel).reshape(2, -1)
        out = np.empty((self.frequencies, 2, len(y)))
        for k in range(nw // 2 + 1):
            for q in range(nh // 2 + 1 if k in self.real else nh):
                angle = 2 * np.pi * (q * y / nh + k * x / nw)
                out[self.index(q, k)] = np.cos(angle), np.sin(angle)
        return out.reshape(-1, len(y))


class Fft:
    """Undilated, ungrouped, kernels of at least 2 taps on one side; strides through space to depth."""

    name = "fft"
    parts = frozenset({"input"})

    def refuses(self, site: ConvSite, device: Device) -> str | None:
        if site.dilation != (1, 1):
            return f"dilation {site.dilation[0]}x{site.dilation[1]}: windows of that width are not worth a transform"
        if site.groups != 1:
            return f"{site.groups} groups: its products run over all input channels"
        kernel = unit(site).kernel
        if kernel == (1, 1):
            return one_tap(site)
        if max(kernel) > LARGEST // 2:
            return f"a {kernel[0]}x{kernel[1]} kernel needs windows over {LARGEST} wide"
        return None

    def variants(self, given: ConvSite) -> list[Variant]:
        """One for each window size, and the window that holds the whole image if it is small enough.

        The DFT keeps the energy, so nothing grows; its own sums are as long as the window.
        """
        site = unit(given)
        smallest = max(site.kernel) + 1
        windows = [_Geometry.tiled(site, n) for n in range(smallest, LARGEST + 1)]
        whole = _Geometry.of_whole(site)
        if max(whole.window) <= LARGEST:
            windows.append(whole)
        found = []
        for g in windows:
            detail = f"{g.window[0]}x{g.window[1]} {'image' if g.whole else 'tiles'}"
            rounding = Rounding(site.in_channels + 2 * sum(g.window), 1.0, (g.t[0] - 1, g.t[1] - 1))
            tiles, c, o = site.batch * g.tiles[0] * g.tiles[1], site.in_channels, site.out_channels
            flop = 8 * g.frequencies * tiles * c * o + transform_flop(g.window) * tiles * (c + o)
            moved = 2 * 8 * g.frequencies * tiles * (c + o)
            found.append(Variant(given, rounding, detail, flop, 8 * g.frequencies * c * o, moved, g))
        return found

    def define(self, variant: Variant, weight: np.ndarray, epilogue: Epilogue, layout: str, cpu: Target):
        """See ``xframe.protocols.Lowering``."""
        given, g = variant.site, variant.geometry
        site, weight = unit(given), unit_weight(given, weight)
        c, o = pad_to(site.in_channels, cpu.lanes), pad_to(site.out_channels, cpu.lanes)
        points = site.batch * g.tiles[0] * g.tiles[1]
        tiles = Tile.ranked(points, o, cpu, parts=2, batch=g.frequencies)
        tile = variant.tile or tiles[0]
        rows, columns = pad_to(points, tile.rows), pad_to(o, tile.columns)
        if g.whole and site == given:  # what lies outside is left out of the transform, not read
            bare = ConvSite(site.batch, site.in_channels, site.in_hw, site.out_channels, site.kernel)
            image = Window.of(bare, *site.in_hw, layout, cpu)
        elif g.whole:
            image = Window.of(given, *site.in_hw, layout, cpu)
        else:
            height, width = ((n - 1) * t + w for n, t, w in zip(g.tiles, g.t, g.window, strict=True))
            image = Window.of(given, height, width, layout, cpu)

        spectrum = transformed(g.kernel_matrix(site.kernel), weight)
        spectrum = spectrum.reshape(g.frequencies, 2, *spectrum.shape[1:]).swapaxes(1, 2)
        spectrum = np.pad(spectrum, ((0, 0), (0, c - site.in_channels), (0, 0), (0, 0)))
        weights = packed(spectrum, columns, tile.columns)
        if fused.pays(weights, points, c, columns, cpu):
            stages = [image.stage, _fused_stage(site, g, image, weights, tile, epilogue, cpu)]
        else:
            if isinstance(cpu, Gpu):
                transform = cuda_fft.input_stage(site, g, image, rows, cpu)
                back = cuda_fft.output_stage(site, g, rows, o, epilogue, cpu)
            else:
                transform = _input_stage(site, g, image, rows, cpu)
                back = _output_stage(site, g, rows, o, epilogue, cpu)
            product = _product_stage(g.frequencies, points, rows, c, o, weights, tile, cpu)
            stages = [image.stage, transform, replace(product, tiles=tiles), back]
        return [s for s in stages if s]


def _transform_input(site, g, image, x, v, place, slot, block, lanes):
    """V at ``slot`` = DFT of the window at ``place`` (image, row and column of windows), one vector of channels.

    Rows first, then columns.
    """
    (nh, nw), (i, ty, tx) = g.window, place
    top, left = site.pads[:2] if g.whole else (0, 0)
    used_rows, used_columns = (image.height, image.width) if g.whole else (nh, nw)
    half = nw // 2 + 1
    spectrum = T.alloc_buffer((2, half, used_rows, lanes), ir.FLOAT, scope="local")
    with T.serial(0, used_rows) as y:
        scratch = ir.Scratch(8 * nw, lanes)
        with T.vectorized(0, lanes) as lane:
            at = [(ty * g.t[0] + y, tx * g.t[1] + j, block * lanes + lane) for j in range(used_columns)]
            pixels = fourier.placed([image.pixel(x, i, *p) for p in at], left, nw)
            for j, e in enumerate(fourier.row(pixels, scratch.lane(lane))):
                if e is not None:
                    T.buffer_store(spectrum, e, [j // half, j % half, y, lane])

    def column(k, is_real):
        scratch = ir.Scratch(20 * nh, lanes)
        with T.vectorized(0, lanes) as lane:
            parts = [[spectrum[part, k, j, lane] for j in range(used_rows)] for part in range(1 if is_real else 2)]
            parts = [fourier.placed(p, top, nh) for p in parts]
            for q, pair in fourier.column(parts, scratch.lane(lane)).items():
                for part, e in enumerate(pair):
                    value = ir.zero() if e is None else e
                    T.buffer_store(v, value, [g.index(q, k), part, slot * image.channels + block * lanes + lane])

    with T.serial(0, g.mixed) as k:
        column(k + 1, False)
    for k in g.real:
        column(k, True)


def _input_stage(site, g, image, rows, cpu) -> Stage:
    """V = DFT of every window: (frequency, real or imaginary, tile * channels + channel), and SKEW."""
    th, tw = g.tiles

    def body(x, v):
        with ir.units(site.batch, th, tw, image.channels // cpu.lanes) as (i, ty, tx, block):
            slot = (i * th + ty) * tw + tx
            _transform_input(site, g, image, x, v, (i, ty, tx), slot, block, cpu.lanes)

    shape = (g.frequencies, 2, rows * image.channels + SKEW)
    return Stage("input", ir.kernel({"x": image.shape, "v": shape}, body), (), shape)


def _product_stage(frequencies, points, rows, c, o, weights, tile, cpu) -> Stage:
    """M = V U, complex, for each frequency: (frequency, real or imaginary, tile, output channel)."""
    v = te.placeholder((frequencies, 2, rows * c + SKEW), name="v")
    u = te.placeholder(weights.shape, name="u")
    k, d = te.reduce_axis((0, c), "k"), te.reduce_axis((0, 2), "d")

    def term(f, part, p, q):
        value = v[f, d, (te.min(p, points - 1) if isinstance(cpu, Gpu) else p) * c + k]
        value = tirx.if_then_else(part < d, -value, value)
        return te.sum(value * u[f, q // tile.columns, k, (part + d) % 2, q % tile.columns], axis=[k, d])

    acc = te.compute((frequencies, 2, rows, weights.shape[1] * tile.columns), term, name="product")
    out = te.compute((frequencies, 2, rows, o), lambda f, part, p, q: acc[f, part, p, q], name="epilogue")

    def on_cpu(sch, knobs):
        product, epilogue = sch.get_sblock("product"), sch.get_sblock("epilogue")
        around, row, reduction = tile_product(sch, product, epilogue, tile, row=2, column=3, unroll=(5, 1))
        tiles = rows // tile.rows
        shared_rows(sch, knobs, around, row, tiles, tiles, cpu)
        block = math.prod(weights.shape[2:])
        reduction = prefetch.mark(sch, knobs, reduction, cpu, block, weights.shape[1], tiles)
        clear_product(sch, knobs, product, reduction)

    schedule = scheduled(cpu, tile, 2, 3, REINDEXED, c, (5, 1)) if isinstance(cpu, Gpu) else on_cpu
    return Stage("product", te.create_prim_func([v, u, out]), (weights,), (frequencies, 2, rows, o), schedule)


def _transform_output(site, g, m, start, place, epilogue, b, image, y, base, width):
    """Y = inverse DFT of the window at m[:, :, start], bias and activation, of ``width`` channels from ``base`` on.

    Columns first, then rows; only the t x t valid outputs are kept.
    """
    (oh, ow), (i, ty, tx) = site.out_hw, place
    (nh, nw), (t_h, t_w) = g.window, g.t
    half = nw // 2 + 1
    rows_of = T.alloc_buffer((t_h, 2, half, width), ir.FLOAT, scope="local")

    def column(k, is_real):
        scratch = ir.Scratch(20 * nh, width)
        with T.vectorized(0, width) as lane:
            keep = scratch.lane(lane)
            terms = fourier.halves(lambda q, part: m[g.index(q, k), part, start + base + lane], nh, is_real, keep)
            for part, values in enumerate(terms):
                for q, e in enumerate(fourier.inverse(values, nh, keep)[:t_h]):
                    T.buffer_store(rows_of, e, [q, part, k, lane])

    with T.serial(0, g.mixed) as k:
        column(k + 1, False)
    for k in g.real:
        column(k, True)

    with T.serial(0, t_h) as row, T.If(ty * t_h + row < oh), T.Then():
        scratch, result = ir.Scratch(8 * nw, width), ir.Scratch(t_w, width)
        with T.vectorized(0, width) as lane:
            keep, finish = scratch.lane(lane), result.lane(lane)
            values = [rows_of[row, 0, j, lane] for j in range(half)]
            values += [None if j in g.real else rows_of[row, 1, j, lane] for j in range(half)]
            for e in fourier.inverse(values, nw, keep)[:t_w]:
                finish(e)
        for j in range(t_w):
            with T.If(tx * t_w + j < ow), T.Then(), T.vectorized(0, width) as lane:
                place = [i, ty * t_h + row, tx * t_w + j, base + lane]
                T.buffer_store(y, epilogue(result.buffer[j, lane], b[base + lane], image, *place), place)


def _output_stage(site, g, rows, o, epilogue, cpu) -> Stage:
    """The outputs of every window."""
    channels, (th, tw), lanes = site.out_channels, g.tiles, cpu.lanes

    def body(m, b, *rest):
        *image, y = rest

        def transform(i, ty, tx, base, width):
            slot = (i * th + ty) * tw + tx
            _transform_output(site, g, m, slot * o, (i, ty, tx), epilogue, b, image, y, base, width)

        if channels % lanes:
            with ir.units(site.batch, th, tw) as (i, ty, tx):
                ir.vectors(channels, lanes, lambda base, width: transform(i, ty, tx, base, width))
        else:
            with ir.units(site.batch, th, tw, channels // lanes) as (i, ty, tx, block):
                transform(i, ty, tx, block * lanes, lanes)

    shape = (site.batch, *site.out_hw, channels)
    func = ir.kernel({"m": (g.frequencies, 2, rows * o), "b": (o,), **epilogue.image(shape), "y": shape}, body)
    return Stage("output", func, (epilogue.padded(o),), shape)


def _fused_stage(site, g, image, weights, tile, epilogue, cpu) -> Stage:
    frequencies, blocks, c, _, _ = weights.shape
    columns = blocks * tile.columns

    def product(v, u, m, count, loops):
        with loops(frequencies, blocks) as (f, q), T.serial(0, count) as p:
            row, column = p * tile.rows, q * tile.columns
            ir.complex_tile_product(
                *(tile.rows, tile.columns, cpu.lanes, c),
                lambda part, i, k: v[f, part, (row + i) * c + k],
                lambda part, k, j: u[f, q, k, part, j],
                lambda part, i, j, e: T.buffer_store(m, e, [f, part, (row + i) * columns + column + j]),
            )

    def back(m, slot, place, *rest):
        ir.vectors(
            site.out_channels,
            cpu.lanes,
            lambda *at: _transform_output(site, g, m, slot * columns, place, epilogue, *rest, *at),
        )

    steps = (
        lambda x, v, place, slot, block: _transform_input(site, g, image, x, v, place, slot, block, cpu.lanes),
        product,
        back,
    )
    outputs = (*site.out_hw, site.out_channels)
    shape = site.batch, g.tiles, tile.rows, (frequencies, 2), weights, columns, outputs
    return fused.fused_stage(image, *shape, epilogue, cpu, steps)
