"""The real DFT of an image's windows, as straight-line code: rows first, then columns.

Of an N x N real image's frequencies those that are conjugates of others are left out: a row's transform has N // 2 + 1
columns, of which the first, and the last where N is even, are real.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xframe.lowering.straight_line import product

Keep = Callable[[Any], Any]


def dft(n: int) -> np.ndarray:
    """The DFT of n real numbers as a real matrix: rows are the real parts of 0..n//2, then the imaginary ones."""
    angle = 2 * np.pi * np.outer(np.arange(n // 2 + 1), np.arange(n)) / n
    return np.concatenate([np.cos(angle), -np.sin(angle)])


def inverse_dft(n: int) -> np.ndarray:
    """The inverse of :func:`dft`: the conjugate half counts twice; imaginary parts of 0 and n/2 do not count."""
    half = n // 2 + 1
    twice = np.array([1.0 if k in (0, n / 2) else 2.0 for k in range(half)])
    return dft(n).T * np.concatenate([twice, twice]) / n


def row(values: Sequence[Any], keep: Keep) -> list[Any]:
    """The transform of n real values, None being zero: :func:`dft` of them, with the names of ``product``."""
    return product(dft(len(values)), values, keep)


def column(parts: Sequence[Sequence[Any]], keep: Keep) -> dict[int, tuple[Any, Any]]:
    """(real, imaginary) of a column's frequencies. ``parts``: its real values, and its imaginary ones if it has any;
    without, the frequencies are those up to n // 2."""
    n = len(parts[0])
    half = n // 2 + 1
    spectra: list[list[Any]] = [[e if e is None else keep(e) for e in row(values, keep)] for values in parts]
    if len(spectra) == 1:
        return {q: (spectra[0][q], spectra[0][half + q]) for q in range(half)}
    real, imaginary = spectra
    # With the transforms R and I of the two parts, X_q = R_q + i I_q, and X_(n-q) the same of the conjugates.
    out = {}
    for q in range(half):
        re, im, re2, im2 = real[q], real[half + q], imaginary[q], imaginary[half + q]
        if q in (0, n / 2):
            out[q] = re, re2
        else:
            out[q] = re - im2, im + re2
            out[n - q] = re + im2, re2 - im
    return out


def halves(at: Callable[[int, int], Any], n: int, real: bool, keep: Keep) -> list[list[Any]]:
    """What :func:`inverse` makes the real values of a column from, and the imaginary ones unless the column is real.

    ``at(q, part)`` reads a frequency. Its conjugate-symmetric part transforms back to real numbers, the other part to
    imaginary ones: two real inverse transforms make a complex one.
    """
    count = n // 2 + 1
    if real:
        return [[at(q, part) for part in (0, 1) for q in range(count)]]
    even: list[tuple[Any, Any]] = []
    odd: list[tuple[Any, Any]] = []
    for q in range(count):
        mirror = (n - q) % n
        if mirror == q:
            even.append((at(q, 0), None))
            odd.append((at(q, 1), None))
        else:
            a, b, c, d = (keep(at(*w)) for w in ((q, 0), (mirror, 0), (q, 1), (mirror, 1)))
            even.append((keep((a + b) * 0.5), keep((c - d) * 0.5)))
            odd.append((keep((c + d) * 0.5), keep((b - a) * 0.5)))
    return [[re for re, _ in terms] + [im for _, im in terms] for terms in (even, odd)]


def inverse(values: Sequence[Any], n: int, keep: Keep) -> list[Any]:
    """The n real values whose :func:`row` is ``values``."""
    return product(inverse_dft(n), values, keep)


def placed(values: Sequence[Any], first: int, n: int) -> list[Any]:
    """``values`` from ``first`` on among n, the others None."""
    return [None] * first + list(values) + [None] * (n - first - len(values))
