"""Pooling: the largest element or the mean of a sliding window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from xframe.equivalence import kernels
from xframe.equivalence.bounds import Quantity
from xframe.equivalence.graph import Node, Operator, Roundings
from xframe.equivalence.linear import window_of
from xframe.equivalence.reductions import average

Args = Sequence[Quantity]


def max_pool(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    """The largest variance in a window stands for its maximum's: a near tie may go either way."""
    window = window_of(node, args[0].value.shape[2:], node.attrs["kernel_shape"])
    return args[0].moved(lambda a: kernels.pool_max(a, window))


def average_pool(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    x = args[0]
    size = x.value.shape[2:]
    window = window_of(node, size, node.attrs["kernel_shape"])
    count = kernels.pool_count(size, window, bool(node.attrs.get("count_include_pad", 0)))
    if not count.all():
        raise node.refuse("a window lies wholly in the padding: it has no mean")
    terms = math.prod(window.kernel)
    return average(x, lambda a: kernels.pool_sum(a, window), terms, count, roundings is not None)


def global_average_pool(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    axes = tuple(range(2, args[0].value.ndim))
    terms = math.prod(args[0].value.shape[2:])
    return average(args[0], lambda a: a.sum(axis=axes, keepdims=True), terms, terms, roundings is not None)


def global_max_pool(node: Node, args: Args, roundings: Roundings | None) -> Quantity:
    axes = tuple(range(2, args[0].value.ndim))
    return args[0].moved(lambda a: np.max(a, axis=axes, keepdims=True))


OPERATORS: dict[str, Operator] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
}
