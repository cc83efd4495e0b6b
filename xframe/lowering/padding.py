"""The zero-padded image that the convolutions read: one copy, which also takes care of odd shapes.

Channels can be padded to whole vectors and rows and columns to whole tiles here, so that no other kernel has tails on
its input side; an NCHW image becomes NHWC on the way. Kernels that look at each pixel only a few times do better
without the copy: they read through :class:`Window`.
"""

from dataclasses import dataclass

from tvm import tirx

from xframe.lowering import ir, space_to_depth
from xframe.lowering.ir import T
from xframe.lowering.space_to_depth import unit
from xframe.lowering.stage import Stage, pad_to
from xframe.lowering.target import Target
from xframe.types import ConvSite


@dataclass(frozen=True)
class Window:
    """An image read as if it were padded to (height, width): made so by ``stage``, or clipped pixel by pixel."""

    height: int
    width: int
    channels: int
    stage: Stage | None
    shape: tuple[int, int, int]
    clip: tuple[int, int, int, int] | None

    @staticmethod
    def of(site: ConvSite, height: int, width: int, layout: str, cpu: Target) -> "Window":
        """The image that the convolution reads at stride 1.

        Clipped where it is NHWC, its channels are whole vectors and the stride is 1; copied otherwise.
        """
        c, (h, w), (top, left, _, _) = pad_to(unit(site).in_channels, cpu.lanes), site.in_hw, site.pads
        shape = (site.batch, height, width * c)
        if site.stride != (1, 1):
            return Window(height, width, c, space_to_depth.stage(site, height, width, c, layout, cpu), shape, None)
        if layout == "NHWC" and c == site.in_channels:
            whole = (top, left, h, w) == (0, 0, height, width)
            return Window(height, width, c, None, (site.batch, h, w * c), None if whole else (top, left, h, w))
        stage = pad_stage(site, height, width, c, layout, cpu)
        return Window(height, width, c, stage, shape, None)

    def pixel(self, x, i, row, column, channel):
        """The value at (row, column) of the padded image ``i``, a vector if ``channel`` is one."""
        if self.clip is None:
            return x[i, row, column * self.channels + channel]
        top, left, h, w = self.clip
        inside = tirx.all(row >= top, row < top + h, column >= left, column < left + w)
        value = x[i, row - top, (column - left) * self.channels + channel]
        return tirx.if_then_else(inside, value, ir.zero())


def gathered(site: ConvSite, layout: str, target: Target) -> tuple[int, int, Stage | None]:
    """Height and width of the image that a column matrix of ``site`` is gathered from, and what makes it, if padded."""
    height, width = site.in_hw
    if any(site.pads):
        extents = zip(site.out_hw, site.kernel, site.stride, site.dilation, strict=True)
        height, width = ((out - 1) * stride + (kernel - 1) * dilation + 1 for out, kernel, stride, dilation in extents)
    return height, width, pad_stage(site, height, width, site.in_channels, layout, target)


def pad_stage(site: ConvSite, height: int, width: int, channels: int, layout: str, cpu: Target) -> Stage | None:
    """Copy the image of ``site`` into a (batch, height, width * channels) one that has the site's top and left padding.

    What lies outside the image is zero; the image may also be cut off at the bottom and right, where a strided
    convolution does not look. None when there is nothing to do: the image has that shape already.
    """
    n, c, (h, w), (top, left, _, _) = site.batch, site.in_channels, site.in_hw, site.pads
    if layout == "NHWC" and (top, left, h, w, c) == (0, 0, height, width, channels):
        return None
    rows, columns = min(h, height - top), min(w, width - left)

    def by_value(x, y):
        with ir.units(n, height, width, channels) as (i, row, col, k):
            inside = tirx.all(row >= top, row < top + rows, col >= left, col < left + columns, k < c)
            place = (row - top, (col - left) * c + k) if layout == "NHWC" else (k, row - top, col - left)
            T.buffer_store(y, tirx.if_then_else(inside, x[(i, *place)], ir.zero()), [i, row, col * channels + k])

    def by_line(x, y):
        def fill(i, row, start, length, value):
            ir.copy(y, lambda k: [i, row, start + k], value, length, cpu.lanes)

        def nothing(_):
            return ir.zero()

        with ir.units(n, height) as (i, row), T.If(tirx.all(row >= top, row < top + rows)):
            with T.Then():
                fill(i, row, 0, left * channels, nothing)
                if layout == "NHWC" and channels == c:  # a row is one contiguous run in both
                    fill(i, row, left * c, columns * c, lambda k: x[i, row - top, k])
                else:
                    with T.serial(0, columns) as col:
                        at = (left + col) * channels
                        if layout == "NHWC":
                            fill(i, row, at, c, lambda k: x[i, row - top, col * c + k])
                        else:
                            with T.serial(0, c) as k:
                                T.buffer_store(y, x[i, k, row - top, col], [i, row, at + k])
                        fill(i, row, at + c, channels - c, nothing)
                fill(i, row, (left + columns) * channels, (width - left - columns) * channels, nothing)
            with T.Else():
                fill(i, row, 0, width * channels, nothing)

    shape = (n, height, width * channels)
    source = (n, h, w * c) if layout == "NHWC" else (n, c, h, w)
    body = by_value if cpu.kind == "cuda" else by_line
    return Stage("pad", ir.kernel({"x": source, "y": shape}, body), (), shape)
