"""OverFeat, the "fast" model of "OverFeat: Integrated recognition, localization and detection using convolutional
networks" (Sermanet et al. 2013, arXiv:1312.6229), as in convnet-benchmarks; 145.9 M parameters."""

from xframe.types import ModelSpec, layer

SPEC = ModelSpec(
    name="overfeat",
    input=(3, 231, 231),
    layers=(
        layer("conv1", "conv", out=96, kernel=11, stride=4),
        layer("relu1", "relu"),
        layer("pool1", "maxpool", kernel=2, stride=2),
        layer("conv2", "conv", out=256, kernel=5),
        layer("relu2", "relu"),
        layer("pool2", "maxpool", kernel=2, stride=2),
        layer("conv3", "conv", out=512, kernel=3, pads=1),
        layer("relu3", "relu"),
        layer("conv4", "conv", out=1024, kernel=3, pads=1),
        layer("relu4", "relu"),
        layer("conv5", "conv", out=1024, kernel=3, pads=1),
        layer("relu5", "relu"),
        layer("pool5", "maxpool", kernel=2, stride=2),
        layer("flatten", "flatten"),
        layer("fc6", "fc", out=3072),
        layer("relu6", "relu"),
        layer("fc7", "fc", out=4096),
        layer("relu7", "relu"),
        layer("fc8", "fc", out=1000),
    ),
)
