"""Small networks that hold every op, and every trap that a framework can fall into."""

import numpy as np

from xframe.types import OPS, ModelSpec, layer

#: Every op, branches, odd sizes, asymmetric padding, dilation, groups, alpha large enough to show its convention.
EVERY = ModelSpec(
    "every",
    (3, 23, 19),
    (
        layer("c1", "conv", out=8, kernel=(5, 3), stride=(2, 1), pads=(2, 1, 1, 0)),
        layer("r1", "relu"),
        layer("n1", "lrn", size=5, alpha=0.9, beta=0.75, bias=2.0),
        layer("p1", "maxpool", kernel=3, stride=2, pads=(0, 1, 1, 0)),
        layer("c2", "conv", out=12, kernel=3, pads=2, dilation=2, groups=4),
        layer("b2", "batchnorm", epsilon=1e-3),
        layer("r2", "relu6"),
        layer("c3", "conv", "p1", out=12, kernel=1),
        layer("sum", "add", ("r2", "c3")),
        layer("v", "avgpool", "sum", kernel=3, pads=1),
        layer("m", "maxpool", "sum", kernel=3, pads=1),
        layer("cat", "concat", ("v", "m", "sum")),
        layer("p3", "avgpool", kernel=(2, 3), stride=2, pads=(1, 0, 0, 2)),
        layer("f", "flatten"),
        layer("d", "dropout", rate=0.5),
        layer("fc1", "fc", out=10),
        layer("r3", "relu"),
        layer("fc2", "fc", out=7),
        layer("s", "softmax"),
    ),
    seed=3,
)
assert {x.op for x in EVERY.layers} == set(OPS)

_C = layer("c", "conv", out=6, kernel=3)

#: Name -> a network that ends in, or turns on, one thing.
TRAPS = {
    "image out": ModelSpec("image", (3, 9, 7), (_C,)),
    "depthwise": ModelSpec("depthwise", (4, 9, 7), (layer("c", "conv", out=8, kernel=3, pads=1, groups=4),)),
    "same pads, other side": ModelSpec("side", (3, 8, 8), (layer("p", "maxpool", kernel=3, stride=2, pads=1),)),
    "pads over half a window": ModelSpec("wide", (3, 8, 8), (layer("p", "maxpool", kernel=3, pads=2),)),
    "average at the rim": ModelSpec("rim", (3, 8, 7), (layer("p", "avgpool", kernel=3, stride=2, pads=1),)),
    "average, wide rim": ModelSpec("wider", (3, 8, 7), (layer("p", "avgpool", kernel=3, pads=(2, 0, 1, 2)),)),
    "lrn of few channels": ModelSpec("lrn", (3, 5, 4), (layer("n", "lrn", size=7, alpha=3.0, beta=0.5, bias=1.0),)),
    "relu6 of what is above 6": ModelSpec(
        "six", (3, 8, 7), (_C, layer("more", "add", ("c",) * 8), layer("r", "relu6"))
    ),
    "batchnorm": ModelSpec("bn", (5, 5, 4), (layer("b", "batchnorm", epsilon=0.1),)),
    "softmax of an image": ModelSpec("soft", (5, 4, 3), (layer("s", "softmax"),)),
    "flatten out": ModelSpec("flat", (3, 9, 7), (_C, layer("f", "flatten"))),
    "flatten, relu out": ModelSpec("flatr", (3, 9, 7), (_C, layer("f", "flatten"), layer("r", "relu"))),
    "flatten read by an unused fc, and out": ModelSpec(
        "unused", (3, 9, 7), (_C, layer("f", "flatten"), layer("fc", "fc", out=4), layer("r", "relu", "f"))
    ),
    "flatten read by fc and add": ModelSpec(
        "read",
        (2, 5, 3),
        (
            layer("c", "conv", out=4, kernel=3, pads=1),
            layer("f", "flatten"),
            layer("fc", "fc", out=60),
            layer("sum", "add", ("f", "fc")),
            layer("both", "concat", ("sum", "f")),
            layer("fc2", "fc", out=5),
        ),
    ),
    "flatten twice, fc twice": ModelSpec(
        "twice",
        (2, 5, 3),
        (
            layer("f", "flatten"),
            layer("g", "flatten"),
            layer("r", "relu"),
            layer("fc", "fc", out=4),
            layer("fc2", "fc", "f", out=4),
            layer("sum", "add", ("fc", "fc2")),
        ),
    ),
    "relu must not write to what others read": ModelSpec(
        "inplace",
        (3, 6, 5),
        (
            layer("c", "conv", out=3, kernel=3, pads=1),
            layer("d", "dropout", rate=0.5),
            layer("r", "relu"),
            layer("sum", "add", ("c", "r", "input")),
        ),
    ),
}


#: To be differentiated too. TensorFlow has no kernels for that on a CPU where there are groups.
SMALL = ModelSpec(
    "small",
    (3, 8, 7),
    (
        layer("conv", "conv", out=4, kernel=3, pads=1, stride=2),
        layer("bn", "batchnorm"),
        layer("relu", "relu"),
        layer("grouped", "conv", out=6, kernel=3, pads=1, groups=2),
        layer("flatten", "flatten"),
        layer("fc", "fc", out=5),
    ),
)


def random_net(seed):
    """A convolution and two poolings of random geometry."""
    rng = np.random.default_rng(seed)

    def ints(low, high, n=2):
        return tuple(int(v) for v in rng.integers(low, high, n))

    def pads(kernel):
        return tuple(int(rng.integers(0, k)) for k in kernel * 2)

    groups = int(rng.choice([1, 1, 2, 3]))
    k1, k2, k3 = ints(1, 6), ints(1, 4), ints(1, 4)
    layers = (
        layer("c", "conv", out=6, kernel=k1, stride=ints(1, 4), pads=pads(k1), dilation=ints(1, 3), groups=groups),
        layer("m", "maxpool", kernel=k2, stride=ints(1, 3), pads=pads(k2)),
        layer("a", "avgpool", kernel=k3, stride=ints(1, 3), pads=pads(k3)),
    )
    height, width = ints(32, 40)
    return ModelSpec(f"random{seed}", (6, height, width), layers, seed)
