"""Straight-line code for multiplying by a constant matrix.

The transforms of Winograd and FFT convolutions are products with small constant matrices whose rows or columns come in
mirrored pairs. :func:`product` folds those pairs, again and again, and so finds the sums that the mirrored entries
share: the usual even/odd halving of Winograd's input transform and of the real DFT both come out of it, for any size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Entries closer to 0 than this are 0: far below a float32 rounding step of a sum with entries of order 1.
ZERO = 1e-10


def product(matrix: np.ndarray, xs: Sequence[Any], keep: Callable[[Any], Any]) -> list[Any]:
    """The expressions ``matrix @ xs``, sharing common sums.

    Parameters
    ----------
    matrix : float64, (rows, columns)
    xs : one operand a column, anything with ``+``, ``-`` and ``*`` by a float; None is a known zero.
    keep : names an expression that is used more than once (stores it and returns how to read it).

    Returns
    -------
    One expression a row; None where the result is known to be zero.
    """
    matrix = np.where(np.abs(matrix) < ZERO, 0.0, matrix)
    used = [j for j in range(matrix.shape[1]) if matrix[:, j].any()]
    matrix, xs = matrix[:, used], [xs[j] for j in used]
    columns, rows = _mirror(matrix), _mirror(matrix.T)
    dense = np.count_nonzero(matrix)
    by_columns = _cost(matrix, columns) if columns else dense
    by_rows = _cost(matrix.T, rows) if rows else dense
    if columns and by_columns < dense and by_columns <= by_rows:
        return _fold_columns(matrix, xs, columns, keep)
    if rows and by_rows < dense:
        return _fold_rows(matrix, xs, rows, keep)
    return [_dot(row, xs) for row in matrix]


def _mirror(m: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray] | None:
    """Pairs of columns such that in each row the two entries are equal, or in each row opposite; and which rows differ.

    Returns (pairs, odd) with ``odd[r]`` True where row r is antisymmetric in every pair; None when there is no pair.
    """
    n = m.shape[1]
    size = np.abs(m)
    near = np.isclose(size[:, :, None], size[:, None, :]).all(axis=0)
    alike = [[q for q in range(n) if q != p and near[p, q]] for p in range(n)]
    best = None
    first = next((p for p in range(n) if alike[p]), None)
    if first is None:
        return None
    for partner in alike[first]:
        sign = np.sign(m[:, first] * m[:, partner])  # 0: this pair says nothing of the row
        pairs, free = [(first, partner)], [j for j in range(n) if j not in (first, partner)]
        while free:
            p = free.pop(0)
            for q in alike[p]:
                here = np.sign(m[:, p] * m[:, q])
                if q in free and not ((sign * here) < 0).any():
                    sign = np.where(sign == 0, here, sign)
                    pairs.append((p, q))
                    free.remove(q)
                    break
        odd = sign < 0
        if odd.any() and not odd.all() and (best is None or len(pairs) > len(best[0])):
            best = pairs, odd
    return best


def _parts(m, fold):
    pairs, odd = fold
    left = [p for p, _ in pairs]
    alone = [j for j in range(m.shape[1]) if all(j not in pair for pair in pairs)]
    return left, alone, m[~odd][:, left + alone], m[odd][:, left + alone]


def _cost(m, fold) -> int:
    """Multiply-adds after folding once."""
    left, _, even, odd = _parts(m, fold)
    return 2 * len(left) + int(np.count_nonzero(even)) + int(np.count_nonzero(odd))


def _fold_columns(m, xs, fold, keep):
    """Pairs (p, q) of operands become p+q for the symmetric rows and p-q for the others: half the products."""
    pairs, odd = fold
    _, alone, even_part, odd_part = _parts(m, fold)
    rest = [xs[j] for j in alone]
    sums = [_keep(keep, _add(xs[p], xs[q])) for p, q in pairs] + rest
    differences = [_keep(keep, _sub(xs[p], xs[q])) for p, q in pairs] + rest
    out: list[Any] = [None] * len(m)
    for rows, part, operands in ((~odd, even_part, sums), (odd, odd_part, differences)):
        for r, y in zip(np.flatnonzero(rows), product(part, operands, keep), strict=True):
            out[r] = y
    return out


def _fold_rows(m, xs, fold, keep):
    """Pairs of results share an even and an odd half: one is their sum, the other their difference."""
    pairs, odd = fold
    left, alone, _, _ = _parts(m.T, fold)
    even, uneven = [[xs[j] for j in np.flatnonzero(c)] for c in (~odd, odd)]
    halves = product(m[left][:, ~odd], even, keep), product(m[left][:, odd], uneven, keep)
    out: list[Any] = [None] * len(m)
    for (p, q), e, o in zip(pairs, *halves, strict=True):
        e, o = _keep(keep, e), _keep(keep, o)
        out[p], out[q] = _add(e, o), _sub(e, o)
    for r, y in zip(alone, product(m[alone], xs, keep), strict=True):
        out[r] = y
    return out


def _dot(row, xs):
    """The sum of the row's terms, positive ones first so that it need not start with a negation."""
    total = None
    for c, x in sorted(((c, x) for c, x in zip(row, xs, strict=True) if c and x is not None), key=lambda t: -t[0]):
        term = x if abs(abs(c) - 1) < ZERO else x * float(abs(c))
        total = _add(total, term) if c > 0 else _sub(total, term)
    return total


def _keep(keep, x):
    return None if x is None else keep(x)


def _add(a, b):
    return b if a is None else a if b is None else a + b


def _sub(a, b):
    return a if b is None else b * -1.0 if a is None else a - b
