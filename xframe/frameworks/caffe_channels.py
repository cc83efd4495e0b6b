"""Caffe's layers that hold weights for channels, as nodes: products, normalisation, scales and biases."""

from typing import List, Optional, Tuple

import numpy as np

from xframe.frameworks.caffe_context import Context, Operand, Rules, Shape, Tensor


def _inner_product(c: Context) -> List[Tensor]:
    param, x = c.layer.inner_product_param, c.x
    axis, out = c.axis(x, param.axis), param.num_output
    rows, columns = _product(x.shape[:axis]), _product(x.shape[axis:])
    weight = c.blob(0, (columns, out) if param.transpose else (out, columns))
    if axis == 1 and len(x.shape) != 2:
        x = c.node("Flatten", [x], (rows, columns), axis=1)
    elif len(x.shape) != 2 or axis != 1:
        x = c.node("Reshape", [x, c.weight("rows", [rows, columns])], (rows, columns))
    inputs: List[Operand] = [x, c.weight("weight", weight)]
    if param.bias_term:
        inputs.append(c.weight("bias", c.blob(1, (out,))))
    top = c.node("Gemm", inputs, (rows, out), transB=0 if param.transpose else 1)
    shape = (*c.ins[0].shape[:axis], out)
    if shape != top.shape:
        top = c.node("Reshape", [top, c.weight("shape", list(shape))], shape)
    return [top]


def _product(numbers: Shape) -> int:
    return int(np.prod(numbers, dtype=np.int64))


def _batch_norm(c: Context) -> List[Tensor]:
    param, x = c.layer.batch_norm_param, c.x
    if param.HasField("use_global_stats") and not param.use_global_stats:
        raise c.refused("it takes the statistics of each batch (use_global_stats: false); those of training can be")
    channels = (x.shape[1] if len(x.shape) > 1 else 1,)
    count = c.blob(2, (1,))[0]  # sums of so many batches are in the file
    factor = np.float32(0 if count == 0 else 1 / np.float32(count))
    mean, var = (c.blob(number, channels) * factor for number in (0, 1))
    values = (("scale", np.ones(channels)), ("shift", np.zeros(channels)), ("mean", mean), ("var", var))
    names = [c.weight(part, value) for part, value in values]
    return [c.node("BatchNormalization", [x, *names], x.shape, epsilon=param.eps)]


def _scale(c: Context) -> List[Tensor]:
    param = c.layer.scale_param
    x, shape, learnt = _operand(c, param)
    if learnt and _joins(c, x, shape, param):
        return [x]
    factor = _reshaped(c, x, shape, param.axis, "scale", None if learnt else c.ins[1])
    top = c.node("Mul", [x, factor], x.shape)
    if param.bias_term:
        bias = c.weight("shift", c.blob(int(learnt), shape).reshape(_over(c, x, shape, param.axis)))
        top = c.node("Add", [top, bias], x.shape)
    return [top]


def _bias(c: Context) -> List[Tensor]:
    param = c.layer.bias_param
    x, shape, learnt = _operand(c, param)
    bias = _reshaped(c, x, shape, param.axis, "shift", None if learnt else c.ins[1])
    return [c.node("Add", [x, bias], x.shape)]


def _operand(c: Context, param) -> Tuple[Tensor, Shape, bool]:
    """What is scaled or shifted, the shape of the other operand, and whether that is learnt."""
    c.bottoms(1, 2)
    x = c.ins[0]
    learnt = len(c.ins) == 1
    axis = c.axis(x, param.axis)
    if learnt:
        end = len(x.shape) if param.num_axes == -1 else axis + param.num_axes
        return x, x.shape[axis:end], True
    shape = c.ins[1].shape
    if shape and x.shape[axis : axis + len(shape)] != shape:
        raise c.wrong("its bottoms do not fit at axis %d: %s and %s" % (axis, x.shape, shape))
    return x, shape, False


def _over(c: Context, x: Tensor, shape: Shape, axis: int) -> Shape:
    """``shape`` with as many ones behind it as it takes to lie over the axes of ``x`` from ``axis`` on."""
    return shape + (1,) * (len(x.shape) - c.axis(x, axis) - len(shape)) if shape else ()


def _reshaped(c: Context, x: Tensor, shape: Shape, axis: int, part: str, given: Optional[Tensor]) -> Operand:
    """The other operand, a tensor or the first blob, over the axes of ``x`` from ``axis`` on."""
    over = _over(c, x, shape, axis)
    if given is None:
        return c.weight(part, c.blob(0, shape).reshape(over))
    return given if over == shape else c.node("Reshape", [given, c.weight("shape", list(over))], over)


def _joins(c: Context, x: Tensor, shape: Shape, param) -> bool:
    """Put the scale of a batch normalisation that nobody else reads into its node."""
    maker = c.graph.maker(x)
    if maker is None or not c.sole or c.axis(x, param.axis) != 1 or len(shape) != 1:
        return False
    node, weights = c.graph.nodes[maker], c.graph.weights
    if node.op != "BatchNormalization" or (weights[node.inputs[1]] != 1).any() or weights[node.inputs[2]].any():
        return False
    weights[node.inputs[1]] = np.asarray(c.blob(0, shape), np.float32)
    if param.bias_term:
        weights[node.inputs[2]] = np.asarray(c.blob(1, shape), np.float32)
    return True


def _prelu(c: Context) -> List[Tensor]:
    param, x = c.layer.prelu_param, c.x
    shape = () if param.channel_shared else (x.shape[c.axis(x, 1)],)
    slope = c.blob(0, shape)
    slope = slope.reshape((1,) if param.channel_shared else shape + (1,) * (len(x.shape) - 2))
    return [c.node("PRelu", [x, c.weight("slope", slope)], x.shape)]


RULES: Rules = {
    "InnerProduct": _inner_product,
    "BatchNorm": _batch_norm,
    "Scale": _scale,
    "Bias": _bias,
    "PReLU": _prelu,
}
