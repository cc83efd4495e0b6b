"""The three steps of a transformed convolution in one kernel, a few tiles at a time.

Input transform, products and output transform of the whole image each pass their spectra through the outer caches.
Where the transformed weights stay in a core's level-2 cache, it is faster to take a few tiles through all three: their
spectra stay there, too. Where the weights stay in the level-3 cache and the spectra of all tiles are many times as
large, all threads together take groups of tiles through all three.
"""

from collections.abc import Callable

import numpy as np

from xframe.lowering import ir
from xframe.lowering.ir import T
from xframe.lowering.padding import Window
from xframe.lowering.stage import SKEW, Epilogue, Stage, pad_to
from xframe.lowering.target import Cpu, Gpu, Target


def pays(weights: np.ndarray, points: int, channels: int, columns: int, cpu: Target) -> bool:
    """Whether ``weights``, of ``channels`` x ``columns`` a frequency, leave a level-2 cache room for spectra, and the
    spectra of all ``points`` would not stay near otherwise. Never on a GPU, whose blocks share no memory so large."""
    if isinstance(cpu, Gpu):
        return False
    spectra = weights.nbytes // (channels * columns) * points * (channels + columns)
    return cpu.stay_near(weights.nbytes) and 4 * spectra > cpu.threads * cpu.cache(2)


def in_groups(weights: np.ndarray, points: int, channels: int, columns: int, cpu: Target) -> int:
    """Groups of tiles for all threads together to take through all three steps, one group after the other; 1: no gain.

    The ``weights`` pass once a group, and products of groups do not fetch them ahead: seen to pay where the spectra of
    all ``points`` are four times the level-3 cache.
    """
    if isinstance(cpu, Gpu):
        return 1
    spectra = weights.nbytes // (channels * columns) * points * (channels + columns)
    if spectra < 4 * cpu.cache(3) or 2 * weights.nbytes > cpu.cache(3):
        return 1
    return -(-4 * spectra // cpu.cache(3))


def fused_stage(
    window: Window,
    batch: int,
    tiles: tuple[int, ...],
    rows: int,
    frequencies: tuple[int, ...],
    weights: np.ndarray,
    columns: int,
    outputs: tuple[int, int, int],
    epilogue: Epilogue,
    cpu: Cpu,
    steps: tuple[Callable, Callable, Callable],
    groups: int = 0,
) -> Stage:
    """The stage of all three ``steps``: a few tiles at a time in each thread, or ``groups`` that all threads share.

    Spectra V and M have the shape (*frequencies, tile * channels + channel).
    ``input(x, V, place, slot, block)`` transforms a vector of channels of the tile at ``place`` (image, row, column);
    ``product(V, U, M, n, loops)`` multiplies n times ``rows`` tiles by all weights, its outer ``loops`` being parallel
    or not; ``output(M, slot, place, b, image, y)`` transforms back. ``outputs``: height, width and channels of the
    result.
    """
    (th, tw), points = tiles, batch * tiles[0] * tiles[1]
    bytes_a_tile = 4 * int(np.prod(frequencies)) * (window.channels + columns) * rows
    together = max(1, cpu.cache(2) // 4 // bytes_a_tile)
    slots = rows * (-(-points // rows // groups) if groups else min(together, -(-points // rows // cpu.threads)))
    transform, product, back = steps

    def spectra():
        v = T.alloc_buffer((*frequencies, slots * window.channels + SKEW), ir.FLOAT)
        return v, T.alloc_buffer((*frequencies, slots * columns + SKEW), ir.FLOAT)

    def part_of(part, held, x, u, b, image, y, loops):
        v, m = held

        def place(slot):
            point = T.min(part * slots + slot, points - 1)  # the last part repeats the last tile
            return point // (th * tw), point // tw % th, point % tw

        with loops(slots, window.channels // cpu.lanes) as (slot, block):
            transform(x, v, place(slot), slot, block)
        product(v, u, m, slots // rows, loops)
        with loops(slots) as (slot,), T.If(part * slots + slot < points), T.Then():
            back(m, slot, place(slot), b, image, y)

    def body(x, u, b, *rest):
        *image, y = rest
        parts = -(-points // slots)
        if groups:
            shared = spectra()
            with T.serial(0, parts) as part:
                part_of(part, shared, x, u, b, image, y, ir.units)
        else:
            with ir.units(parts) as (part,):
                part_of(part, spectra(), x, u, b, image, y, ir.nest)

    shape = (batch, *outputs)
    channels = pad_to(outputs[-1], cpu.lanes)
    args = {"x": window.shape, "u": weights.shape, "b": (channels,), **epilogue.image(shape), "y": shape}
    constants = weights, epilogue.padded(channels)
    return Stage("input_product_output", ir.kernel(args, body), constants, shape)
