"""The shapes that follow from a spec: of every layer's output, of the weights, of the convolutions.

Numpy only, and written for Python 3.6 upwards: the worker process of an old framework imports it.
"""

from typing import Dict, List, Tuple

import numpy as np

from xframe.errors import UsageError
from xframe.types import ConvSite, Layer, ModelSpec

Shape = Tuple[int, ...]


def shapes(spec: ModelSpec, batch: int) -> Dict[str, Shape]:
    """Output shape of every layer, and of ``"input"``: (N, C, H, W) for images, (N, features) after ``flatten``.

    Raises
    ------
    UsageError
        A layer can't be: an unknown or later input, a window that does not fit, channels that do not divide. The
        message names the layer.
    """
    out: Dict[str, Shape] = {"input": (batch, *spec.input)}
    sources = spec.sources()
    for item in spec.layers:
        try:
            if item.name in out:
                raise ValueError("there is an earlier layer of that name")
            for source in sources[item.name]:
                if source not in out:
                    raise ValueError(f"its input {source!r} is no earlier layer")
            out[item.name] = _shape(item, [out[s] for s in sources[item.name]])
        except ValueError as e:
            raise UsageError(f"model {spec.name}, layer {item.name} ({item.op}): {e}") from e
    return out


def sites(spec: ModelSpec, batch: int) -> Dict[str, ConvSite]:
    """Layer name -> site, of the convolutions in order. Raises UsageError as :func:`shapes` does."""
    known, sources = shapes(spec, batch), spec.sources()
    out = {}
    for item in (x for x in spec.layers if x.op == "conv"):
        n, channels, height, width = known[sources[item.name][0]]
        attrs = (item[a] for a in ("out", "kernel", "stride", "pads", "dilation", "groups"))
        out[item.name] = ConvSite(n, channels, (height, width), *attrs)
    return out


def tensors(spec: ModelSpec) -> Dict[str, Shape]:
    """Name -> shape of every weight, as :class:`~xframe.types.ModelSpec` names them."""
    out: Dict[str, Shape] = {}
    known, sources = shapes(spec, 1), spec.sources()
    for item in spec.layers:
        channels = known[sources[item.name][0]][1]
        if item.op == "conv":
            out[f"{item.name}.weight"] = (item["out"], channels // item["groups"], *item["kernel"])
            out[f"{item.name}.bias"] = (item["out"],)
        elif item.op == "fc":
            out[f"{item.name}.weight"] = (item["out"], channels)
            out[f"{item.name}.bias"] = (item["out"],)
        elif item.op == "batchnorm":
            out.update({f"{item.name}.{part}": (channels,) for part in ("scale", "shift", "mean", "var")})
    return out


def _window(item: Layer, shape: Shape) -> Tuple[int, int]:
    """Output (height, width) of a convolution or pooling over an NCHW shape; sizes round down."""
    top, left, bottom, right = item["pads"]
    dilation = item["dilation"] if item.op == "conv" else (1, 1)
    if item.op != "conv" and any(p >= k for p, k in zip(item["pads"], item["kernel"] * 2)):
        raise ValueError(f"padding {item['pads']} must be smaller than the window {item['kernel']}")
    out = []
    for n, pad, k, s, d in zip(shape[2:], (top + bottom, left + right), item["kernel"], item["stride"], dilation):
        if min(k, s, d) < 1 or min(item["pads"]) < 0:
            raise ValueError("kernel, stride and dilation must be positive, and padding not negative")
        if n + pad < d * (k - 1) + 1:
            raise ValueError(f"the window of {d * (k - 1) + 1} does not fit in {n} with padding {pad}")
        out.append((n + pad - d * (k - 1) - 1) // s + 1)
    return out[0], out[1]


def _shape(item: Layer, ins: List[Shape]) -> Shape:
    """Output shape of one layer. Raises ValueError, in words, on a layer that makes no sense."""
    first, rank = ins[0], len(ins[0])
    if (len(ins) > 1) != (item.op in ("add", "concat")):
        raise ValueError(
            f"takes {'two inputs or more' if item.op in ('add', 'concat') else 'one input'}, got {len(ins)}"
        )
    if item.op in ("conv", "maxpool", "avgpool", "lrn", "batchnorm") and rank != 4:
        raise ValueError(f"needs an image, got shape {first}")
    if item.op == "conv":
        if item["groups"] < 1 or first[1] % item["groups"] or item["out"] % item["groups"]:
            raise ValueError(f"{item['groups']} groups do not divide {first[1]} or {item['out']} channels")
        return (first[0], item["out"], *_window(item, first))
    if item.op in ("maxpool", "avgpool"):
        return (*first[:2], *_window(item, first))
    if item.op == "fc":
        if rank != 2:
            raise ValueError(f"needs a flatten before it, got shape {first}")
        return (first[0], item["out"])
    if item.op == "flatten":
        return (first[0], int(np.prod(first[1:])))
    if item.op == "lrn" and item["size"] % 2 == 0:
        raise ValueError(f"size {item['size']} is even: frameworks do not agree on its centre; use an odd one")
    if item.op == "add" and any(s != first for s in ins):
        raise ValueError(f"can't add the shapes {ins}")
    if item.op == "concat":
        if any(len(s) != rank or s[2:] != first[2:] for s in ins):
            raise ValueError(f"can't concatenate the shapes {ins} along channels")
        return (first[0], sum(s[1] for s in ins), *first[2:])
    return first
