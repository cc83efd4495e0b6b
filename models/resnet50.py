"""ResNet-50 of "Deep residual learning for image recognition" (He et al. 2015, arXiv:1512.03385), with the stride of a
stage in its first 3x3 convolution, as in torchvision ("v1.5"); 25.6 M parameters."""

from xframe.types import ModelSpec, layer

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def _conv(name, out, source=(), **window):
    """A convolution with its batch normalisation."""
    return layer(f"{name}_conv", "conv", source, out=out, **window), layer(name, "batchnorm")


def _block(name, source, channels, stride, projected):
    yield from _conv(f"{name}a", channels, source, kernel=1)
    yield layer(f"{name}a_relu", "relu")
    yield from _conv(f"{name}b", channels, kernel=3, stride=stride, pads=1)
    yield layer(f"{name}b_relu", "relu")
    yield from _conv(f"{name}c", 4 * channels, kernel=1)
    if projected:
        yield from _conv(f"{name}p", 4 * channels, source, kernel=1, stride=stride)
    yield layer(f"{name}_add", "add", (f"{name}c", f"{name}p" if projected else source))
    yield layer(name, "relu")


def _body():
    source = "pool1"
    for stage, (count, channels) in enumerate(STAGES, 2):
        for i in range(count):
            name = f"block{stage}_{i + 1}"
            yield from _block(name, source, channels, 2 if stage > 2 and i == 0 else 1, i == 0)
            source = name


SPEC = ModelSpec(
    name="resnet50",
    input=(3, 224, 224),
    layers=(
        *_conv("bn1", 64, kernel=7, stride=2, pads=3),
        layer("relu1", "relu"),
        layer("pool1", "maxpool", kernel=3, stride=2, pads=1),
        *_body(),
        layer("pool5", "avgpool", kernel=7),
        layer("flatten", "flatten"),
        layer("fc", "fc", out=1000),
    ),
)
