"""Small random convolutional networks, valid by construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tests.generator.net import Net, Rng

OPSETS = (9, 11, 13, 17, 20)
#: Layer -> the first operator set that can say it.
SINCE = {"hardswish": 14, "resize": 11, "softmax_image": 13}
BODY = ("conv", "conv", "conv", "bn", "relu", "relu", "clip", "leaky", "gelu", "hardswish", "maxpool", "avgpool", "lrn")
BODY += ("residual", "concat", "resize", "sigmoid")
HEADS = ("fc", "fc", "global", "global", "none", "softmax_image")


class Builder:
    """A network under construction: ``x`` is the last tensor, ``shape`` its shape."""

    def __init__(self, r: Rng, opset: int, wanted: Sequence[str] = ()):
        self.r, self.wanted = r, wanted
        shape = (int(r.integers(1, 3)), int(r.integers(2, 6)), *(int(v) for v in r.integers(8, 14, 2)))
        self.net = Net([], {}, {"image": shape}, [], opset)
        self.x, self.shape = "image", shape

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...] | None = None, **attrs) -> str:
        node = self.net.node(op, inputs, **attrs)
        self.net.nodes.append(node)
        self.x, self.shape = node.output[0], shape or self.shape
        return self.x

    def weight(self, *shape: int, scale: float = 1.0, shift: float = 0.0, base: str = "w") -> str:
        return self.net.constant(shift + scale * self.r.standard_normal(shape), base)

    def chance(self, p: float) -> bool:
        return bool(self.r.random() < p)

    # -- layers -------------------------------------------------------------------------------------------------------

    def conv(self, filters: int = 0, kernel: int = 0, same: bool = False) -> None:
        r, (n, c, *size) = self.r, self.shape
        ks = [kernel or int(r.choice([1, 2, 3, 3, 5])) for _ in range(2)]
        if self.chance(0.6):
            ks[1] = ks[0]
        grouped = "grouped" in self.wanted or self.chance(0.4)
        groups = 1 if same or not grouped else int(r.choice([g for g in range(1, c + 1) if c % g == 0]))
        filters = filters or groups * int(r.integers(max(1, 3 // groups), 8 // groups + 2))
        stride = [1, 1] if same or self.chance(0.5) else [int(v) for v in r.integers(1, 3, 2)]
        dilation = [1, 1] if same or self.chance(0.7) else [2, 2]
        attrs = {"kernel_shape": ks, "strides": stride, "dilations": dilation, "group": groups}
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, ks, strict=True)]
        if same:
            begin, out = [v // 2 for v in reach], list(size)
            attrs["pads"] = [*begin, *(v - 1 - b for v, b in zip(reach, begin, strict=True))]
        elif "auto_pad" in self.wanted or self.chance(0.3):
            # Dilated SAME padding is left out: runtimes do not agree on it.
            attrs["dilations"], reach = [1, 1], ks
            attrs["auto_pad"] = str(r.choice(["SAME_UPPER", "SAME_LOWER"]))
            out = [-(-v // s) for v, s in zip(size, stride, strict=True)]
        else:
            pads = [int(v) for e in reach * 2 for v in r.integers(0, e // 2 + 1, 1)]
            out = self._sizes(size, reach, stride, pads)
            if min(out) < 3:
                attrs["strides"], pads = [1, 1], [e // 2 for e in reach * 2]
                out = self._sizes(size, reach, [1, 1], pads)
            attrs["pads"] = pads
        w = self.weight(filters, c // groups, *ks, scale=math.sqrt(2 * groups / (c * math.prod(ks))))
        bias = [self.weight(filters, scale=0.3, base="b")] if self.chance(0.7) else []
        self.add("Conv", [self.x, w, *bias], (n, filters, *out), **attrs)

    @staticmethod
    def _sizes(size, reach, stride, pads, ceil=False):
        total = [v + b + e - k for v, k, b, e in zip(size, reach, pads[:2], pads[2:], strict=True)]
        return [(-(-t // s) if ceil else t // s) + 1 for t, s in zip(total, stride, strict=True)]

    def bn(self) -> None:
        c = self.shape[1]
        scale, mean = self.weight(c, shift=1.0, scale=0.3, base="scale"), self.weight(c, scale=0.3, base="mean")
        var = self.net.constant(self.r.uniform(0.05, 1.0, c), "var")
        names = [scale, self.weight(c, scale=0.3, base="shift"), mean, var]
        attrs = {"epsilon": float(self.r.choice([1e-5, 1e-3, 1e-4]))} if self.chance(0.7) else {}
        self.add("BatchNormalization", [self.x, *names], **attrs)

    def relu(self) -> None:
        self.add("Relu", [self.x])

    def clip(self) -> None:
        low, high = -float(self.r.uniform(0.0, 0.8)), float(self.r.uniform(0.5, 2.0))
        if self.net.opset < 11:
            self.add("Clip", [self.x], min=low, max=high)
        else:
            self.add("Clip", [self.x, self.net.constant(low), self.net.constant(high)])

    def leaky(self) -> None:
        self.add("LeakyRelu", [self.x], alpha=float(self.r.choice([0.01, 0.1, 0.2])))

    def sigmoid(self) -> None:
        self.add("Sigmoid", [self.x])

    def hardswish(self) -> None:
        self.add("HardSwish", [self.x])

    def gelu(self) -> None:
        x, c = self.x, self.net.constant
        if self.net.opset >= 20 and self.chance(0.7):
            self.add("Gelu", [x])
            return
        inner = self.add("Erf", [self.add("Div", [x, c(math.sqrt(2))])])
        self.add("Mul", [self.add("Mul", [x, self.add("Add", [inner, c(1.0)])]), c(0.5)])

    def maxpool(self) -> None:
        self._pool("MaxPool")

    def avgpool(self) -> None:
        self._pool("AveragePool")

    def _pool(self, op: str) -> None:
        r, (n, c, *size) = self.r, self.shape
        k = [int(r.choice([2, 3]))] * 2
        stride = [int(r.choice([1, 2, 2]))] * 2
        pads = [0] * 4 if self.chance(0.5) else [int(v) for e in k * 2 for v in r.integers(0, e // 2 + 1, 1)]
        attrs = {"kernel_shape": k, "strides": stride}
        ceil = self.net.opset >= 10 and self.chance(0.4) and self._whole(size, k, stride, pads)
        if op == "AveragePool" and self.chance(0.5):
            # Rounded up and with pads counted at once: runtimes do not agree on the divisor.
            attrs["count_include_pad"], ceil = 1, False
        if ceil:
            attrs["ceil_mode"] = 1
        elif self.chance(0.2):
            attrs["auto_pad"] = str(r.choice(["SAME_UPPER", "SAME_LOWER"]))
        out = self._sizes(size, k, stride, pads, ceil)
        if "auto_pad" in attrs:
            out = [-(-v // s) for v, s in zip(size, stride, strict=True)]
        else:
            attrs["pads"] = pads
        if min(out) >= 2:
            self.add(op, [self.x], (n, c, *out), **attrs)

    def _whole(self, size, kernel, stride, pads) -> bool:
        """Whether each window of a pooling that rounds up starts before the end padding: else runtimes differ."""
        out = self._sizes(size, kernel, stride, pads, True)
        return all((o - 1) * s < v + b for o, s, v, b in zip(out, stride, size, pads, strict=False))

    def lrn(self) -> None:
        size = int(self.r.choice([3, 5]))
        attrs = {"alpha": float(self.r.uniform(0.05, 0.5)), "beta": 0.75, "bias": float(self.r.choice([1.0, 2.0]))}
        self.add("LRN", [self.x], size=size, **attrs)

    def residual(self) -> None:
        before = self.x
        self.conv(self.shape[1], int(self.r.choice([1, 3])), same=True)
        if self.chance(0.5):
            self.bn()
        self.add("Add", [self.x, before] if self.chance(0.5) else [before, self.x])

    def concat(self) -> None:
        before, shape, ends = self.x, self.shape, []
        width = int(self.r.integers(2, 4))
        for kernel in (1, 3):
            self.x, self.shape = before, shape
            self.conv(width, kernel, same=True)
            if self.chance(0.5):
                self.relu()
            ends.append(self.x)
        if self.chance(0.3):
            ends.append(before)
        channels = 2 * width + (shape[1] if len(ends) == 3 else 0)
        self.add("Concat", ends, (shape[0], channels, *shape[2:]), axis=1)

    def resize(self) -> None:
        n, c, h, w = self.shape
        scale = float(self.r.choice([1.5, 2.0, 2.5]))
        if h * w > 200:
            return
        mode = str(self.r.choice(["asymmetric", "half_pixel", "align_corners"]))
        nearest = str(self.r.choice(["floor", "round_prefer_floor", "ceil"]))
        roi = "" if self.net.opset >= 13 else self.net.constant([], "roi")
        names = [self.x, roi, self.net.constant([1, 1, scale, scale], "scales")]
        attrs = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": nearest}
        self.add("Resize", names, (n, c, math.floor(h * scale), math.floor(w * scale)), **attrs)

    # -- heads --------------------------------------------------------------------------------------------------------

    def head(self, kind: str) -> None:
        if kind == "none":
            return
        if kind == "softmax_image":
            self.add("Softmax", [self.x], axis=1)
            return
        n, c, h, w = self.shape
        if kind == "global":
            self.add("GlobalAveragePool", [self.x], (n, c, 1, 1))
            h = w = 1
        width = c * h * w
        if self.chance(0.6):
            self.add("Flatten", [self.x], (n, width), axis=1)
        else:
            given = [n, -1] if self.chance(0.5) else [0, -1]
            self.add("Reshape", [self.x, self.net.constant(given, "size", np.int64)], (n, width))
        classes = width if width <= 12 and self.chance(0.4) else int(self.r.integers(3, 11))
        self.dense(classes)
        if self.chance(0.4):
            self.relu()
            self.dense(classes if self.chance(0.5) else int(self.r.integers(3, 11)))
        if self.chance(0.4):
            self.add("Softmax", [self.x], axis=1)

    def dense(self, out: int) -> None:
        (n, width), scale = self.shape, 1 / math.sqrt(self.shape[1])
        bias = self.weight(out, scale=0.3, base="b")
        if self.chance(0.5):
            transposed = self.chance(0.6)
            w = self.weight(*((out, width) if transposed else (width, out)), scale=scale)
            self.add("Gemm", [self.x, w, bias], (n, out), transB=int(transposed))
        else:
            self.add("MatMul", [self.x, self.weight(width, out, scale=scale)], (n, out))
            self.add("Add", [self.x, bias])

    def two_outputs(self) -> None:
        """Two heads of equal shape."""
        before, shape, ends = self.x, self.shape, []
        for _ in range(2):
            self.x, self.shape = before, shape
            self.conv(4, 1, same=True)
            self.add("GlobalAveragePool", [self.x], (shape[0], 4, 1, 1))
            ends.append(self.x)
        self.net.outputs = ends


def random_net(r: Rng, wanted: str = "", most: int = 5) -> Net:
    """A network of 2 to 14 nodes with at least one convolution.

    ``wanted``: words for what it should have, which makes that likely: layers, a head, ``two_outputs``,
    ``bn_after_conv``, ``grouped``, ``auto_pad``; ``early``: in the operator set 9.
    """
    while True:
        net = _random_net(r, wanted.split(), most)
        if 2 <= len(net.nodes) <= 14:
            return net


def _random_net(r: Rng, wanted: list[str], most: int) -> Net:
    since = max((SINCE.get(w, 0) for w in wanted), default=0)
    b = Builder(r, OPSETS[0] if "early" in wanted else int(r.choice([v for v in OPSETS if v >= since])), wanted)
    able = [name for name in BODY if SINCE.get(name, 0) <= b.net.opset]
    steps = [str(s) for s in r.choice(able, int(r.integers(1, most + 1)))]
    if "conv" not in steps:
        steps[0] = "conv"
    for name in wanted:
        if name in BODY:
            steps.insert(int(r.integers(1, len(steps) + 1)), name)
    if "bn_after_conv" in wanted:
        steps.insert(steps.index("conv") + 1, "bn")
    for name in steps:
        step: Callable[[], None] = getattr(b, name)
        step()
    if "two_outputs" in wanted or (not wanted and b.chance(0.1)):
        b.two_outputs()
        return b.net
    heads = [h for h in HEADS if SINCE.get(h, 0) <= b.net.opset]
    b.head(str(r.choice([h for h in heads if h in wanted] or heads)))
    b.net.outputs = [b.x]
    return b.net
