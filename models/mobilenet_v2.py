"""MobileNet-v2, width 1, of "MobileNetV2: Inverted residuals and linear bottlenecks" (Sandler et al. 2018,
arXiv:1801.04381); 3.5 M parameters."""

from xframe.types import ModelSpec, layer

#: Table 2 of the paper: (expansion, output channels, blocks, stride of the first).
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(name, out, relu=True, **window):
    yield layer(f"{name}_conv", "conv", out=out, **window)
    yield layer(f"{name}_bn", "batchnorm")
    if relu:
        yield layer(f"{name}_relu", "relu6")


def _blocks():
    number, channels, source = 0, 32, "conv1_relu"
    for expansion, out, count, first_stride in STAGES:
        for i in range(count):
            number += 1
            name, stride, wide = f"block{number}", first_stride if i == 0 else 1, channels * expansion
            if expansion > 1:
                yield from _conv(f"{name}_expand", wide, kernel=1)
            yield from _conv(f"{name}_depthwise", wide, kernel=3, stride=stride, pads=1, groups=wide)
            yield from _conv(f"{name}_project", out, relu=False, kernel=1)
            last = f"{name}_project_bn"
            if stride == 1 and channels == out:
                yield layer(name, "add", (last, source))
                last = name
            channels, source = out, last


SPEC = ModelSpec(
    name="mobilenet_v2",
    input=(3, 224, 224),
    layers=(
        *_conv("conv1", 32, kernel=3, stride=2, pads=1),
        *_blocks(),
        *_conv("conv18", 1280, kernel=1),
        layer("pool18", "avgpool", kernel=7),
        layer("flatten", "flatten"),
        layer("drop", "dropout", rate=0.2),
        layer("fc", "fc", out=1000),
    ),
    seed=1,  # of the first few, one whose activations do pass 6
)
