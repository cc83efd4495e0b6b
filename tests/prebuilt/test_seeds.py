"""Parameters that need not travel: which are seeded weights in another order, and that they come back to the bit."""

import hashlib

import numpy as np
import pytest

from xframe import zoo
from xframe.errors import XframeError
from xframe.prebuilt import seeds
from xframe.types import ModelSpec, layer

SPEC = ModelSpec(
    name="seeded",
    input=(4, 9, 9),
    layers=(
        layer("conv1", "conv", out=6, kernel=3, groups=2),
        layer("flatten", "flatten"),
        layer("drop", "dropout", rate=0.5),
        layer("fc", "fc", out=10),
    ),
)


@pytest.fixture
def built(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "spec", {"seeded": SPEC}.__getitem__)
    (tmp_path / "parameters").mkdir()
    return tmp_path


def store(built, array):
    data = np.ascontiguousarray(array, np.float32).tobytes()
    path = built / "parameters" / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return path


def tiled(weight, tile):
    """(inputs, outputs) -> (outputs/tile, inputs, tile), zeros added: as kernels of a product read it."""
    weight = np.pad(weight, ((0, 0), (0, -weight.shape[1] % tile)))
    return weight.reshape(len(weight), -1, tile).transpose(1, 0, 2)


def layouts():
    """What compilers make of the weights: as they are, transposed, for channels that come last, in tiles."""
    weights = zoo.weights(SPEC)
    conv, fc = weights["conv1.weight"], weights["fc.weight"]
    last = fc.reshape(10, 6, 7, 7).transpose(0, 2, 3, 1).reshape(10, -1)
    by_group = conv.reshape(2, 3, 2, 3, 3).transpose(0, 3, 4, 2, 1)
    in_tiles = np.stack([tiled(share.reshape(-1, 3), 4) for share in by_group])
    return [conv, weights["fc.bias"], fc, fc.T, last, tiled(last.T, 4), conv.transpose(0, 2, 3, 1), in_tiles]


def test_weights_in_any_order_are_made_of_their_seeds(built):
    paths = [store(built, array) for array in layouts()]
    other = store(built, layouts()[0] * 2)
    found = seeds.recipes(built, ["seeded", "seeded"])
    assert set(found) == {path.name for path in paths}
    seeds.write(built, found)
    kept = {path: path.read_bytes() for path in (*paths, other)}
    for path in paths[1:]:
        path.unlink()
    seeds.restore(built)
    assert {path: path.read_bytes() for path in kept} == kept


def test_other_weights_of_the_same_seeds_are_said(built, monkeypatch):
    path = store(built, zoo.weights(SPEC)["fc.weight"])
    seeds.write(built, seeds.recipes(built, ["seeded"]))
    path.unlink()
    real = zoo.weights(SPEC)
    monkeypatch.setattr(zoo, "weights", lambda spec: {name: array + 1 for name, array in real.items()})
    with pytest.raises(XframeError, match=r"numpy .* makes another fc.weight of seeded of its seed"):
        seeds.restore(built)
    assert not path.exists()
