"""VGG-16, configuration D of "Very deep convolutional networks for large-scale image recognition" (Simonyan and
Zisserman 2014, arXiv:1409.1556), without batch normalization; 138.4 M parameters."""

from xframe.types import ModelSpec, layer

BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


def _features():
    for block, (count, channels) in enumerate(BLOCKS, 1):
        for i in range(1, count + 1):
            yield layer(f"conv{block}_{i}", "conv", out=channels, kernel=3, pads=1)
            yield layer(f"relu{block}_{i}", "relu")
        yield layer(f"pool{block}", "maxpool", kernel=2, stride=2)


SPEC = ModelSpec(
    name="vgg16",
    input=(3, 224, 224),
    layers=(
        *_features(),
        layer("flatten", "flatten"),
        layer("fc6", "fc", out=4096),
        layer("relu6", "relu"),
        layer("drop6", "dropout", rate=0.5),
        layer("fc7", "fc", out=4096),
        layer("relu7", "relu"),
        layer("drop7", "dropout", rate=0.5),
        layer("fc8", "fc", out=1000),
    ),
)
