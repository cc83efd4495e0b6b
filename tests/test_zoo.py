"""Finding models, and the weights and inputs that all frameworks share."""

import numpy as np
import pytest

from xframe import zoo
from xframe.errors import UsageError
from xframe.types import ModelSpec, layer

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


def test_names_include_ours():
    assert {"alexnet", "alexnet_bvlc", "mobilenet_v2", "overfeat", "resnet50", "squeezenet", "vgg16"} <= set(
        zoo.names()
    )
    assert zoo.names() == sorted(zoo.names())


@pytest.mark.parametrize(("asked", "hint"), [("alexnt", "did you mean .*alexnet"), ("zzz", "there are: .*vgg16")])
def test_unknown_model(asked, hint):
    with pytest.raises(UsageError, match=f"unknown model '{asked}': {hint}"):
        zoo.spec(asked)


def test_a_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XFRAME_MODELS", str(tmp_path))
    head = "from xframe.types import ModelSpec, layer\n"
    (tmp_path / "mine.py").write_text(f"{head}SPEC = ModelSpec('mine', (3, 4, 4), (layer('r', 'relu'),))\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "nospec.py").write_text("")
    (tmp_path / "other.py").write_text(f"{head}SPEC = ModelSpec('another', (3, 4, 4), (layer('r', 'relu'),))\n")
    (tmp_path / "alexnet.py").write_text(f"{head}SPEC = ModelSpec('alexnet', (1, 4, 4), (layer('r', 'relu'),))\n")
    (tmp_path / "wrong.py").write_text(f"{head}SPEC = ModelSpec('wrong', (3, 4, 4), (layer('r', 'relu', 'x'),))\n")
    assert "mine" in zoo.names()
    assert zoo.spec("mine").input == (3, 4, 4)
    assert zoo.spec("alexnet").input == (1, 4, 4)  # the user's folder comes first
    with pytest.raises(UsageError, match=r"broken\.py does not load \(ZeroDivisionError"):
        zoo.spec("broken")
    with pytest.raises(UsageError, match=r"nospec\.py does not load"):
        zoo.spec("nospec")
    with pytest.raises(UsageError, match="must be a ModelSpec named 'other'; it is one named 'another'"):
        zoo.spec("other")
    with pytest.raises(UsageError, match=r"layer r .*'x' is no earlier layer"):
        zoo.spec("wrong")


def test_weights_follow_the_recipe():
    weights = zoo.weights(TINY)
    assert {k: v.shape for k, v in weights.items()} == zoo.tensors(TINY)
    assert all(v.dtype == np.float32 for v in weights.values())
    assert weights["c.weight"].shape == (6, 1, 3, 3)
    assert weights["fc.weight"].std() == pytest.approx(np.sqrt(2 / 288), rel=0.02)
    assert all(weights[f"b.{part}"].min() >= 0.5 for part in ("scale", "var"))
    assert weights["b.var"].max() > 1.5  # 2 times that of c's input
    assert all(np.all(v != 0) for v in weights.values())


def test_batchnorm_undoes_what_branches_add_up():
    """A chain of residual blocks: without statistics that follow it, the activations would triple in each."""

    def block(i):
        yield layer(f"c{i}", "conv", out=64, kernel=1)
        yield layer(f"b{i}", "batchnorm")
        yield layer(f"a{i}", "add", (f"b{i}", f"r{i - 1}" if i else "input"))
        yield layer(f"r{i}", "relu")

    spec = ModelSpec("chain", (64, 12, 12), tuple(x for i in range(12) for x in block(i)))
    weights, x, stds = zoo.weights(spec), zoo.inputs((64, 144), 0), []
    for i in range(12):
        w = {k.partition(".")[2]: v for k, v in weights.items() if k.startswith((f"c{i}.", f"b{i}."))}
        y = weights[f"c{i}.weight"][:, :, 0, 0] @ x + weights[f"c{i}.bias"][:, None]
        y = (y - w["mean"][:, None]) * (w["scale"] / np.sqrt(w["var"] + 1e-5))[:, None] + w["shift"][:, None]
        stds.append(y.std())
        x = np.maximum(x + y, 0)
    assert min(stds) > 0.5
    assert max(stds) < 2.5


def test_a_tensor_depends_on_seed_and_name_alone():
    one, two = zoo.weights(TINY), zoo.weights(ModelSpec("other", (3, 8, 7), TINY.layers[:1]))
    np.testing.assert_array_equal(one["c.weight"], two["c.weight"])
    assert not np.array_equal(one["b.shift"], one["b.mean"])
    seeded = zoo.weights(ModelSpec("tiny", TINY.input, TINY.layers, seed=1))
    assert not np.array_equal(one["c.weight"], seeded["c.weight"])


def test_weights_file_is_written_once_and_keyed_by_the_spec(tmp_path, monkeypatch):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path))
    path = zoo.weights_file(TINY)
    assert path.parent == tmp_path / "weights"
    with np.load(path) as stored:
        for name, value in zoo.weights(TINY).items():
            np.testing.assert_array_equal(stored[name], value)
    before = path.stat().st_mtime_ns
    assert zoo.weights_file(TINY) == path
    assert path.stat().st_mtime_ns == before
    assert zoo.weights_file(ModelSpec("tiny", TINY.input, TINY.layers, seed=1)) != path
    assert len(list(path.parent.iterdir())) == 2


def test_inputs():
    x = zoo.inputs((4, 3, 32, 32), 7)
    assert x.dtype == np.float32
    assert x.std() == pytest.approx(1, rel=0.02)
    np.testing.assert_array_equal(x, zoo.inputs((4, 3, 32, 32), 7))
    assert not np.array_equal(x, zoo.inputs((4, 3, 32, 32), 8))
    assert zoo.inputs((1, 2), 0, "float64").dtype == np.float64
