"""Small networks, their seeded weights, and a plain float32 run of them in PyTorch in which faults can be planted."""

import numpy as np

from xframe.types import ModelSpec, layer


def alexlike(softmax: bool = False) -> ModelSpec:
    """AlexNet's kinds of layers in small: strided conv, LRN, groups, padded conv, max pooling, flatten, two FC."""
    layers = [
        layer("conv1", "conv", out=24, kernel=5, stride=2, pads=2),
        layer("relu1", "relu"),
        layer("lrn1", "lrn", size=5, alpha=0.125, beta=0.75, bias=1.0),
        layer("pool1", "maxpool", kernel=3, stride=2),
        layer("conv2", "conv", out=48, kernel=5, pads=(2, 1, 2, 3), groups=2),
        layer("relu2", "relu"),
        layer("pool2", "maxpool", kernel=3, stride=2, pads=1),
        layer("conv3", "conv", out=64, kernel=3, pads=1),
        layer("relu3", "relu"),
        layer("flat", "flatten"),
        layer("fc4", "fc", out=128),
        layer("relu4", "relu"),
        layer("fc5", "fc", out=50),
    ]
    return ModelSpec("alexlike", (3, 43, 43), (*layers, *([layer("prob", "softmax")] if softmax else [])))


def residual() -> ModelSpec:
    """Batch norm, depthwise convolution, a sum, a concatenation, and global average pooling as ``avgpool``."""
    layers = (
        layer("conv1", "conv", out=16, kernel=3, pads=1),
        layer("bn1", "batchnorm"),
        layer("relu1", "relu"),
        layer("deep", "conv", out=16, kernel=3, pads=1, groups=16),
        layer("bn2", "batchnorm"),
        layer("sum", "add", ("bn2", "relu1")),
        layer("relu2", "relu"),
        layer("both", "concat", ("relu1", "relu2")),
        layer("drop", "dropout", rate=0.5),
        layer("mean", "avgpool", kernel=3, stride=2, pads=1),
        layer("conv2", "conv", out=24, kernel=1),
        layer("all", "avgpool", kernel=6, stride=1),
        layer("flat", "flatten"),
        layer("fc", "fc", out=20),
    )
    return ModelSpec("residual", (4, 12, 12), layers)


def weights(spec: ModelSpec, batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """He-scaled normal weights; shapes found by walking the spec."""
    r = np.random.default_rng(seed)
    shapes, found = {"input": (batch, *spec.input)}, {}
    sources = spec.sources()

    def normal(name, *shape, scale=1.0, shift=0.0):
        found[name] = (shift + scale * r.standard_normal(shape)).astype(np.float32)

    for item in spec.layers:
        shape = shapes[sources[item.name][0]]
        if item.op == "conv":
            fan = shape[1] // item["groups"] * item["kernel"][0] * item["kernel"][1]
            normal(
                f"{item.name}.weight", item["out"], shape[1] // item["groups"], *item["kernel"], scale=(2 / fan) ** 0.5
            )
            normal(f"{item.name}.bias", item["out"], scale=0.1)
            shape = (shape[0], item["out"], *pooled(shape, item))
        elif item.op == "fc":
            normal(f"{item.name}.weight", item["out"], shape[1], scale=(2 / shape[1]) ** 0.5)
            normal(f"{item.name}.bias", item["out"], scale=0.1)
            shape = (shape[0], item["out"])
        elif item.op == "batchnorm":
            for part, shift in (("scale", 1.0), ("shift", 0.0), ("mean", 0.0), ("var", 1.0)):
                normal(f"{item.name}.{part}", shape[1], scale=0.1, shift=shift)
        elif item.op in ("maxpool", "avgpool"):
            shape = (*shape[:2], *pooled(shape, item))
        elif item.op == "flatten":
            shape = (shape[0], int(np.prod(shape[1:])))
        elif item.op == "concat":
            shape = (shape[0], sum(shapes[s][1] for s in sources[item.name]), *shape[2:])
        shapes[item.name] = shape
    return found


def pooled(shape, item):
    t, left, b, r = item["pads"]
    sizes = zip(shape[2:], (t + b, left + r), item["kernel"], item["stride"], strict=True)
    return tuple((n + p - k) // s + 1 for n, p, k, s in sizes)


def images(spec: ModelSpec, batch: int = 1, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, *spec.input)).astype(np.float32)


def torch_run(spec, values, x, faults=()):
    """The network in float32 PyTorch. ``faults`` maps a layer's name to a function (item, values, inputs) -> output."""
    import torch

    faults, sources = dict(faults), spec.sources()
    done = {"input": torch.from_numpy(x)}
    with torch.no_grad():
        for item in spec.layers:
            inputs = [done[s] for s in sources[item.name]]
            done[item.name] = faults.get(item.name, torch_layer)(item, values, inputs)
    return done[spec.layers[-1].name].numpy()


def torch_layer(item, values, inputs):
    import torch
    import torch.nn.functional as F

    x = inputs[0]
    w = {k[len(item.name) + 1 :]: torch.from_numpy(v) for k, v in values.items() if k.startswith(item.name + ".")}
    if item.op in ("conv", "maxpool", "avgpool"):
        t, left, b, r = item["pads"]
    if item.op == "conv":
        x = F.pad(x, (left, r, t, b))
        return F.conv2d(x, w["weight"], w["bias"], item["stride"], 0, item["dilation"], item["groups"])
    if item.op == "fc":
        return F.linear(x, w["weight"], w["bias"])
    if item.op == "maxpool":
        return F.max_pool2d(F.pad(x, (left, r, t, b), value=-np.inf), item["kernel"], item["stride"])
    if item.op == "avgpool":
        return F.avg_pool2d(x, item["kernel"], item["stride"], (t, left), count_include_pad=False)
    if item.op == "batchnorm":
        return F.batch_norm(x, w["mean"], w["var"], w["scale"], w["shift"], False, 0.0, item["epsilon"])
    if item.op == "lrn":
        return F.local_response_norm(x, item["size"], item["alpha"], item["beta"], item["bias"])
    return {
        "relu": lambda: F.relu(x),
        "softmax": lambda: F.softmax(x, 1),
        "flatten": lambda: x.flatten(1),
        "dropout": lambda: x,
        "add": lambda: inputs[0] + inputs[1],
        "concat": lambda: torch.cat(inputs, 1),
    }[item.op]()
