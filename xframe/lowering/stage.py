"""A lowering is a chain of stages, and most of a stage's time is one register-tiled product."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import s_tir, te, tirx

from xframe.lowering import prefetch
from xframe.lowering.knobs import Knobs, part_sizes
from xframe.lowering.target import Gpu, Target
from xframe.types import ConvSite

REDUCTION = 2  # tvm.tirx.IterVar.CommReduce
#: Register tiles that are worth a try for one product.
ALTERNATIVES = 8
#: float32 values, a cache line, by which the spectra of a frequency are longer than they need be. Without, a tile's
#: values of all frequencies lie at multiples of a large power of two, and share a few sets of each cache.
SKEW = 16
#: Steps of a reduction that may stand one after the other.
UNROLLED = (1, 2, 4)


@dataclass(frozen=True)
class Stage:
    """One PrimFunc of a lowering: ``func(previous output, *constants) -> output of `shape```.

    The last one takes the image that its :class:`Epilogue` adds, if it adds one, after the constants.

    ``func`` is the computation and stays what it is; ``schedule`` only reorders it, with knobs to turn
    (:mod:`xframe.lowering.knobs`). None: ``func`` is straight-line code that was written in its order. ``tiles``: the
    register tiles with which the lowering could define it, the best guess first. ``trace``: a recorded schedule, as
    JSON, in the place of ``schedule``.
    """

    role: str
    func: tirx.PrimFunc
    constants: tuple[np.ndarray, ...]
    shape: tuple[int, ...]
    schedule: Callable[[s_tir.Schedule, Knobs], None] | None = None
    tiles: tuple["Tile", ...] = ()
    trace: str | None = None

    def scheduled(self) -> tirx.PrimFunc:
        """The kernel: as recorded if there is a record, else with the hand-written choices."""
        if self.schedule is None:
            return self.func
        if self.trace is None:
            sch, _ = self.templated()
        else:
            sch = replayed(self.func, self.trace)
        return prefetch.inserted(sch.mod["main"])

    def templated(self, chosen: Mapping[str, int] | None = None) -> tuple[s_tir.Schedule, Knobs]:
        """The template with ``chosen`` knobs, and what they were; prefetches are still marks in it.

        Raises ValueError where there is no template.
        """
        if self.schedule is None:
            raise ValueError(f"the {self.role} is straight-line code: it has no template")
        sch = s_tir.Schedule(self.func)
        knobs = Knobs(sch, chosen)
        self.schedule(sch, knobs)
        return sch, knobs


def replayed(func: tirx.PrimFunc, trace: str) -> s_tir.Schedule:
    """``func`` under a recorded schedule, JSON.

    Raises
    ------
    ValueError
        The schedule changes the layout of what the function is called with.
    Exception
        What TVM raises where it does not apply.
    """
    sch = s_tir.Schedule(func)
    s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), sch)
    now = sch.mod["main"].params
    if not all(tvm_ffi.structural_equal(a.ty, b.ty) for a, b in zip(now, func.params, strict=True)):
        raise ValueError("it changes the layout of what the kernel is called with")
    return sch


@dataclass(frozen=True)
class Epilogue:
    """What a convolution does with its sums before it writes them.

    ``bias`` has one value an output channel; ``residual``: an image of the output's shape is added then; ``relu`` as
    in :func:`activate`.
    """

    bias: np.ndarray
    relu: float | None = None
    residual: bool = False

    def padded(self, channels: int) -> np.ndarray:
        """The bias of so many channels, zero where there are none."""
        return np.pad(self.bias, (0, channels - len(self.bias)))

    def image(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The argument that it needs: ``{"r": shape}``, or none."""
        return {"r": shape} if self.residual else {}

    def placeholders(self, shape: tuple[int, ...]) -> list[te.Tensor]:
        """The same argument for a tensor expression, in a list."""
        return [te.placeholder(s, name=name) for name, s in self.image(shape).items()]

    def __call__(self, total, bias, image, *at):
        """``image`` is a list of that argument, which is read at the indices ``at``; empty where there is none."""
        return activate(total + bias + image[0][at] if image else total + bias, self.relu)


@dataclass(frozen=True)
class Tile:
    """A tile of ``rows`` x ``vectors`` accumulators (``columns`` floats wide): in the registers of a CPU's thread, or
    of a block of a GPU's threads, whose lanes are one."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @staticmethod
    def choose(rows: int, columns: int, cpu: Target, parts: int = 1) -> "Tile":
        """The first of :meth:`ranked`."""
        return Tile.ranked(rows, columns, cpu, parts)[0]

    @staticmethod
    def ranked(rows: int, columns: int, cpu: Target, parts: int = 1, batch: int = 1) -> tuple["Tile", ...]:
        """Tiles for ``batch`` products of ``rows`` x ``columns``, :data:`ALTERNATIVES` at most, best use of the machine
        first. On a GPU the tile of a block of threads: see ``Gpu.tiles``.

        On a CPU they must fit the registers: ``parts * vectors * (rows + 1) + 1``, ``parts`` being 2 for complex
        products. Of those, the ones with the most useful multiply-adds a cycle, given two FMAs and two loads a cycle
        and what the last, partly filled tiles waste.
        """
        if isinstance(cpu, Gpu):
            return tuple(Tile(r, c, cpu.lanes) for r, c in cpu.tiles(rows, columns, parts, batch)[:ALTERNATIVES])
        scores: dict[Tile, float] = {}
        for vectors in range(1, 9):
            for r in range(1, 17):
                if parts * vectors * (r + 1) + 1 > cpu.registers:
                    continue
                filled = (
                    rows / (-(-rows // r) * r) * columns / (-(-columns // (vectors * cpu.lanes)) * vectors * cpu.lanes)
                )
                sums, loads = parts * parts * r * vectors, parts * (vectors + r)
                # half cycles of one step: FMAs, loads or the latency of an FMA, whichever is longest, and the loop;
                # of equals, the tile with fewer loads reads less from the caches
                step = max(sums, 1.25 * loads, 8) + 2 + loads / 8
                scores[Tile(r, vectors, cpu.lanes)] = filled * sums / step
        return tuple(sorted(scores, key=lambda tile: -scores[tile])[:ALTERNATIVES])


def pad_to(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def tile_product(sch: s_tir.Schedule, product, epilogue, tile: Tile, row: int, column: int, unroll=(), order=None):
    """Give the reduction block ``product`` its register tile and fuse ``epilogue``, its consumer, into it.

    ``row`` and ``column`` are the positions of the tiled loops among those of the block, ``unroll`` those of loops that
    go unrolled inside the reduction. Extents of row and column must be multiples of the tile: products compute into
    padded temporaries, so that no predicate stands in the inner loop; the epilogue drops what is too much.
    ``order(column tile, *other outer loops)`` puts the loops around the row tile in order (default: column tile last).

    Returns (outer loops, row tile loop, first reduction loop); end with :func:`clear_product`.
    """
    loops = sch.get_loops(product)
    kinds = [int(v.iter_type) for v in sch.get(product).iter_vars]
    inner = [loops[i] for i in unroll]
    outer = [x for i, x in enumerate(loops) if kinds[i] != REDUCTION and i not in (row, column, *unroll)]
    reduction = [x for i, x in enumerate(loops) if kinds[i] == REDUCTION and i not in unroll]
    row_tile, r = sch.split(loops[row], [None, tile.rows])
    column_tile, c = sch.split(loops[column], [None, tile.columns])
    vector, lane = sch.split(c, [None, tile.lanes])
    around = order(column_tile, *outer) if order else [*outer, column_tile]
    sch.reorder(*around, row_tile, *reduction, r, *inner, vector, lane)
    sch.set_scope(product, 0, "local")
    sch.reverse_compute_at(epilogue, row_tile, preserve_unit_loops=True)
    sch.split(sch.get_loops(epilogue)[-1], [None, tile.lanes])
    depth = len(around) + 1
    _innermost(sch, epilogue, depth)
    _innermost(sch, product, depth + len(reduction))
    return around, row_tile, reduction[0]


def shared_rows(sch: s_tir.Schedule, knobs: Knobs, around: list, row_tile, size: int, tiles: int, cpu: Target):
    """Threads share the loops ``around`` and parts of ``size`` of ``tiles`` row tiles; the knob ``rows`` is the size.

    The part comes before the last of ``around``, the column tile: the rows of a part stay near while all weights pass.
    Returns the row tile loop.
    """
    *outer, column = around
    part, row = sch.split(row_tile, [None, knobs("rows", part_sizes(tiles, cpu.threads), size)])
    sch.reorder(*outer, part, column, row)
    sch.parallel(sch.fuse(*outer, part, column))
    return row


def clear_product(sch: s_tir.Schedule, knobs: Knobs, product, reduction):
    """Split off the zeroing of the accumulators at the ``reduction`` loop. The last step: no block moves after it.

    The knob ``unroll``: steps of the innermost loop of the reduction that stand one after the other.
    """
    loops = sch.get_loops(product)
    depth = [sch.get(x) for x in loops].index(sch.get(reduction))
    last = max(i for i, x in enumerate(loops) if sch.get(x).kind == tirx.ForKind.SERIAL)
    extent = int(sch.get(loops[last]).extent)
    again, step = sch.split(loops[last], [None, knobs("unroll", [u for u in UNROLLED if extent % u == 0], 1)])
    sch.unroll(step)
    reduction = again if last == depth else reduction
    _innermost(sch, sch.decompose_reduction(product, reduction), depth)


def _innermost(sch, block, depth):
    """Vectorise the innermost loop of ``block`` and unroll those from ``depth`` on."""
    *unrolled, lane = sch.get_loops(block)[depth:]
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)


def kernel_runs(site: ConvSite) -> tuple[int, int]:
    """(taps, run): a row of the kernel as that many runs of contiguous values of an NHWC image.

    The whole row is one run, unless groups or dilation break it up. Long runs make long inner loops.
    """
    per_group, width = site.in_channels // site.groups, site.kernel[1]
    return (1, width * per_group) if site.groups == 1 and site.dilation[1] == 1 else (width, per_group)


def activate(value, relu: float | None):
    """The epilogue's activation: none, or ReLU up to ``relu`` (infinity: the plain one, 6: ReLU6)."""
    if relu is None:
        return value
    value = te.max(value, tirx.const(0, "float32"))
    return value if math.isinf(relu) else te.min(value, tirx.const(relu, "float32"))


def packed(weight: np.ndarray, columns: int, block: int) -> np.ndarray:
    """(groups, *reduction, out) -> (groups, out/block, *reduction, block): a column tile's weights in reading order.

    ``out`` is padded with zeros to ``columns``.
    """
    weight = np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, columns - weight.shape[-1])])
    split = weight.reshape(*weight.shape[:-1], columns // block, block)
    return np.ascontiguousarray(np.moveaxis(split, -2, 1), dtype=np.float32)


def transformed(matrix: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(K, in, out) float32: ``matrix`` (K, kernel height * width) applied to each kernel of an OIHW ``weight``.

    In float64, a part of the input channels at a time: the result can be many times the weight.
    """
    o, i, *_ = weight.shape
    taps = weight.reshape(o, i, -1).transpose(2, 1, 0)
    out = np.empty((len(matrix), i, o), dtype=np.float32)
    step = max(1, (1 << 22) // (len(matrix) * o))
    for start in range(0, i, step):
        part = slice(start, start + step)
        out[:, part] = np.tensordot(matrix, taps[:, part].astype(np.float64), axes=1)
    return out
