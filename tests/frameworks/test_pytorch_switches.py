"""The switches of PyTorch: each changes what runs, and nothing of what comes out."""

import subprocess
import sys

import pytest
import torch
from float64 import close, output
from nets import EVERY

from xframe import registry, zoo
from xframe.types import ModelSpec, layer
from xframe.worker.host import worker_environment

#: Large enough for oneDNN to take it.
WIDE = ModelSpec(
    "wide",
    (16, 20, 20),
    (layer("c", "conv", out=32, kernel=3, pads=1), layer("r", "relu"), layer("f", "flatten"), layer("fc", "fc", out=5)),
)
EAGER = {s.name: s for s in registry.FRAMEWORKS["pytorch"].switches}


@pytest.fixture
def build():
    enabled = torch.backends.mkldnn.enabled

    def made(spec, **options):
        framework = registry.load(registry.FRAMEWORKS, "pytorch")
        network = framework.build(spec, zoo.weights(spec), "cpu", 2, 2, options)
        network.bind([zoo.inputs((2, *spec.input), 1)])
        network.step()
        return network

    yield made
    torch.backends.mkldnn.enabled = enabled


ON_A_CPU = [(s.name, v) for s in EAGER.values() for v in s.values if not s.env and s.name != "cudnn_benchmark"]


@pytest.mark.parametrize(("name", "value"), ON_A_CPU)
def test_outputs_stay_right(build, name, value):
    want = output(EVERY, zoo.weights(EVERY), zoo.inputs((2, *EVERY.input), 1))
    close(build(EVERY, **{name: value}).fetch()[0], want)


def test_channels_last_does_without_reorders_of_images(build):
    def layouts(value):
        (profile,) = build(WIDE, channels_last=value).profile(1)
        return {k.layer: k.name for k in profile.kernels if k.kind == "layout"}

    assert layouts("off")["c"].endswith(" to abcd")  # the image, back from blocks of channels
    assert not layouts("on").get("c", "").endswith(("to abcd", "to acdb"))  # weights alone
    assert "f" not in layouts("off")
    assert "f" in layouts("on")  # the price: channels go to the front for the product


def test_mkldnn_off_is_torchs_own_convolution_and_a_later_network_has_it_on(build):
    def words(**options):
        (profile,) = build(WIDE, **options).profile(1)
        return {k.algorithm for k in profile.kernels if k.kind == "conv"}

    assert words(mkldnn="off") == {"im2col+gemm"}
    assert "im2col+gemm" not in words()
    assert build(WIDE, mkldnn="off").environment["mkldnn"] is False


@pytest.mark.parametrize(("value", "inference", "grad"), [("inference", True, False), ("no_grad", False, False),
                                                         ("grad", False, True)])  # fmt: skip
def test_grad_mode(build, value, inference, grad):
    network = build(WIDE, grad_mode=value)
    assert network._y.is_inference() == inference
    assert (network._y.grad_fn is not None) == grad


CODE = """
import os
os.environ["OMP_DISPLAY_ENV"] = "verbose"
import re, torch
x = torch.ones(16 << 20)
print(re.search(r"AnonHugePages: +([0-9]+) kB", open("/proc/self/smaps_rollup").read()).group(1))
"""


def told(**options):
    """What is set by variables of the process, in a process of its own: (kB of huge pages, words of OpenMP)."""
    variables = registry.variables(registry.FRAMEWORKS, "pytorch", options.items(), "cpu")
    env = worker_environment(2, "cpu", variables)
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
    return int(done.stdout), done.stderr


def test_omp_wait_and_huge_pages():
    """Of two switches that have nothing to do with each other, both values in two processes."""
    assert {*EAGER["omp_wait"].values} == {"default", "passive"}
    assert {*EAGER["huge_pages"].values} == {"off", "on"}
    huge, spins = told(omp_wait="default", huge_pages="on")
    small, waits = told(omp_wait="passive", huge_pages="off")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in waits
    assert "GOMP_SPINCOUNT = '0'" in waits
    assert "GOMP_SPINCOUNT = '0'" not in spins
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as f:
        if "[madvise]" not in f.read():
            pytest.skip("huge pages are not for those who ask for them on this machine")
    assert huge - small > 32 << 10
