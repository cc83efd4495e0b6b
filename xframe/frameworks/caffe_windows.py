"""Caffe's layers over windows of an image, as nodes: convolutions, poolings, local response normalisation."""

from typing import List, Tuple

from xframe.frameworks.caffe_context import Context, Rules, Tensor, pair

Pair = Tuple[int, int]


def _convolution(c: Context) -> List[Tensor]:
    param = c.layer.convolution_param
    windows = kernel, stride, pad, dilation = _windows(c, param)
    groups, out = param.group, param.num_output
    names: List[str] = []
    tops = []
    for x in _images(c, groups):
        spans = [n + 2 * p - d * (k - 1) - 1 for n, k, p, d in zip(x.shape[2:], kernel, pad, dilation)]
        if min(spans) < 0:
            raise c.wrong("its window does not fit in an image of %d x %d" % x.shape[2:])
        size = tuple(span // s + 1 for span, s in zip(spans, stride))
        names = names or _weights(c, (out, x.shape[1] // groups, *kernel), out)
        tops.append(_node(c, "Conv", [x, *names], (x.shape[0], out, *size), windows))
    return tops


def _deconvolution(c: Context) -> List[Tensor]:
    param = c.layer.convolution_param
    windows = kernel, stride, pad, dilation = _windows(c, param)
    groups, out = param.group, param.num_output
    names: List[str] = []
    tops = []
    for x in _images(c, groups):
        names = names or _weights(c, (x.shape[1], out // groups, *kernel), out)
        geometry = zip(x.shape[2:], kernel, stride, pad, dilation)
        size = tuple(s * (n - 1) + d * (k - 1) + 1 - 2 * p for n, k, s, p, d in geometry)
        if min(size) < 1:
            raise c.wrong("its padding leaves nothing of an image of %d x %d" % x.shape[2:])
        tops.append(_node(c, "ConvTranspose", [x, *names], (x.shape[0], out, *size), windows))
    return tops


def _node(c: Context, op: str, inputs: List, shape: Tuple[int, ...], windows: Tuple[Pair, Pair, Pair, Pair]) -> Tensor:
    """A convolution, or a transposed one, with the attributes that both have."""
    kernel, stride, pad, dilation = map(list, windows)
    group = c.layer.convolution_param.group
    geometry = {"kernel_shape": kernel, "strides": stride, "pads": pad * 2, "dilations": dilation}
    return c.node(op, inputs, shape, group=group, **geometry)


def _windows(c: Context, param) -> Tuple[Pair, Pair, Pair, Pair]:
    kernel, stride = pair(c, param, "kernel_size", "kernel", 0), pair(c, param, "stride", "stride", 1)
    pad = pair(c, param, "pad", "pad", 0)
    given = [int(n) for n in param.dilation] or [1]
    dilation = (given[0], given[-1])
    if min(kernel + stride + dilation) < 1 or len(given) > 2:
        raise c.wrong("kernel %s, stride %s and dilation %s make no window" % (kernel, stride, tuple(given)))
    return kernel, stride, pad, dilation


def _images(c: Context, groups: int) -> List[Tensor]:
    """The bottoms, each of which the same weights make a top of."""
    out = c.layer.convolution_param.num_output
    if c.layer.convolution_param.axis not in (1, -3):
        raise c.refused("its channels lie on axis %d; only axis 1 is exported" % c.layer.convolution_param.axis)
    if not c.ins or len(c.ins) != c.tops:
        raise c.wrong("it makes a top of each bottom; it has %d bottoms and %d tops" % (len(c.ins), c.tops))
    for x in c.ins:
        channels = c.image(x).shape[1]
        if groups < 1 or channels % groups or out % groups or out < 1 or channels != c.ins[0].shape[1]:
            raise c.wrong("%d groups do not divide %d channels into %d" % (groups, channels, out))
    return c.ins


def _weights(c: Context, shape: Tuple[int, ...], out: int) -> List[str]:
    names = [c.weight("weight", c.blob(0, shape))]
    if c.layer.convolution_param.bias_term:
        names.append(c.weight("bias", c.blob(1, (out,))))
    return names


def _pooling(c: Context) -> List[Tensor]:
    param, x = c.layer.pooling_param, c.image(c.x)
    if c.tops != 1:
        raise c.refused("the places of the largest values, its second top, can't be exported")
    if param.pool not in (param.MAX, param.AVE):
        raise c.refused("stochastic pooling can't be exported; MAX and AVE can")
    if param.global_pooling:
        op = "GlobalMaxPool" if param.pool == param.MAX else "GlobalAveragePool"
        if param.pad or param.pad_h or param.pad_w or {param.stride, param.stride_h or 1, param.stride_w or 1} != {1}:
            raise c.wrong("global pooling takes no pad and no stride")
        return [c.node(op, [x], (*x.shape[:2], 1, 1))]
    kernel = (param.kernel_h, param.kernel_w)
    if param.HasField("kernel_size"):
        kernel = (param.kernel_size, param.kernel_size)
    # An old Caffe knows no other mode than rounding up.
    up = getattr(param, "round_mode", 0) == 0
    return [pooled(c, x, param.pool == param.MAX, kernel, pair(c, param, "stride", "stride", 1),
                   pair(c, param, "pad", "pad", 0), up)]  # fmt: skip


def pooled(c: Context, x: Tensor, largest: bool, kernel: Pair, stride: Pair, pad: Pair, up: bool = True) -> Tensor:
    """The largest or the mean value of each window, as Caffe takes them.

    Sizes round up, so that windows may stick out at the end; one that would begin in the padding there is left out. An
    average counts what it has of the image and its padding, but not what sticks out beyond that.
    """
    if min(kernel + stride) < 1 or any(p >= k for p, k in zip(pad, kernel)):
        raise c.wrong("kernel %s, stride %s and pad %s make no window" % (kernel, stride, pad))
    size, ends = [], []
    for n, k, s, p in zip(x.shape[2:], kernel, stride, pad):
        span = n + 2 * p - k
        count = (-(-span // s) if up else span // s) + 1
        if any(pad) and (count - 1) * s >= n + p:
            count -= 1
        if count < 1 or (count - 1) * s >= n + p:
            raise c.refused("a window of it lies outside of the image (%d, kernel %d, stride %d)" % (n, k, s))
        size.append(count)
        ends.append(max(0, (count - 1) * s + k - n - p))
    shape, geometry = x.shape[:2] + tuple(size), {"kernel_shape": list(kernel), "strides": list(stride)}
    if largest:
        return c.node("MaxPool", [x], shape, pads=list(pad) + ends, **geometry)
    if any(pad) and any(end > p for end, p in zip(ends, pad)):
        around = tuple(n + 2 * p for n, p in zip(x.shape[2:], pad))
        x = padded(c, x, [0, 0, *list(pad), 0, 0, *list(pad)], x.shape[:2] + around, 0.0)
        ends = [max(0, end - p) for end, p in zip(ends, pad)]
        pad = (0, 0)
    counted = int(any(pad))
    return c.node("AveragePool", [x], shape, pads=list(pad) + ends, count_include_pad=counted, **geometry)


def padded(c: Context, x: Tensor, pads: List[int], shape: Tuple[int, ...], value: float) -> Tensor:
    """``x`` in a frame of one value; ``pads`` as of ONNX, those before each axis first."""
    return c.node("Pad", [x, c.weight("pads", pads), c.weight("fill", value)], shape, mode="constant")


def _lrn(c: Context) -> List[Tensor]:
    param, x = c.layer.lrn_param, c.image(c.x)
    size = param.local_size
    if size % 2 == 0:
        raise c.wrong("its local_size is %d, and must be odd" % size)
    if param.norm_region == param.ACROSS_CHANNELS:
        return [c.node("LRN", [x], x.shape, size=size, alpha=param.alpha, beta=param.beta, bias=param.k)]
    # x (1 + alpha mean(x^2)) ^ -beta, the mean over a square of pixels; k has no part in it.
    squares = c.node("Mul", [x, x], x.shape)
    mean = pooled(c, squares, False, (size, size), (1, 1), (size // 2, size // 2))
    scaled = c.node("Mul", [mean, c.weight("alpha", param.alpha)], x.shape)
    shifted = c.node("Add", [scaled, c.weight("one", 1.0)], x.shape)
    power = c.node("Pow", [shifted, c.weight("exponent", -param.beta)], x.shape)
    return [c.node("Mul", [x, power], x.shape)]


RULES: Rules = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "Pooling": _pooling,
    "LRN": _lrn,
}
