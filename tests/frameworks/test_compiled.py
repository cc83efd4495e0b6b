"""``torch.compile`` as a framework of its own. Each network costs seconds of g++, so there is one."""

from dataclasses import replace

import pytest
from float64 import close, output

from xframe import registry, zoo
from xframe.errors import Unavailable, XframeError
from xframe.types import ModelSpec, layer

NET = ModelSpec(
    "net",
    (3, 9, 7),
    (
        layer("c", "conv", out=16, kernel=3, pads=1),
        layer("b", "batchnorm"),
        layer("r", "relu6"),
        layer("p", "maxpool", kernel=2, stride=2),
        layer("c2", "conv", out=8, kernel=(3, 2), pads=(1, 0, 0, 1)),
        layer("f", "flatten"),
        layer("fc", "fc", out=5),
        layer("s", "softmax"),
    ),
)


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that what is set is undone
    try:
        framework = registry.load(registry.FRAMEWORKS, "torch.compile")
    except Unavailable as e:
        pytest.skip(str(e))
    from torch._inductor import config

    # Which of the CPU's instruction sets g++ knows is not tried out, which costs six more runs of it.
    with config.patch("cpp.vec_isa_ok", True):
        yield framework


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
    for profile in network.profile(2):
        kernels = [k for k in profile.kernels if k.kind != "layout"]
        layers = [(k.layer, k.kind, k.site) for k in kernels]
        sites = zoo.sites(NET, 2)
        assert list(dict.fromkeys(layers)) == [
            ("c", "conv", sites["c"]), ("p", "pool", None), ("c2", "conv", sites["c2"]), ("fc", "fc", None),
            ("s", "softmax", None)]  # fmt: skip
        assert all(bool(k.algorithm) == (k.kind == "conv") for k in kernels)
        # Frozen weights are packed beforehand: what is brought into form is the image.
        assert {k.name for k in kernels if k.kind in ("conv", "fc")} == {
            "mkldnn::_convolution_pointwise", "mkl::_mkl_linear"}  # fmt: skip
        assert not any("reorder" in k.name for k in profile.kernels)
        assert {"python", "dispatch"} <= {s.kind for s in profile.host}
    network.close()


SMALL = ModelSpec("small", (16, 9, 7), (layer("c", "conv", out=16, kernel=3, pads=1), layer("r", "relu")))


@pytest.fixture
def small(compiled):
    """The small network with a switch turned, its outputs checked."""

    def made(**options):
        weights, x = zoo.weights(SMALL), zoo.inputs((2, *SMALL.input), 1)
        network = compiled.build(SMALL, weights, "cpu", 2, 2, options)
        network.bind([x])
        network.step()
        close(network.fetch()[0], output(SMALL, weights, x))
        return network

    return made


@pytest.mark.filterwarnings("ignore")
def test_freezing_off_packs_weights_in_every_step(small):
    network = small(freezing="off")
    (profile,) = network.profile(1)
    assert {(k.name, k.layer) for k in profile.kernels if k.kind == "conv"} == {("aten::mkldnn_convolution", "c")}
    assert any("reorder" in k.name for k in profile.kernels if k.kind == "layout")
    network.close()


@pytest.mark.filterwarnings("ignore")
def test_cpp_wrapper(small, tmp_path, monkeypatch):
    from xframe.frameworks import pytorch_profile  # needs torch

    network = small(cpp_wrapper="on")
    assert any("inductor_entry_impl" in f.read_text() for f in (tmp_path / "inductor").rglob("*.cpp"))
    (profile,) = network.profile(1)
    found = [k for k in profile.kernels if k.kind == "conv"]
    assert {(k.layer, k.site) for k in found} == {("c", zoo.sites(SMALL, 2)["c"])}
    assert all("_convolution_pointwise" in k.name and k.algorithm for k in found)

    seen = pytorch_profile.profiles
    monkeypatch.setattr(pytorch_profile, "profiles", lambda *network: [replace(p, kernels=()) for p in seen(*network)])
    with pytest.raises(XframeError, match="its profiler does not see"):
        network.profile(1)
    network.close()


@pytest.mark.usefixtures("_torchlib")
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
