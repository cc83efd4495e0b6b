"""The transforms of an FFT convolution on a GPU: threads share a window, each with a row, then with a column of it.

A window of one channel has more values than a thread has registers. So a thread transforms a row in registers and puts
it into shared memory, where another takes it up as parts of columns. Neighbouring threads have neighbouring channels,
then neighbouring rows or columns, whose values are an odd number apart: so they are in different banks.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from xframe.lowering import fourier, ir
from xframe.lowering.cuda.target import BLOCK, Gpu
from xframe.lowering.ir import T
from xframe.lowering.stage import SKEW, Stage


def input_stage(site, g, image, rows: int, gpu: Gpu) -> Stage:
    """V = DFT of every window: (frequency, real or imaginary, tile * channels + channel), and SKEW."""
    (nh, nw), (th, tw), half = g.window, g.tiles, g.window[1] // 2 + 1
    top, left = site.pads[:2] if g.whole else (0, 0)
    used_rows, used_columns = (image.height, image.width) if g.whole else g.window

    def body(x, v):
        units = site.batch, th, tw, image.channels
        with _block(units, half, 2 * half * (used_rows | 1), gpu) as ((i, ty, tx, channel), place, lane, wide):
            spectrum = T.alloc_buffer((2, half, used_rows | 1, wide), ir.FLOAT, scope="shared")
            with _each(used_rows, half, place) as y:
                keep, read = ir.Scratch(8 * nw, 1).lane(0), ir.Scratch(used_columns, 1).lane(0)
                at = [(ty * g.t[0] + y, tx * g.t[1] + j, channel) for j in range(used_columns)]
                pixels = fourier.placed([read(image.pixel(x, i, *p)) for p in at], left, nw)
                for j, e in enumerate(fourier.row(pixels, keep)):
                    if e is not None:
                        T.buffer_store(spectrum, e, [j // half, j % half, y, lane])

            slot = (i * th + ty) * tw + tx

            def column(k, first, real):
                keep = ir.Scratch(20 * nh, 1).lane(0)
                parts = [[spectrum[part, k, j, lane] for j in range(used_rows)] for part in range(1 if real else 2)]
                for q, pair in fourier.column([fourier.placed(p, top, nh) for p in parts], keep).items():
                    for part, e in enumerate(pair):
                        value = ir.zero() if e is None else e
                        T.buffer_store(v, value, [first + q, part, slot * image.channels + channel])

            _columns(g, place, column)

    shape = (g.frequencies, 2, rows * image.channels + SKEW)
    return Stage("input", ir.kernel({"x": image.shape, "v": shape}, body), (), shape)


def output_stage(site, g, rows: int, o: int, epilogue, gpu: Gpu) -> Stage:
    """The outputs of every window: of each only the valid ones."""
    (nh, nw), (th, tw), (t_h, t_w), half = g.window, g.tiles, g.t, g.window[1] // 2 + 1
    oh, ow = site.out_hw

    def body(m, b, *rest):
        *image, y = rest
        units = site.batch, th, tw, site.out_channels
        with _block(units, half, (2 * half + 1) * t_h, gpu) as ((i, ty, tx, channel), place, lane, wide):
            lines = T.alloc_buffer((t_h, 2 * half + 1, wide), ir.FLOAT, scope="shared")
            start = ((i * th + ty) * tw + tx) * o + channel

            def column(k, first, real):
                keep = ir.Scratch(20 * nh, 1).lane(0)
                terms = fourier.halves(lambda q, part: m[first + q, part, start], nh, real, keep)
                for part, values in enumerate(terms):
                    for q, e in enumerate(fourier.inverse(values, nh, keep)[:t_h]):
                        T.buffer_store(lines, e, [q, part * half + k, lane])

            _columns(g, place, column)
            with _each(t_h, half, place) as row, T.If(ty * t_h + row < oh), T.Then():
                keep, result = ir.Scratch(8 * nw, 1).lane(0), ir.Scratch(t_w, 1)
                finish = result.lane(0)
                values = [lines[row, j, lane] for j in range(half)]
                values += [None if j in g.real else lines[row, half + j, lane] for j in range(half)]
                for e in fourier.inverse(values, nw, keep)[:t_w]:
                    finish(e)
                for j in range(t_w):
                    with T.If(tx * t_w + j < ow), T.Then():
                        at = [i, ty * t_h + row, tx * t_w + j, channel]
                        T.buffer_store(y, epilogue(result.buffer[j, 0], b[channel], image, *at), at)

    shape = (site.batch, *site.out_hw, site.out_channels)
    func = ir.kernel({"m": (g.frequencies, 2, rows * o), "b": (o,), **epilogue.image(shape), "y": shape}, body)
    return Stage("output", func, (epilogue.padded(o),), shape)


@contextlib.contextmanager
def _block(units: tuple[int, ...], threads: int, values: int, gpu: Gpu) -> Iterator[tuple[list, Any, Any, int]]:
    """Blocks of threads: as many lanes as fit, ``threads`` of each of the ``units``, which share ``values`` in memory.

    Yields the index along each of ``units``, which thread of its unit it is, its lane, and how many lanes there are.
    Lanes beyond the last unit do what the last one does: all must reach the barriers.
    """
    total = math.prod(units)
    wide = next((n for n in (32, 16, 8, 4, 2) if 4 * n * values <= gpu.shared and n * threads <= 2 * BLOCK), 1)
    with (
        T.thread_binding(0, -(-total // wide), thread="blockIdx.x") as block,
        T.thread_binding(0, threads, thread="threadIdx.y") as place,
        T.thread_binding(0, wide, thread="threadIdx.x") as lane,
    ):
        unit, at = block * wide + lane, []
        if total % wide:
            unit = T.min(unit, total - 1)
        for n in reversed(units):
            at.append(unit % n)
            unit = unit // n
        yield at[::-1], place, lane, wide


@contextlib.contextmanager
def _each(count: int, threads: int, place) -> Iterator[Any]:
    """What the thread at ``place`` of so many does of ``count`` things."""
    with T.serial(0, -(-count // threads)) as turn, contextlib.ExitStack() as guard:
        thing = turn * threads + place
        if count % threads:
            guard.enter_context(T.If(thing < count))
            guard.enter_context(T.Then())
        yield thing


def _columns(g, place, column) -> None:
    """``column(k, where its frequencies begin, whether it is real)`` for the thread's column."""
    (nh, nw), other = g.window, place - g.mixed
    with T.If(place < g.mixed):
        with T.Then():
            column(place + 1, place * nh, False)
        with T.Else():
            column(other * (nw // 2), g.mixed * nh + other * (nh // 2 + 1), True)
