"""SqueezeNet 1.1, the authors' cheaper form of "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB
model size" (Iandola et al. 2016, arXiv:1602.07360), without its final softmax, input 224 x 224; 1.2 M parameters.

Poolings round sizes down, where Caffe and torchvision round up; at this input size the two agree."""

from xframe.types import ModelSpec, layer


def _fire(number, squeezed, expanded):
    name = f"fire{number}"
    yield layer(f"{name}_squeeze", "conv", out=squeezed, kernel=1)
    yield layer(f"{name}_relu", "relu")
    for size, pads in ((1, 0), (3, 1)):
        yield layer(f"{name}_expand{size}", "conv", f"{name}_relu", out=expanded, kernel=size, pads=pads)
        yield layer(f"{name}_expand{size}_relu", "relu")
    yield layer(name, "concat", (f"{name}_expand1_relu", f"{name}_expand3_relu"))


SPEC = ModelSpec(
    name="squeezenet",
    input=(3, 224, 224),
    layers=(
        layer("conv1", "conv", out=64, kernel=3, stride=2),
        layer("relu1", "relu"),
        layer("pool1", "maxpool", kernel=3, stride=2),
        *_fire(2, 16, 64),
        *_fire(3, 16, 64),
        layer("pool3", "maxpool", kernel=3, stride=2),
        *_fire(4, 32, 128),
        *_fire(5, 32, 128),
        layer("pool5", "maxpool", kernel=3, stride=2),
        *_fire(6, 48, 192),
        *_fire(7, 48, 192),
        *_fire(8, 64, 256),
        *_fire(9, 64, 256),
        layer("drop9", "dropout", rate=0.5),
        layer("conv10", "conv", out=1000, kernel=1),
        layer("relu10", "relu"),
        layer("pool10", "avgpool", kernel=13),
        layer("flatten", "flatten"),
    ),
)
