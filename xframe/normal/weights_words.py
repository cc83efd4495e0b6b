"""What two weights have to do with one another, in words: equal up to an order, a factor, a rounding, or how far apart.

Large weights are views of files. A hypothesis is tried on a sample; only one that holds there is verified, block by
block, on all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from xframe.normal import arrangements

Array = np.ndarray
#: Elements that are converted to float64 at a time.
BLOCK = 1 << 21
#: Units in the last place of float32 by which two ways of computing the same weight may part.
CLOSE = 4
#: Rounding of a folded bias or weight, relative to the largest: its parts may be larger than the whole.
FOLDED = 2.0**-18
#: A factor or constant that explains a difference leaves less than this of the largest element.
EXPLAINED = 2.0**-20


@dataclass(frozen=True)
class Finding:
    """``words`` follow the weights' name: "are equal up to ...". ``{a}`` and ``{b}`` in them stand for the subjects."""

    words: str
    kind: str = ""
    harmless: bool = False


def diagnose(
    a: Array, b: Array, *, spatial: bool = False, image: tuple[int, ...] = (), rows: str = "rows", folded: bool = False
) -> Finding:
    """How two weights differ.

    Parameters
    ----------
    a, b
        Weights with another hash, [out, in, ...] or [elements].
    spatial
        Whether the axes from the third on are those of an image: a convolution's.
    image
        (channels, height, width) that were flattened to the inputs of a product, where that is known.
    rows
        What the first axis counts: "filters", "outputs".
    folded
        Whether one of them was computed from several tensors of its file: batch normalisation, a scale.
    """
    if not a.size or not b.size:
        return Finding(f"are of shape {a.shape} in {{a}}, and {b.shape} in {{b}}")
    with np.errstate(all="ignore"):  # what is not finite is said in words
        if a.shape == b.shape and (found := _related(a, b, folded)) is not None:
            return found
        if (arranged := arrangements.find(a, b, spatial=spatial, image=image)) is not None:
            found = _related(arranged.first, arranged.second, folded) or _distance(arranged.first, arranged.second)
            words = f"are equal up to {arranged.words}"
            words += "" if found.words == "are equal" else f"; beyond that they {found.words}"
            return Finding(words, arranged.kind)
        if a.shape != b.shape:
            return Finding(f"are of shape {a.shape} in {{a}}, and {b.shape} in {{b}}")
        return _graded(a, b) or _by_row(a, b, rows) or _some(a, b, rows) or _distance(a, b)


def _related(a: Array, b: Array, folded: bool) -> Finding | None:
    """Element by element the same up to one simple rule."""
    largest = float(np.abs(arrangements.sample(a, b)[0]).max())
    if _holds(a, b, lambda x, y: x == y):
        if a.dtype == b.dtype:
            return Finding("are equal", harmless=True)
        return Finding(f"are equal, but of type {a.dtype} in {{a}} and {b.dtype} in {{b}}", "precision")
    if a.dtype.kind not in "fV" or b.dtype.kind not in "fV":
        return None
    if _holds(a, b, lambda x, y: np.abs(x - y) <= CLOSE * _ulp(x, y)):
        worst = max(float((np.abs(x - y) / _ulp(x, y)).max()) for x, y in _blocks(a, b))
        words = f"are equal up to float32 rounding, at most {max(round(worst), 1)} units in the last place"
        return Finding(words + (": batch normalisation folded in another order" if folded else ""), harmless=True)
    if folded and _holds(a, b, lambda x, y: np.abs(x - y) <= FOLDED * largest):
        return Finding("are equal up to the rounding of what was folded into them", harmless=True)
    if _holds(a, b, lambda x, y: x == -y):
        return Finding("are equal up to their sign: those of {b} are negated")
    for name, rounding in (("float16", _half), ("bfloat16", _brain), ("bfloat16 (truncated)", _truncated)):
        if _holds(a, b, lambda x, y, r=rounding: r(x) == y):  # type: ignore[misc]
            return Finding(f"differ by {name}: in {{b}} every one is the {name} nearest to that of {{a}}", "precision")
        if _holds(a, b, lambda x, y, r=rounding: x == r(y)):  # type: ignore[misc]
            return Finding(f"differ by {name}: in {{a}} every one is the {name} nearest to that of {{b}}", "precision")
    return _fitted(a, b, largest)


def _fitted(a: Array, b: Array, largest: float) -> Finding | None:
    """A common factor, or a common constant."""
    x, y = arrangements.sample(a, b)
    if x.size < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()) or not y.any() or not x.any():
        return None
    factor = float((x * y).sum() / np.square(y).sum())
    if _holds(a, b, lambda p, q: np.abs(p - factor * q) <= EXPLAINED * np.abs(p) + 1e-9 * largest):
        return Finding(f"are equal up to a factor: those of {{a}} are {_factor(factor)} times those of {{b}}")
    offset = float(np.mean(x - y))
    if _holds(a, b, lambda p, q: np.abs(p - q - offset) <= EXPLAINED * max(largest, abs(offset))):
        return Finding(f"are equal up to a constant: those of {{a}} are those of {{b}} plus {offset:.6g}")
    return None


def _graded(a: Array, b: Array) -> Finding | None:
    """Few levels in equal steps, where the other has many: quantised."""
    for one, array, other in (("{a}", a, b), ("{b}", b, a)):
        rows = array.reshape(len(array), -1) if array.ndim > 1 else array[None]
        few = rows[np.linspace(0, len(rows) - 1, min(len(rows), 64)).astype(int)].astype(np.float64)
        if min(few.shape) and few.size >= 64 and np.isfinite(few).all():
            whole = _step(few.ravel())
            steps = [_step(row) for row in few] if not whole and few.shape[1] >= 32 and _step(few[0]) else [0.0]
            step = whole or (max(steps) if all(steps) else 0.0)
            if not step or _step(arrangements.sample(other, other)[0]):
                continue
            near = np.mean([(np.abs(x - y) <= 0.51 * step).mean() for x, y in [arrangements.sample(a, b)]])
            if near >= 0.98:
                count = len(np.unique(few if whole else few[int(np.argmax(steps))]))
                size = "int8" if count > 16 else "int4"
                where = f"only {count} different values" if whole else f"at most {count} different values in each row"
                amount = f"in steps of {step:.3g}" if whole else f"in steps of up to {step:.3g}"
                return Finding(f"are quantised in {one}: there are {where}, {amount}: {size}", "precision")
    return None


def _step(values: Array) -> float:
    """The step of the grid that all values lie on, 0.0 if there is none of at most 256 steps."""
    levels = np.unique(values)
    if len(levels) < 2 or len(levels) > 256:
        return 0.0
    step = float(np.diff(levels).min())
    counts = (levels - levels[0]) / step
    span = counts[-1]
    return step if span <= 255.5 and np.abs(counts - np.round(counts)).max() <= 1e-3 * max(span, 1) / 8 else 0.0


def _by_row(a: Array, b: Array, rows: str) -> Finding | None:
    """Every row of the one is that of the other times a factor of its own: folded batch normalisations that differ."""
    if a.ndim < 2 or a[0].size < 4 or len(a) < 2 or a.dtype.kind != "f" or b.dtype.kind != "f":
        return None
    factors: list[float] = []
    for x, y in _rows(a, b):
        energy = np.square(y).sum(axis=1)
        factor = np.divide((x * y).sum(axis=1), energy, out=np.zeros(len(x)), where=energy > 0)
        if not (np.abs(x - factor[:, None] * y) <= 1e-5 * np.abs(x).max(axis=1, keepdims=True)).all():
            return None
        factors += factor.tolist()
    low, high = min(factors), max(factors)
    return Finding(
        f"are equal up to a factor for each of the {len(a)} {rows}, from {low:.6g} to {high:.6g}: a scale was folded "
        "into them that differs, as with another epsilon or other statistics of a batch normalisation"
    )


def _some(a: Array, b: Array, rows: str) -> Finding | None:
    """A few rows, or a few elements, differ and the rest is equal."""
    first, touched, count, most, at = -1, 0, 0, 0.0, 0
    seen = 0
    for x, y in _rows(a, b):
        apart = x != y
        hit = np.flatnonzero(apart.any(axis=1))
        if len(hit) and first < 0:
            first = seen + int(hit[0])
        touched, count, seen = touched + len(hit), count + int(apart.sum()), seen + len(x)
        gap = np.nan_to_num(np.abs(x - y), nan=np.inf)
        if gap.max() > most:
            most, at = float(gap.max()), seen - len(x) + int(np.argmax(gap.max(axis=1)))
    noun = rows if a.ndim > 1 else "elements"
    if touched and touched <= len(a) // 2:
        which = f"the first is {noun[:-1]} {first}"
        return Finding(f"differ in {touched} of {len(a)} {noun}: {which}, the largest difference {most:.3g} in {at}")
    if 0 < count <= a.size // 100:
        return Finding(f"differ in {count} of {a.size} elements, by up to {most:.3g}")
    return None


def _distance(a: Array, b: Array) -> Finding:
    """No simple rule: how far apart they are as a whole, and where the most."""
    square = energy = other = product = 0.0
    worst, shown, wild = -1.0, "", [0, 0]
    seen = 0
    for x, y in _blocks(a, b):
        wild = [wild[0] + int((~np.isfinite(x)).sum()), wild[1] + int((~np.isfinite(y)).sum())]
        gap = np.abs(x - y)
        square, energy = square + float(np.square(gap).sum()), energy + float(np.square(x).sum())
        other, product = other + float(np.square(y).sum()), product + float((x * y).sum())
        i = int(np.argmax(np.nan_to_num(gap, nan=np.inf)))
        if gap[i] > worst:
            place = [int(n) for n in np.unravel_index(seen + i, a.shape)]
            worst, shown = float(gap[i]), f"{x[i]:.6g} in {{a}} and {y[i]:.6g} in {{b}} at {place}"
        seen += len(x)
    for name, count in zip(("{a}", "{b}"), wild, strict=True):
        if count:
            return Finding(f"are not finite in {name}: {count} of {a.size} elements are NaN or infinite")
    relative = f"{np.sqrt(square / energy):.2g} of their size" if energy else "they are zero in {a}"
    cosine = f", cosine {product / np.sqrt(energy * other):.6f}" if energy and other else ""
    return Finding(f"differ: root mean square {relative}{cosine}; most at the element that is {shown}")


def _holds(a: Array, b: Array, rule: Callable[[Array, Array], Array]) -> bool:
    """Whether a rule holds for all elements; the sample is asked first."""
    return bool(rule(*arrangements.sample(a, b)).all()) and all(bool(rule(x, y).all()) for x, y in _blocks(a, b))


def _blocks(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Both in order of their elements, in pieces of one axis and of float64."""
    for x, y in _rows(a, b):
        yield x.ravel(), y.ravel()


def _rows(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Whole rows of both at a time, [rows, elements] of float64."""
    a, b = (v[None] if not v.ndim else v for v in (a, b))
    step = max(1, BLOCK // max(a[0].size, 1))
    for start in range(0, len(a), step):
        x, y = (v[start : start + step].astype(np.float64) for v in (a, b))
        yield x.reshape(len(x), -1), y.reshape(len(y), -1)


def _ulp(x: Array, y: Array) -> Array:
    return np.spacing(np.maximum(np.abs(x), np.abs(y)).astype(np.float32)).astype(np.float64)


def _half(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


def _brain(x: Array) -> Array:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _truncated(x: Array) -> Array:
    return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _factor(factor: float) -> str:
    """A factor as people write it: 0.00392157 (1/255)."""
    simple = Fraction(factor).limit_denominator(4096)
    plain = f"{factor:.6g}"
    close = simple and abs(float(simple) / factor - 1) < 1e-6 and simple.denominator > 1
    return f"{plain} ({simple})" if close and simple.numerator < 10 else plain


def renamed(finding: Finding, names: tuple[str, str]) -> Finding:
    """With the subjects' names in its words."""
    return replace(finding, words=finding.words.replace("{a}", names[0]).replace("{b}", names[1]))
