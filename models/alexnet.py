"""AlexNet, the single-column variant of "One weird trick for parallelizing convolutional neural networks"
(Krizhevsky 2014, arXiv:1404.5997), as in torchvision and convnet-benchmarks. No LRN, no groups; 61.1 M parameters."""

from xframe.types import ModelSpec, layer

SPEC = ModelSpec(
    name="alexnet",
    input=(3, 224, 224),
    layers=(
        layer("conv1", "conv", out=64, kernel=11, stride=4, pads=2),
        layer("relu1", "relu"),
        layer("pool1", "maxpool", kernel=3, stride=2),
        layer("conv2", "conv", out=192, kernel=5, pads=2),
        layer("relu2", "relu"),
        layer("pool2", "maxpool", kernel=3, stride=2),
        layer("conv3", "conv", out=384, kernel=3, pads=1),
        layer("relu3", "relu"),
        layer("conv4", "conv", out=256, kernel=3, pads=1),
        layer("relu4", "relu"),
        layer("conv5", "conv", out=256, kernel=3, pads=1),
        layer("relu5", "relu"),
        layer("pool5", "maxpool", kernel=3, stride=2),
        layer("flatten", "flatten"),
        layer("drop6", "dropout", rate=0.5),
        layer("fc6", "fc", out=4096),
        layer("relu6", "relu"),
        layer("drop7", "dropout", rate=0.5),
        layer("fc7", "fc", out=4096),
        layer("relu7", "relu"),
        layer("fc8", "fc", out=1000),
    ),
)
