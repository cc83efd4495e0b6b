"""Every model of ours: as published, and with activations that stay in a range where float32 errors mean something."""

from dataclasses import replace

import pytest

from xframe import zoo

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

#: name -> (parameters, multiply-adds of the convolutions at batch 1, features into the first fc). The parameters of
#: alexnet, vgg16 and alexnet_bvlc are those of torchvision and Caffe; the rest is worked out by hand from the layers'
#: sizes in the publications.
PUBLISHED = {
    "alexnet": (61_100_840, 655_566_528, 9216),
    "alexnet_bvlc": (60_965_224, 665_784_864, 9216),
    "overfeat": (145_920_872, 2_671_478_784, 36864),
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
    first = next(x.name for x in spec.layers if x.op == "fc")
    assert (sum(size.values()), macs, shapes[sources[first][0]][1]) == PUBLISHED[name]
    assert shapes[spec.layers[-1].name] == (1, 1000)
    assert spec.layers[-1].op == "fc"


def _run(spec, weights, x):
    """Standard deviation of every layer's output, computed in float32."""
    stds = {}
    for item in spec.layers:
        w = {k.rpartition(".")[2]: torch.from_numpy(v) for k, v in weights.items() if k.startswith(f"{item.name}.")}
        if item.op == "conv":
            x = F.conv2d(x, w["weight"], w["bias"], item["stride"], item["pads"][:2], groups=item["groups"])
        elif item.op == "fc":
            x = F.linear(x, w["weight"], w["bias"])
        elif item.op == "relu":
            x = F.relu(x)
        elif item.op == "maxpool":
            x = F.max_pool2d(x, item["kernel"], item["stride"])
        elif item.op == "lrn":
            x = F.local_response_norm(x, item["size"], item["alpha"], item["beta"], item["bias"])
        elif item.op == "flatten":
            x = x.flatten(1)
        else:
            assert item.op == "dropout"
        stds[item.name] = x.std().item()
    return stds


@pytest.mark.parametrize("name", PUBLISHED)
def test_activations_neither_vanish_nor_explode(name):
    spec = zoo.spec(name)
    if name != "alexnet":  # the fc layers are alike, and large
        end = next(i for i, x in enumerate(spec.layers) if x.op == "flatten")
        spec = replace(spec, layers=spec.layers[:end])
    stds = _run(spec, zoo.weights(spec), torch.from_numpy(zoo.inputs((1, *spec.input), 0)))
    assert {k: v for k, v in stds.items() if not 0.3 < v < 10} == {}
