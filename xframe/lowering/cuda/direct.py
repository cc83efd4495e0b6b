"""The schedule of a direct convolution on a GPU: a block of threads keeps a patch of the image in shared memory.

A block computes a few lines of one image and some output channels; a thread, neighbouring outputs of one line for four
of those channels. A chunk of the input channels of the patch is brought in at a time, and for each row of the kernel
its weights, the next row's while the current one is multiplied: so a pixel is read from memory once, however many taps
meet it.
"""

import math
from collections.abc import Callable

from tvm import s_tir

from xframe.errors import Unsupported
from xframe.lowering.cuda.product import VECTOR, buffered, fetch, unrolled
from xframe.lowering.cuda.target import BLOCK, LANES, TILES, Gpu
from xframe.lowering.knobs import Knobs, divisors
from xframe.types import ConvSite

#: Outputs of a line that a block, and a thread, has at most; input channels in shared memory at a time, by hand.
LONGEST, MOST, DEPTH = 32, 14, 8
#: Taps of a row of the kernel up to which a thread keeps what they meet in registers.
NARROW = 7


def tiles(site: ConvSite, gpu: Gpu) -> list[tuple[int, int]]:
    """(outputs of a line, output channels) of a block, best use of the machine first.

    Raises Unsupported where no patch fits.
    """
    width = site.out_hw[1]
    costs = {}
    for row in {-(-width // parts) for parts in range(-(-width // LONGEST), width + 1)}:
        for columns in TILES:
            lines = by_hand(site, row, columns, gpu)
            if lines:
                costs[row, columns] = _cost(site, row, columns, lines, gpu)
    if not costs:
        raise Unsupported(f"no patch of {site.key} fits the {gpu.shared} bytes of shared memory of a block")
    return sorted(costs, key=lambda tile: (costs[tile], tile))


def refuses(site: ConvSite) -> str | None:
    """Why no block can do ``site``, in words."""
    if site.groups == site.in_channels == site.out_channels:
        return None  # depthwise: a thread a value
    try:
        tiles(site, Gpu.named("sm_80"))  # all have as much shared memory
    except Unsupported as e:
        return str(e)
    return None


def by_hand(site: ConvSite, row: int, columns: int, gpu: Gpu) -> int:
    """Lines of a block: the best use of the machine; 0 if none has a patch and threads that fit."""
    fit = [n for n in _lines(site, row, columns) if any(_fits(site, row, columns, n, d, gpu) for d in _depths(site))]
    return min(fit, key=lambda n: _cost(site, row, columns, n, gpu), default=0)


def _cost(site: ConvSite, row: int, columns: int, lines: int, gpu: Gpu) -> float:
    """Time of an input channel: turns of the multiprocessors, two blocks at a time, their products and their reads.

    A block with too few threads leaves lanes idle; one with few outputs a thread reads shared memory more often.
    """
    (oh, ow), out, taps = site.out_hw, site.out_channels // site.groups, math.prod(site.kernel)
    blocks = site.batch * site.groups * (oh // lines) * -(-ow // row) * -(-out // columns)
    threads = _threads(row, columns, lines)
    products = taps * lines * row * columns * (1 + 2 / VECTOR + 8 / _along(row)) * max(1.0, LANES / threads)
    return -(-blocks // (2 * gpu.multiprocessors)) * (products + 16 * (_patch(site, row, lines) + taps * columns))


def scheduled(site: ConvSite, row: int, columns: int, gpu: Gpu) -> Callable[[s_tir.Schedule, Knobs], None]:
    """The schedule of ``product`` and ``epilogue`` for blocks of ``row`` outputs of a line and ``columns`` channels.

    Knobs: ``lines`` of a block, ``row_threads`` that share a line, and ``depth``, the input channels at a time.
    """

    def schedule(sch: s_tir.Schedule, knobs: Knobs) -> None:
        product, last = sch.get_sblock("product"), sch.get_sblock("epilogue")
        image, weights = sch.cache_read(product, 0, "shared"), sch.cache_read(product, 1, "shared")
        near = sch.cache_read(product, 0, "local") if _narrow(site) else None
        step = _step(site)
        lines = by_hand(site, row, columns, gpu)
        depths = [d for d in _depths(site) if _fits(site, row, columns, lines, d, gpu)]
        deepest = max([d for d in depths if d <= DEPTH] or depths[:1])

        i, q, y, z, o, ry, rx, k = sch.get_loops(product)
        threads = [
            knobs(
                "lines", [n for n in _lines(site, row, columns) if _fits(site, row, columns, n, deepest, gpu)], lines
            ),
            knobs("row_threads", [n for n in divisors(row) if row // n <= MOST + 2], row // _along(row)),
            columns // VECTOR,
        ]
        y, line = sch.split(y, [None, threads[0]])
        z, place = sch.split(z, [None, row])
        place, output = sch.split(place, [threads[1], None])
        o, channel = sch.split(o, [None, columns])
        channel, lane = sch.split(channel, [None, VECTOR])
        turn, k = sch.split(k, [None, knobs("depth", depths, deepest)])
        k, one = sch.split(k, [None, step])
        sch.reorder(q, i, y, z, o, line, place, channel, turn, ry, k, rx, one, output, lane)
        sch.bind(sch.fuse(q, i, y, z, o), "blockIdx.x")
        for loop, axis in ((line, "z"), (place, "y"), (channel, "x")):
            sch.bind(loop, f"threadIdx.{axis}")

        sch.set_scope(product, 0, "local")
        sch.reverse_compute_at(last, channel, preserve_unit_loops=True)
        whole = int(sch.get(last).iter_vars[-1].dom.extent) % columns == 0
        unrolled(sch, last, channel, VECTOR if whole else 1)
        if near:
            sch.compute_at(near, k, preserve_unit_loops=True)
            unrolled(sch, near, k, step)
            sch.unroll(rx)
        fetch(sch, image, turn, threads, step)
        fetch(sch, weights, ry, threads, VECTOR)
        if site.kernel[0] > 1:
            buffered(sch, knobs, ry, weights)
        for loop in (one, output):
            sch.unroll(loop)
        sch.vectorize(lane)
        unrolled(sch, sch.decompose_reduction(product, turn), channel, VECTOR)

    return schedule


def _along(row: int) -> int:
    """Neighbouring outputs of a thread by hand."""
    return max(d for d in divisors(row) if d <= MOST)


def _narrow(site: ConvSite) -> bool:
    """Whether a thread keeps what the taps of a row of the kernel meet."""
    return site.stride[1] == 1 and site.kernel[1] <= NARROW


def _step(site: ConvSite) -> int:
    """Input channels that are read at once."""
    return math.gcd(VECTOR, site.in_channels // site.groups)


def _depths(site: ConvSite) -> list[int]:
    return [d for d in divisors(site.in_channels // site.groups) if d % _step(site) == 0 and d <= 4 * DEPTH]


def _lines(site: ConvSite, row: int, columns: int) -> list[int]:
    a_line = row // _along(row) * columns // VECTOR
    return [n for n in divisors(site.out_hw[0]) if n == 1 or (n <= 64 and n * a_line <= BLOCK)]


def _patch(site: ConvSite, row: int, lines: int) -> int:
    """Pixels that a block reads."""
    (kh, kw), (sh, sw), (dh, dw) = site.kernel, site.stride, site.dilation
    return ((lines - 1) * sh + (kh - 1) * dh + 1) * ((row - 1) * sw + (kw - 1) * dw + 1)


def _fits(site: ConvSite, row: int, columns: int, lines: int, depth: int, gpu: Gpu) -> bool:
    shared = 4 * depth * (_patch(site, row, lines) + 2 * site.kernel[1] * columns)
    along, threads = _along(row), _threads(row, columns, lines)
    return shared <= gpu.shared and held(site, along, columns, depth, threads) <= gpu.room(threads)


def _threads(row: int, columns: int, lines: int) -> int:
    """Of a block, by hand."""
    return lines * row // _along(row) * columns // VECTOR


def held(site: ConvSite, along: int, columns: int, depth: int, threads: int) -> int:
    """Values that a thread holds: the sums of ``along`` outputs, the pixels that they meet, a vector of weights, and
    its share of the weights of the next row of the kernel."""
    (kh, kw), stride = site.kernel, site.stride[1]
    pixels = (along - 1) * stride + kw if _narrow(site) else along
    coming = VECTOR * -(-kw * depth * columns // (VECTOR * threads)) if kh > 1 else 0
    return VECTOR * along + pixels * _step(site) + VECTOR + coming
