"""Theano's convolutions and poolings as ONNX nodes."""

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from xframe.errors import Unsupported
from xframe.frameworks.theano_draft import Draft, Known, Shape, Value

#: Modes of Theano's pooling, and what ONNX does.
_POOLS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "max": ("MaxPool", {}),
    "average_exc_pad": ("AveragePool", {"count_include_pad": 0}),
    "average_inc_pad": ("AveragePool", {"count_include_pad": 1}),
    "sum": ("AveragePool", {"count_include_pad": 1}),
}


def _outputs(image: Shape, kernel: Shape, strides: Shape, pads: Sequence[Tuple[int, int]], dilations: Shape) -> Shape:
    return tuple(
        (n + sum(pad) - d * (k - 1) - 1) // s + 1 for n, k, s, pad, d in zip(image, kernel, strides, pads, dilations)
    )


def _borders(mode: Any, reach: Sequence[int]) -> List[Tuple[int, int]]:
    """Padding (before, after) of each axis; ``reach``: pixels that the dilated kernel spans."""
    if isinstance(mode, str):
        mode = {"valid": [0] * len(reach), "full": [r - 1 for r in reach], "half": [r // 2 for r in reach]}[mode]
    values: List[Any] = [mode] * len(reach) if isinstance(mode, int) else list(mode)
    return [(int(p), int(p)) if np.ndim(p) == 0 else (int(p[0]), int(p[1])) for p in values]


def conv(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    """A two-dimensional convolution; a flipped kernel is turned round.

    Raises
    ------
    Unsupported
        Its weights are unshared, or computed and flipped.
    """
    x, weight = args
    if getattr(op, "unshared", False):
        raise Unsupported("Theano's convolution with unshared weights has no ONNX form")
    if op.filter_flip:
        if not isinstance(weight, Known):
            raise Unsupported(
                "Theano's convolution flips a kernel that is computed: pass filter_flip=False to export it"
            )
        weight = Known(weight.array[:, :, ::-1, ::-1], weight.name)
    kernel, strides, dilations = weight.shape[2:], _ints(op.subsample), _ints(op.filter_dilation)
    pads = _borders(op.border_mode, [d * (k - 1) + 1 for k, d in zip(kernel, dilations)])
    return draft.add(
        "Conv",
        [x, weight],
        (x.shape[0], weight.shape[0], *_outputs(x.shape[2:], kernel, strides, pads, dilations)),
        kernel_shape=list(kernel),
        strides=list(strides),
        pads=[p[0] for p in pads] + [p[1] for p in pads],
        dilations=list(dilations),
        group=int(op.num_groups),
    )


def pool(draft: Draft, op: Any, args: Sequence[Value]) -> Value:
    """A pooling over the last two axes of an image. Raises Unsupported for one over others."""
    x, *windows = args
    if op.ndim != 2 or len(x.shape) != 4 or not all(isinstance(w, Known) for w in windows):
        raise Unsupported(
            f"Theano's pooling of {op.ndim} axes of {len(x.shape)} can't be exported: use pool_2d on images"
        )
    kernel, strides, border = (_ints(w.array) for w in windows if isinstance(w, Known))
    pads = [(p, p) for p in border]
    if not op.ignore_border:  # windows that begin inside the image count, wherever they end; such a pooling has no pads
        counts = [
            (n - 1) // s + 1 if s >= k else max(0, (n - 1 - k + s) // s) + 1 for n, k, s in _each(x, kernel, strides)
        ]
        pads = [(0, max(0, (c - 1) * s + k - n)) for c, (n, k, s) in zip(counts, _each(x, kernel, strides))]
    name, more = _POOLS[op.mode]
    if not op.ignore_border and more and op.mode != "sum":
        more = {"count_include_pad": 0}
    shape = (*x.shape[:2], *_outputs(x.shape[2:], kernel, strides, pads, (1, 1)))
    both = [p[0] for p in pads] + [p[1] for p in pads]
    y = draft.add(name, [x], shape, kernel_shape=list(kernel), strides=list(strides), pads=both, **more)
    if op.mode != "sum":
        return y
    return draft.add("Mul", [y, Known(np.float32(kernel[0] * kernel[1]))], shape)


def _each(x: Value, kernel: Shape, strides: Shape) -> List[Tuple[int, int, int]]:
    return list(zip(x.shape[2:], kernel, strides))


def _ints(values: Any) -> Shape:
    return tuple(int(v) for v in values)
