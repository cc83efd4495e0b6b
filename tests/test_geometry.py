"""The shapes that follow from a spec, and specs that make no sense."""

import pytest

from xframe import geometry
from xframe.errors import UsageError
from xframe.types import ConvSite, ModelSpec, layer

TINY = ModelSpec(
    "tiny",
    (3, 8, 7),
    (
        layer("c", "conv", out=6, kernel=3, pads=(0, 1, 2, 0), groups=3),
        layer("b", "batchnorm"),
        layer("f", "flatten"),
        layer("fc", "fc", out=500),
    ),
)


def test_shapes():
    assert geometry.shapes(TINY, 5) == {
        "input": (5, 3, 8, 7),
        "c": (5, 6, 8, 6),
        "b": (5, 6, 8, 6),
        "f": (5, 288),
        "fc": (5, 500),
    }


def test_sites():
    net = ModelSpec(
        "net",
        (4, 9, 7),
        (
            layer("a", "conv", out=8, kernel=(5, 3), stride=(2, 1), pads=(2, 1, 1, 0), groups=2),
            layer("r", "relu"),
            layer("b", "conv", out=2, kernel=3, pads=1, dilation=2),
        ),
    )
    assert geometry.sites(net, 3) == {
        "a": ConvSite(3, 4, (9, 7), 8, (5, 3), (2, 1), (2, 1, 1, 0), (1, 1), 2),
        "b": ConvSite(3, 8, (4, 6), 2, (3, 3), pads=(1, 1, 1, 1), dilation=(2, 2)),
    }
    assert geometry.sites(net, 3)["a"].out_hw == geometry.shapes(net, 3)["a"][2:]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([layer("c", "conv", out=4, kernel=3, groups=2)], "2 groups do not divide 3"),
        ([layer("c", "conv", out=4, kernel=9)], "window of 9 does not fit in 8"),
        ([layer("c", "conv", out=4, kernel=3, stride=0)], "must be positive"),
        ([layer("c", "conv", out=4, kernel=3, pads=-1)], "not negative"),
        ([layer("c", "maxpool", kernel=2, stride=2, pads=2)], "smaller than the window"),
        ([layer("c", "fc", out=4)], "needs a flatten"),
        ([layer("f", "flatten"), layer("c", "lrn", size=5, alpha=1.0, beta=1.0, bias=1.0)], "needs an image"),
        ([layer("c", "lrn", size=4, alpha=1.0, beta=1.0, bias=1.0)], "size 4 is even"),
        ([layer("x", "conv", out=4, kernel=1), layer("c", "add", ("x", "input"))], "can't add"),
        ([layer("x", "flatten"), layer("c", "concat", ("x", "input"))], "can't concatenate"),
        ([layer("c", "add", "input")], "takes two inputs or more, got 1"),
        ([layer("c", "relu", ("input", "input"))], "takes one input, got 2"),
        ([layer("c", "relu", "later"), layer("later", "relu")], "'later' is no earlier layer"),
        ([layer("c", "relu"), layer("c", "relu", "input")], "earlier layer of that name"),
    ],
)
def test_wrong_specs_name_the_layer(layers, words):
    with pytest.raises(UsageError, match=f"model wrong, layer c .*{words}"):
        geometry.shapes(ModelSpec("wrong", (3, 8, 8), tuple(layers)), 1)


def test_tensors():
    assert geometry.tensors(TINY) == {
        "c.weight": (6, 1, 3, 3),
        "c.bias": (6,),
        **{f"b.{part}": (6,) for part in ("scale", "shift", "mean", "var")},
        "fc.weight": (500, 288),
        "fc.bias": (500,),
    }
