"""Every model of ours: as published, and with activations that stay in a range where float32 errors mean something."""

from dataclasses import replace

import pytest

from xframe import zoo

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

#: name -> (parameters, multiply-adds of the convolutions at batch 1, features into the flatten). The parameters of
#: alexnet, vgg16, resnet50, squeezenet, mobilenet_v2 and alexnet_bvlc are those of torchvision and Caffe; the rest is
#: worked out by hand from the layers' sizes in the publications.
PUBLISHED = {
    "alexnet": (61_100_840, 655_566_528, 9216),
    "alexnet_bvlc": (60_965_224, 665_784_864, 9216),
    "mobilenet_v2": (3_504_872, 299_494_272, 1280),
    "overfeat": (145_920_872, 2_671_478_784, 36864),
    "resnet50": (25_557_032, 4_087_136_256, 2048),
    "squeezenet": (1_235_496, 349_151_936, 1000),
    "vgg16": (138_357_544, 15_346_630_656, 25088),
}


def test_all_models_are_covered():
    assert set(PUBLISHED) == {p.stem for p in zoo.folders()[-1].glob("*.py")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_published(name):
    spec = zoo.spec(name)
    tensors, shapes, sources = zoo.tensors(spec), zoo.shapes(spec, 1), spec.sources()
    size = {k: int(torch.Size(v).numel()) for k, v in tensors.items()}
    macs = sum(size[f"{x.name}.weight"] * shapes[x.name][2] * shapes[x.name][3] for x in spec.layers if x.op == "conv")
    normalised = [sources[x.name][0] for x in spec.layers if x.op == "batchnorm"]
    untrained = {f"{conv}.bias" for conv in normalised} | {k for k in size if k.endswith((".mean", ".var"))}
    flatten = next(x.name for x in spec.layers if x.op == "flatten")
    assert (sum(n for k, n in size.items() if k not in untrained), macs, shapes[flatten][1]) == PUBLISHED[name]
    assert shapes[spec.layers[-1].name] == (1, 1000)
    assert spec.layers[-1].op == ("flatten" if name == "squeezenet" else "fc")  # no softmax


def _run(spec, weights, x):
    """Standard deviation of every layer's output, computed in float32."""
    values, sources = {"input": x}, spec.sources()
    for item in spec.layers:
        w = {k.rpartition(".")[2]: torch.from_numpy(v) for k, v in weights.items() if k.startswith(f"{item.name}.")}
        x, *others = (values[s] for s in sources[item.name])
        if item.op == "conv":
            x = F.conv2d(x, w["weight"], w["bias"], item["stride"], item["pads"][:2], groups=item["groups"])
        elif item.op == "fc":
            x = F.linear(x, w["weight"], w["bias"])
        elif item.op == "batchnorm":
            x = F.batch_norm(x, w["mean"], w["var"], w["scale"], w["shift"], eps=item["epsilon"])
        elif item.op == "relu":
            x = F.relu(x)
        elif item.op == "relu6":
            x = F.relu6(x)
        elif item.op == "maxpool":
            x = F.max_pool2d(x, item["kernel"], item["stride"], item["pads"][:2])
        elif item.op == "avgpool":
            x = F.avg_pool2d(x, item["kernel"])
        elif item.op == "lrn":
            x = F.local_response_norm(x, item["size"], item["alpha"], item["beta"], item["bias"])
        elif item.op == "flatten":
            x = x.flatten(1)
        elif item.op == "add":
            x = x + others[0]
        elif item.op == "concat":
            x = torch.cat([x, *others], 1)
        else:
            assert item.op == "dropout"
        values[item.name] = x
    return {name: value.std().item() for name, value in values.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_activations_neither_vanish_nor_explode(name):
    spec = zoo.spec(name)
    if name != "alexnet":  # the fc layers are alike, and large
        end = next(i for i, x in enumerate(spec.layers) if x.op == "flatten")
        spec = replace(spec, layers=spec.layers[:end])
    stds = _run(spec, zoo.weights(spec), torch.from_numpy(zoo.inputs((1, *spec.input), 0)))
    assert {k: v for k, v in stds.items() if not 0.3 < v < 10} == {}
