"""AlexNet as published (Krizhevsky, Sutskever, Hinton 2012), in the form of Caffe's ``models/bvlc_alexnet``: 227 x 227
input, two groups in conv2, conv4 and conv5, LRN before pooling; 61.0 M parameters."""

from xframe.types import ModelSpec, layer

LRN = {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}

SPEC = ModelSpec(
    name="alexnet_bvlc",
    input=(3, 227, 227),
    layers=(
        layer("conv1", "conv", out=96, kernel=11, stride=4),
        layer("relu1", "relu"),
        layer("norm1", "lrn", **LRN),
        layer("pool1", "maxpool", kernel=3, stride=2),
        layer("conv2", "conv", out=256, kernel=5, pads=2, groups=2),
        layer("relu2", "relu"),
        layer("norm2", "lrn", **LRN),
        layer("pool2", "maxpool", kernel=3, stride=2),
        layer("conv3", "conv", out=384, kernel=3, pads=1),
        layer("relu3", "relu"),
        layer("conv4", "conv", out=384, kernel=3, pads=1, groups=2),
        layer("relu4", "relu"),
        layer("conv5", "conv", out=256, kernel=3, pads=1, groups=2),
        layer("relu5", "relu"),
        layer("pool5", "maxpool", kernel=3, stride=2),
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
