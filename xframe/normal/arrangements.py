"""The same numbers in another order: transposed, flipped, reordered. Views wherever numpy can make one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations, permutations

import numpy as np

#: Elements that decide which arrangement is looked at in full.
SAMPLE = 4096
#: Axes of an image, as they are called.
IMAGE = "CHW"


@dataclass(frozen=True)
class Arrangement:
    """``first`` and ``second`` have one shape and agree element by element if the arrangement is the right one.

    ``words`` follow "equal up to"; ``{a}`` and ``{b}`` in them are the subjects' names.
    """

    words: str
    first: np.ndarray
    second: np.ndarray
    kind: str = ""


def find(a: np.ndarray, b: np.ndarray, *, spatial: bool, image: tuple[int, ...] = ()) -> Arrangement | None:
    """The arrangement in which two arrays are most alike, if in one they clearly are and as they stand they are not.

    Parameters
    ----------
    a, b
        Two weights, [out, in, ...].
    spatial
        Whether the axes from the third on are those of an image: a convolution's.
    image
        (channels, height, width) that were flattened to the inputs of a product, where that is known.
    """
    if not _same_ends(a, b):
        return None
    as_is = correlation(a, b) if a.shape == b.shape else 0.0
    best, most = None, 0.9
    for candidate in _candidates(a, b, spatial, image):
        likeness = correlation(candidate.first, candidate.second)
        if likeness > most and 1 - likeness < 0.1 * (1 - as_is):
            best, most = candidate, likeness
            if likeness == 1.0:
                return best
    return best or _permuted(a, b)


def _same_ends(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the largest and the smallest element are in one proportion: no order, factor or rounding changes it."""
    ends = [(float(v.max()), float(v.min())) for v in (a, b)]
    high, low = ends[0]
    return any(abs(high * y - low * x) <= 0.02 * (abs(high * y) + abs(low * x)) for x, y in (ends[1], ends[1][::-1]))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Size of the correlation of two arrays of one shape, from at most ``SAMPLE`` elements; 1 only if those are equal
    up to a factor and a constant."""
    x, y = (v - v.mean() if v.size else v for v in sample(a, b))
    size = np.sqrt(np.square(x).sum() * np.square(y).sum())
    if not size > 0 or not np.isfinite(size):
        return 0.0
    return float(min(abs((x * y).sum() / size), 1.0)) if not np.array_equal(x, y) else 1.0


def sample(a: np.ndarray, b: np.ndarray, count: int = SAMPLE) -> tuple[np.ndarray, np.ndarray]:
    """The same elements of both, in float64: all of them, or ``count`` at random."""
    if a.size <= count:
        return a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    rng = np.random.default_rng(0)
    places = tuple(rng.integers(0, n, count) for n in a.shape)
    return a[places].astype(np.float64), b[places].astype(np.float64)


def _candidates(a: np.ndarray, b: np.ndarray, spatial: bool, image: tuple[int, ...]) -> Iterator[Arrangement]:
    if a.shape == b.shape:
        yield from _images(a, b, image)
        if a.ndim > 1:
            colours = ": RGB against BGR" if a.shape[1] == 3 else ""
            yield Arrangement(f"the order of their input channels, which is reversed{colours}", a, b[:, ::-1])
            yield Arrangement("the order of their outputs, which is reversed", a, b[::-1])
    if sorted(a.shape) != sorted(b.shape) or not 2 <= a.ndim <= 5:
        return
    for axes in permutations(range(a.ndim)):
        view = b.transpose(axes)
        if view.shape != a.shape:
            continue
        straight = axes == tuple(range(a.ndim))
        if not straight:
            yield Arrangement(_transposed(axes, spatial), a, view)
        kernel = tuple(range(2, a.ndim)) if spatial else ()
        for flipped in (c for n in range(len(kernel), 0, -1) for c in combinations(kernel, n)):
            words = _flipped(flipped, kernel)
            words = words if straight else f"{_transposed(axes, spatial)}, and {words}"
            yield Arrangement(words, a, np.flip(view, flipped))


def _images(a: np.ndarray, b: np.ndarray, image: tuple[int, ...]) -> Iterator[Arrangement]:
    """Products whose inputs are an image's elements in another order, on either side."""
    if a.ndim != 2 or len(image) != 3 or np.prod(image) != a.shape[1]:
        return
    for axes in list(permutations(range(3)))[1:]:
        order = "".join(IMAGE[i] for i in axes)
        split = (len(a), *(image[i] for i in axes))
        back = (0, *(1 + axes.index(i) for i in range(3)))
        whole = (len(a), *image)
        words = (
            "the order of their inputs, {0} in {{a}} against {1} in {{b}}: the image was flattened in another layout"
        )
        other = b.reshape(split).transpose(back)
        yield Arrangement(words.format(IMAGE, order), a.reshape(whole), other, "flatten order")
        other = a.reshape(split).transpose(back)
        yield Arrangement(words.format(order, IMAGE), other, b.reshape(whole), "flatten order")


def _transposed(axes: tuple[int, ...], spatial: bool) -> str:
    if not spatial or axes == (1, 0, *range(2, len(axes))):
        return "a transposition of inputs and outputs" if len(axes) == 2 or spatial else f"a transposition by {axes}"
    if axes[:2] == (0, 1):
        return "a transposition of height and width" if len(axes) == 4 else "a transposition inside of the kernels"
    letters = "OIHW" if len(axes) == 4 else "OIW" if len(axes) == 3 else "OIDHW"
    order = "".join(letters[axes.index(i)] for i in range(len(axes)))
    return f"the order of their axes, {letters} in {{a}} against {order} in {{b}}"


def _flipped(flipped: tuple[int, ...], kernel: tuple[int, ...]) -> str:
    if flipped == kernel:
        return "kernels turned by 180 degrees: a convolution in the one, a cross-correlation in the other"
    names = ("height", "width") if len(kernel) == 2 else ("depth", "height", "width")
    return f"kernels mirrored along their {' and '.join(names[i - 2] for i in flipped)}"


def _permuted(a: np.ndarray, b: np.ndarray) -> Arrangement | None:
    """Whole outputs, or whole inputs, in another order: found by the hashes of the slices, so only where they are equal
    to the last bit."""
    if a.shape != b.shape or not a.ndim:
        return None
    for axis, what in ((0, "outputs" if a.ndim > 1 else "elements"), (1, "inputs")):
        if axis >= a.ndim or not _same_elements(a, b, axis):
            continue
        places = {digest: i for i, digest in enumerate(_slices(b, axis))}
        order = [places.get(digest, -1) for digest in _slices(a, axis)]
        if len(set(order)) == len(order) and -1 not in order and order != list(range(len(order))):
            words = f"the order of their {what}: {_order(order, what[:-1])}"
            return Arrangement(words, a, np.take(b, order, axis=axis))
    return None


def _same_elements(a: np.ndarray, b: np.ndarray, axis: int) -> bool:
    """Whether one element of each slice is in both the same, in any order: cheap, and false for most arrays."""
    first, second = (
        v[tuple(slice(None) if i == axis else 0 for i in range(v.ndim))] if v.size else v.ravel() for v in (a, b)
    )
    return bool(np.array_equal(np.sort(first), np.sort(second)))


def _slices(array: np.ndarray, axis: int) -> Iterator[bytes]:
    for i in range(array.shape[axis]):
        yield blake2b(np.ascontiguousarray(np.take(array, i, axis=axis) + 0).tobytes(), digest_size=16).digest()


def _order(order: list[int], what: str) -> str:
    """A permutation in words: by blocks (the gates of a recurrent cell, say), by interleaving, or its beginning."""
    count, identity = len(order), np.arange(len(order))
    for blocks in range(2, 9):
        size = count // blocks
        if size > 1 and not count % blocks:
            grid = np.array(order).reshape(blocks, size)
            if (grid == grid[:, :1] + np.arange(size)).all() and not (grid[:, 0] % size).any():
                moved = ", ".join(str(i) for i in grid[:, 0] // size)
                return f"the {blocks} blocks of {size} of {{a}} are blocks {moved} of {{b}}"
    for groups in range(2, count // 2 + 1):
        if not count % groups and (identity.reshape(groups, -1).T.ravel() == order).all():
            return f"{{b}} has them interleaved by {groups} against {{a}}"
    moved_at = int(np.flatnonzero(np.array(order) != identity)[0])
    moved_count = int((np.array(order) != identity).sum())
    return (
        f"{moved_count} of {count} are elsewhere, the first is {what} {moved_at} of {{a}}, {order[moved_at]} of {{b}}"
    )
