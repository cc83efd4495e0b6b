"""``torch.compile`` as a framework of its own. Each network costs seconds of g++, so there is one."""

import pytest
from float64 import close, output

from xframe import registry, zoo
from xframe.errors import Unavailable
from xframe.types import ModelSpec, layer

NET = ModelSpec(
    "net",
    (3, 9, 7),
    (layer("c", "conv", out=16, kernel=3, pads=1), layer("b", "batchnorm"), layer("r", "relu6")),
)


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that what is set is undone
    try:
        return registry.load(registry.FRAMEWORKS, "torch.compile")
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_right_values_for_each_input(compiled, tmp_path):
    weights = zoo.weights(NET)
    network = compiled.build(NET, weights, "cpu", 2, 2)
    for seed in (1, 2):
        x = zoo.inputs((2, *NET.input), seed)
        network.bind([x])
        network.step()
        network.sync()
        close(network.fetch()[0], output(NET, weights, x))
    assert network.seconds["compile"] > 0
    assert list((tmp_path / "inductor").rglob("*.cpp"))  # it did compile, and into our folder
    network.close()


def test_its_export_is_pytorchs(compiled):
    weights = zoo.weights(NET)
    plain = registry.load(registry.FRAMEWORKS, "pytorch")
    one, two = (f.export(NET, weights, 1).SerializeToString() for f in (plain, compiled))
    assert one == two


def test_no_compiler_is_said_in_words(compiled, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match=r"torch\.compile needs the C\+\+ compiler no-such-compiler"):
        compiled.build(NET, zoo.weights(NET), "cpu", 1, 1)


def test_it_is_opt_in():
    assert "torch.compile" not in registry.defaults(registry.FRAMEWORKS)
    assert "pytorch" in registry.defaults(registry.FRAMEWORKS)
