"""Writing TIR by hand: parallel straight-line kernels over vectors of channels."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from xframe.lowering import prefetch

FLOAT = "float32"


def kernel(args: dict[str, tuple[int, ...]], body: Callable[..., None]) -> tirx.PrimFunc:
    """A PrimFunc over float32 buffers of these shapes; ``body(*buffers)`` writes it. It counts as scheduled."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            buffers = [T.arg(name, T.buffer(shape, FLOAT)) for name, shape in args.items()]
            with T.sblock("root"):
                T.reads([])
                T.writes([])
                body(*buffers)
        return builder.get()


@contextlib.contextmanager
def units(*extents: int) -> Iterator[tuple[Any, ...]]:
    """One parallel loop over the product of ``extents``; yields the index along each."""
    total = 1
    for n in extents:
        total *= n
    with T.parallel(0, total) as unit:
        indices = []
        for n in reversed(extents):
            indices.append(unit % n)
            unit = unit // n
        yield tuple(reversed(indices))


@contextlib.contextmanager
def nest(*extents: int) -> Iterator[tuple[Any, ...]]:
    """As :func:`units`, but one index after the other."""
    with contextlib.ExitStack() as loops:
        yield tuple(loops.enter_context(T.serial(0, n)) for n in extents)


def vectors(length: int, lanes: int, body: Callable[[Any, int], None]) -> None:
    """``body(offset, width)`` over ``length`` contiguous elements: vectors of ``lanes``, then one of what is left."""
    if length >= lanes:
        with T.serial(0, length // lanes) as i:
            body(i * lanes, lanes)
    if length % lanes:
        body(length // lanes * lanes, length % lanes)


def clip(start: Any, size: int, step: int, low: int, high: int) -> tuple[Any, Any]:
    """First and last + 1 of ``size`` taps, ``step`` apart from ``start`` on, that lie in [low, high)."""
    first = T.max(0, (low - start + step - 1) // step)
    return first, T.max(first, T.min(size, (high - start + step - 1) // step))


def copy(target, at: Callable[[Any], list], value: Callable[[Any], Any], length: int, lanes: int) -> None:
    """``target[at(i)] = value(i)`` for i below ``length``, vectorised."""

    def run(offset, width):
        with T.vectorized(0, width) as v:
            T.buffer_store(target, value(offset + v), at(offset + v))

    vectors(length, lanes, run)


def tile_product(
    rows: int,
    columns: int,
    lanes: int,
    depth: Any,
    left: Callable[[int, Any], Any],
    right: Callable[[Any, Any], Any],
    start: Callable[[int, Any], Any],
    finish: Callable[[int, Any, Any], None],
    ahead: Callable[[Any], list] | None = None,
) -> None:
    """A register tile of ``rows`` x ``columns`` sums: start(i, j) + sum over k of left(i, k) * right(k, j).

    ``finish(i, j, sum)`` takes each vector of sums away. Rows are unrolled, columns in vectors of ``lanes``.
    ``ahead(k)`` lists what to fetch into the near caches at step k; it may lie beyond the end.
    """
    # A buffer a row, and not of scope "local": TVM puts small buffers of the default scope alone on the stack, and of
    # those alone LLVM knows that a prefetch does not touch them, so that they stay in registers.
    sums = [T.alloc_buffer((columns,), FLOAT) for _ in range(rows)]

    def each(body):
        for i in range(rows):
            for j in range(0, columns, lanes):
                with T.vectorized(0, lanes) as v:
                    body(i, j + v)

    each(lambda i, j: T.buffer_store(sums[i], start(i, j), [j]))
    with T.serial(0, depth) as k:
        for value in ahead(k) if ahead else ():
            T.evaluate(prefetch.fetch(value))
        each(lambda i, j: T.buffer_store(sums[i], sums[i][j] + left(i, k) * right(k, j), [j]))
    each(lambda i, j: finish(i, j, sums[i][j]))


def complex_tile_product(
    rows: int,
    columns: int,
    lanes: int,
    depth: int,
    left: Callable[[int, int, Any], Any],
    right: Callable[[int, Any, Any], Any],
    finish: Callable[[int, int, Any, Any], None],
) -> None:
    """As :func:`tile_product` from zero, of complex numbers: the first argument of each is 0 for the real parts, 1 for
    the imaginary ones."""
    sums = [[T.alloc_buffer((columns,), FLOAT) for _ in range(rows)] for _ in (0, 1)]

    def each(body):
        for i in range(rows):
            for part in (0, 1):
                for j in range(0, columns, lanes):
                    with T.vectorized(0, lanes) as v:
                        body(part, i, j + v)

    def step(part, i, j, other):
        product = left(other, i, k) * right((part + other) % 2, k, j)
        total = sums[part][i]
        T.buffer_store(total, total[j] - product if part < other else total[j] + product, [j])

    each(lambda part, i, j: T.buffer_store(sums[part][i], zero(), [j]))
    with T.serial(0, depth) as k:
        for other in (0, 1):
            each(lambda part, i, j, other=other: step(part, i, j, other))
    each(lambda part, i, j: finish(part, i, j, sums[part][i][j]))


class Scratch:
    """Names for the vectors of straight-line code: rows of a local array, which LLVM keeps in registers where it can.

    Make it outside the vectorised loop, use it inside: ``keep = scratch.lane(v); x = keep(a + b)``.
    """

    def __init__(self, rows: int, width: int):
        self.buffer = T.alloc_buffer((rows, width), FLOAT, scope="local")
        self.rows = rows

    def lane(self, v) -> Callable[[Any], Any]:
        free = iter(range(self.rows))

        def keep(value):
            row = next(free)
            T.buffer_store(self.buffer, value, [row, v])
            return self.buffer[row, v]

        return keep


def zero():
    return T.float32(0)
