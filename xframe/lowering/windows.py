"""Pooling, concatenation and local response normalisation of NHWC images, straight-line over vectors of channels."""

from tvm import tirx

from xframe.lowering import ir
from xframe.lowering.ir import T
from xframe.lowering.stage import Stage
from xframe.lowering.target import Target

LOWEST = -3.4028234663852886e38


def pool_stage(
    kind: str,
    shape: tuple[int, ...],
    out_hw: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilation: tuple[int, int],
    count_pads: bool,
    cpu: Target,
) -> Stage:
    """``kind`` is ``max`` or ``average``. A window is clipped to the image, so padding costs nothing.

    ``count_pads``: an average divides by what the window has inside the padded image, not inside the image.
    """
    n, h, w, c = shape
    oh, ow = out_hw
    top, left, bottom, right = pads

    def body(x, y):
        def output(i, row, col, base, width):
            y0, x0 = row * stride[0] - top, col * stride[1] - left
            rows, columns = ir.clip(y0, kernel[0], dilation[0], 0, h), ir.clip(x0, kernel[1], dilation[1], 0, w)
            total = ir.Scratch(1, width).buffer
            with T.vectorized(0, width) as v:
                T.buffer_store(total, T.float32(LOWEST if kind == "max" else 0.0), [0, v])
            with T.serial(*rows) as ky, T.serial(*columns) as kx, T.vectorized(0, width) as v:
                pixel = x[i, y0 + ky * dilation[0], x0 + kx * dilation[1], base + v]
                T.buffer_store(total, T.max(total[0, v], pixel) if kind == "max" else total[0, v] + pixel, [0, v])
            with T.vectorized(0, width) as v:
                value = total[0, v]
                if kind != "max":
                    if count_pads:
                        rows = ir.clip(y0, kernel[0], dilation[0], -top, h + bottom)
                        columns = ir.clip(x0, kernel[1], dilation[1], -left, w + right)
                    value = value / T.Cast("float32", (rows[1] - rows[0]) * (columns[1] - columns[0]))
                T.buffer_store(y, value, [i, row, col, base + v])

        if cpu.kind == "cuda":
            with ir.units(n, oh, ow, c) as (i, row, col, k):
                output(i, row, col, k, 1)
        else:
            with ir.units(n, oh) as (i, row), T.serial(0, ow) as col:
                ir.vectors(c, cpu.lanes, lambda base, width: output(i, row, col, base, width))

    out = (n, oh, ow, c)
    return Stage("pool", ir.kernel({"x": shape, "y": out}, body), (), out)


def channels_stage(shape: tuple[int, int, int], channels: list[int], cpu: Target) -> Stage:
    """Images of ``shape`` (batch, height, width) as one: their channels one after the other."""
    n, h, w = shape

    def body(*buffers):
        *images, y = buffers
        if cpu.kind == "cuda":
            start = 0
            for image, c in zip(images, channels, strict=True):
                with ir.units(n, h, w, c) as (i, row, col, k):
                    T.buffer_store(y, image[i, row, col, k], [i, row, col, start + k])
                start += c
            return
        with ir.units(n, h) as (i, row), T.serial(0, w) as col:
            start = 0
            for image, c in zip(images, channels, strict=True):
                at, value = (lambda k, start=start: [i, row, col, start + k]), lambda k, x=image: x[i, row, col, k]
                ir.copy(y, at, value, c, cpu.lanes)
                start += c

    out = (*shape, sum(channels))
    args = {f"x{j}": (*shape, c) for j, c in enumerate(channels)}
    return Stage("channels", ir.kernel({**args, "y": out}, body), (), out)


def lrn_stage(shape: tuple[int, ...], size: int, alpha: float, beta: float, bias: float, cpu: Target) -> Stage:
    """y = x / (bias + alpha/size * sum of x^2 over ``size`` channels) ** beta, the sum centred as ONNX has it."""
    n, h, w, c = shape
    before = (size - 1) // 2

    def scaled(value, total):
        return value * _power(T.float32(bias) + T.float32(alpha / size) * total, -beta)

    def by_value(x, y):
        with ir.units(*shape) as (*place, k):
            total = ir.zero()
            for d in range(-before, size - before):
                inside = tirx.all(k + d >= 0, k + d < c)
                value = tirx.if_then_else(inside, x[(*place, k + d)], ir.zero())
                total = total + value * value
            T.buffer_store(y, scaled(x[(*place, k)], total), [*place, k])

    def by_line(x, y):
        with ir.units(n, h) as (i, row), T.serial(0, w) as col:
            squares = T.alloc_buffer((c + size - 1,), ir.FLOAT, scope="local")

            def border(start, length):
                ir.copy(squares, lambda k: [start + k], lambda k: ir.zero(), length, cpu.lanes)

            border(0, before)
            ir.copy(squares, lambda k: [before + k], lambda k: x[i, row, col, k] * x[i, row, col, k], c, cpu.lanes)
            border(before + c, size - 1 - before)

            def value(k):
                total = squares[k]
                for d in range(1, size):
                    total = total + squares[k + d]
                return scaled(x[i, row, col, k], total)

            ir.copy(y, lambda k: [i, row, col, k], value, c, cpu.lanes)

    body = by_value if cpu.kind == "cuda" else by_line
    return Stage("lrn", ir.kernel({"x": shape, "y": shape}, body), (), shape)


def _power(x, exponent):
    if exponent == -0.75:  # the usual one: two square roots instead of a call to pow for each lane
        root = T.sqrt(x)
        return T.float32(1.0) / (root * T.sqrt(root))
    return T.pow(x, T.float32(exponent))
