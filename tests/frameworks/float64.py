"""The judge of these tests: a spec computed layer by layer with torch in float64, canonical layout."""

import numpy as np
import torch
from torch.nn import functional as F


def _pool(item, x, value):
    top, left, bottom, right = item["pads"]
    return F.pad(x, (left, right, top, bottom), value=value)


def _lrn(item, x):
    # ONNX: the sum runs over the channels from c - (size-1)/2 to c + (size-1)/2.
    half, squares = item["size"] // 2, x**2
    total = torch.stack(
        [squares[:, max(0, c - half) : c + half + 1].sum(1) for c in range(x.shape[1])],
        1,
    )
    return x / (item["bias"] + item["alpha"] / item["size"] * total) ** item["beta"]


def _layer(item, w, xs):
    x = xs[0]
    match item.op:
        case "conv":
            x = _pool(item, x, 0.0)
            return F.conv2d(
                x, w["weight"], w["bias"], item["stride"], 0, dilation=item["dilation"], groups=item["groups"]
            )
        case "fc":
            return x @ w["weight"].T + w["bias"]
        case "batchnorm":
            a = w["scale"] / torch.sqrt(w["var"] + item["epsilon"])
            return x * a[:, None, None] + (w["shift"] - w["mean"] * a)[:, None, None]
        case "relu":
            return x.clamp(min=0)
        case "relu6":
            return x.clamp(0, 6)
        case "maxpool":
            return F.max_pool2d(_pool(item, x, float("-inf")), item["kernel"], item["stride"])
        case "avgpool":
            inside = _pool(item, torch.ones_like(x), 0.0)
            sums = [F.avg_pool2d(v, item["kernel"], item["stride"]) for v in (_pool(item, x, 0.0), inside)]
            return sums[0] / sums[1]
        case "lrn":
            return _lrn(item, x)
        case "dropout":
            return x
        case "flatten":
            return x.reshape(len(x), -1)
        case "add":
            return torch.stack(xs).sum(0)
        case "concat":
            return torch.cat(xs, 1)
        case "softmax":
            return torch.softmax(x, 1)
    raise AssertionError(item.op)


def forward(spec, weights, x, dtype=torch.float64):
    """Outputs of all layers, by name."""
    values = {"input": torch.tensor(x, dtype=dtype)}
    for item in spec.layers:
        own = {
            k.rpartition(".")[2]: torch.tensor(v, dtype=dtype)
            for k, v in weights.items()
            if k.rpartition(".")[0] == item.name
        }
        values[item.name] = _layer(item, own, [values[s] for s in spec.sources()[item.name]])
    return values


def output(spec, weights, x):
    return forward(spec, weights, x)[spec.layers[-1].name].numpy()


def close(got, want):
    """Within what float32 sums of these small networks may be off, relative to the largest value."""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
