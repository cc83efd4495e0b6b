"""How far a correct float32 implementation may be from the exact result, per element.

Beside each float64 value runs the *variance* of the error that float32 rounding leaves in it, under the statistical
model of Higham and Mary (2019, doi 10.1137/18M1226312): each operation errs by an independent relative error, uniform
in [-u, u] with u = 2^-24, hence of variance u^2/3. An element is judged against ``Z`` standard deviations.

**A sum of products** (convolution, product, average). With S the exact sum of K products and E the sum of their
squares, the partial sum after k additions has a mean part k/K S and a random part of variance k/K E, so that a chain of
``length`` additions rounds with variance ``u^2/3 length (S^2/3 + E/2)``. Errors of the operands arrive through the
squared weights. ``Rounding.growth`` enlarges the rounding, not what arrives: transformed algorithms (Winograd, FFT)
compute the same linear map. They mix the data of a tile, so with ``Rounding.reach`` an element's share of this rounding
is the largest one within reach.

**Coherence.** Independence fails when products are alike. r = S^2/E tells: about 1 for products of random sign,
K when all are equal (Cauchy-Schwarz); what r exceeds 4 (two deviations of the random case) counts as coherent.
(1) Equal addends round alike, up to ``u length |S|/2`` in the worst case: the share (r - 4)/K of its square is added.
(2) Errors that arrive may be alike too, when the channels that carry them are copies of each other. ``coherence`` is
that likeness, measured on the weights that made them: the mean cosine between the filters. It raises the arriving
variance by up to r - 4, so that a network whose filters are all equal keeps its relative error from layer to layer
instead of averaging it away. In a network with different filters both terms vanish.

**Rounded operands.** Where the operands of products are rounded to a type of unit roundoff v before they are multiplied
(``Rounding.operands``: tensor cores), that is an error of each operand, which arrives like any other: relative variance
v^2/3, absolute error ``Rounding.floor`` at most where a number is too small for the type. Equal operands round alike,
in the worst case all of them: ``2 v |S|`` is added. Tensor cores cut their float32 sums off towards zero, an error of
up to 2 u of each partial sum, always in one direction: ``length`` of them come to some ``u length (|S| + sqrt(E))``.

**Anything else** propagates to first order, the steepest slope within Z deviations taken, so that a kink (ReLU, clip)
or curvature near the value is honoured. Operands of one operation may share ancestors, so their deviations are added,
not their variances. An error below the smallest normal number (flushing to zero) is always allowed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from xframe.types import Rounding

Array = np.ndarray

#: Standard deviations in a bound. A Gaussian passes 8 with probability 1.2e-15: for 10^6 outputs once in 10^9 checks.
Z = 8.0
#: Unit roundoff of float32 and the variance of one relative rounding error.
U = 2.0**-24
UNIT = U * U / 3
#: Smallest normal float32, squared: results below it may be flushed to zero.
FLOOR = float(np.finfo(np.float32).tiny) ** 2
#: r = S^2/E up to which products count as of random sign.
RANDOM = 4.0


@dataclass(frozen=True)
class Quantity:
    """A tensor: exact value, variance of a float32 implementation's error (None: exact in float32), coherence.

    Constants keep their own dtype (weights stay float32, possibly as broadcast views); results are float64.
    """

    value: Array
    variance: Array | None = None
    coherence: float = 0.0

    @property
    def real(self) -> Array:
        """The value in float64."""
        return np.asarray(self.value, np.float64)

    @property
    def deviation(self) -> Array | float:
        """Standard deviation of the error."""
        return 0.0 if self.variance is None else np.sqrt(self.variance)

    @property
    def bound(self) -> Array:
        """Largest error that passes, at least the smallest normal number."""
        variance = np.zeros(self.value.shape) if self.variance is None else self.variance
        return Z * np.sqrt(variance) + np.sqrt(FLOOR)

    def narrowed(self, rounding: Rounding) -> Quantity:
        """It as an operand that is rounded as ``rounding`` says before it is multiplied."""
        size = np.abs(self.real)
        largest = np.maximum(size * rounding.operands, np.minimum(size, rounding.floor))
        variance = np.square(largest) / 3 + (0.0 if self.variance is None else self.variance)
        return Quantity(self.value, variance, self.coherence)

    def moved(self, move: Callable[[Array], Array]) -> Quantity:
        """The same elements elsewhere: ``move`` rearranges, repeats or drops them."""
        variance = None if self.variance is None else move(self.variance)
        return Quantity(move(self.value), variance, self.coherence)


def rounded(value: Array, deviation: Array | float, ulps: Array | float, *sources: Quantity) -> Quantity:
    """The result of an operation whose operands' errors give ``deviation`` and which rounds by ``ulps`` times u."""
    variance = np.square(value * ulps) * UNIT + FLOOR + np.square(deviation)
    return Quantity(value, variance, max((s.coherence for s in sources), default=0.0))


def accumulated(
    total: Array,
    energy: Array,
    arriving: Array | None,
    terms: int,
    rounding: Rounding | None = None,
    coherence: float = 0.0,
    bias: Array | float = 0.0,
    spread: Callable[[Array], Array] = lambda a: a,
) -> Array:
    """Variance of the error of a sum of products, a bias added.

    Parameters
    ----------
    total, energy
        S and E of the module's docstring, without the bias.
    arriving
        Sum of squared weights times the operands' variances; None when they are exact.
    terms
        K, the number of products.
    rounding
        How the implementation accumulates; default: one chain of all terms.
    coherence
        Likeness of the operands' errors, 0 to 1.
    bias
        Added at the end, or the accumulator starts with it: the worse is assumed.
    spread
        Takes a map to its largest value within the algorithm's reach.
    """
    rounding = rounding or Rounding(terms)
    bias = np.broadcast_to(bias, total.shape)
    result = np.empty_like(total)
    for part in _parts(total.shape):
        came = 0.0 if arriving is None else arriving[part]
        result[part] = _accumulated(total[part], energy[part], came, terms, rounding, coherence, bias[part], spread)
    return result


def predicted(rounding: Rounding) -> float:
    """Largest error to expect of a convolution that rounds like this, relative to the RMS of its outputs.

    Before the data are known, products count as of random sign, so that E is the output's mean square; the largest
    outputs, which err most, have S^2 = RANDOM E. Z deviations of what :func:`accumulated` says of those, with no bias
    and exact operands, are

        Z u sqrt((11/6 length growth^2 + 6) / 3),

    and more where operands are rounded to a type of few bits, of which none is taken to be too small for it.
    Filters that cancel most of their input (S^2 far below E) err by more of their small output; the verdict's own bound
    knows the data and follows them.
    """
    energy = np.ones(1)
    arriving = 2 * rounding.operands**2 / 3 * energy
    variance = accumulated(np.sqrt(RANDOM * energy), energy, arriving, rounding.length, rounding)
    return Z * math.sqrt(float(variance[0]))


def _accumulated(
    total: Array,
    energy: Array,
    arriving: Array | float,
    terms: int,
    rounding: Rounding,
    coherence: float,
    bias: Array,
    spread: Callable[[Array], Array],
) -> Array:
    length, growth = rounding.length, rounding.growth**2
    square = np.square(total)
    coherent = np.divide(square, energy, out=np.zeros_like(square), where=energy > 0)
    coherent = np.maximum(coherent - RANDOM, 0.0)

    start = np.maximum(bias * (total + bias), 0.0)
    chain = ((square / 3 + energy / 2) * growth + start) * (length * UNIT)  # a transform never sees the bias
    # Z deviations of this term alone are the worst case, u length |S|/2, when all products are equal.
    alike = square * coherent * (growth * (U * length / (2 * Z)) ** 2 / terms)
    local = spread(chain + alike)
    # Products may be rounded before they are added, and a scale that follows may be folded into the weights.
    local += 2 * UNIT * energy + UNIT * np.square(total + bias) + FLOOR * length
    if rounding.operands:
        local += square * (2 * rounding.operands / Z) ** 2 + 2 * (square + energy) * (U * length / Z) ** 2
    return local + arriving * (1 + coherence * coherent)


def _parts(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cuts of the first two dimensions into blocks that stay in a cache; the others, where tiles lie, stay whole."""
    if len(shape) < 2:
        yield (slice(None),) * len(shape)
        return
    step = max(1, (1 << 16) // max(math.prod(shape[2:]), 1))
    for n, begin in itertools.product(range(shape[0]), range(0, shape[1], step)):
        yield slice(n, n + 1), slice(begin, begin + step)


def alikeness(filters: Array) -> float:
    """Mean cosine between different rows of ``filters`` [filters, weights], 0 to 1; at most 64 rows are looked at.

    Zero rows, whose results are exact, are left out. Exactly 1 means that all rows are the same.
    """
    rows = np.asarray(filters[:: -(-len(filters) // 64)], np.float64)
    if (rows == rows[0]).all():
        return 1.0
    norms = np.linalg.norm(rows, axis=1)
    rows = rows[norms > 0] / norms[norms > 0, None]
    count = len(rows)
    whole = float(np.square(rows.sum(axis=0)).sum())
    return min(max((whole - count) / max(count * (count - 1), 1), 0.0), 1.0 - U)
