"""The networks that ship with the ``onnx`` package: their own expected outputs, and weights that mean something."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.lowering import zoo
from tests.lowering.networks import HOST, run
from xframe import artifact, planning, registry
from xframe.environment import cpu_device
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.lowering import pipeline
from xframe.types import Artifact, Plan

#: Each network under one lowering, the sites that it refuses under direct. ShuffleNet has none for a transform.
LOWERINGS = {
    "bvlc_alexnet": "fft",
    "densenet121": "winograd",
    "inception_v1": "fft",
    "resnet50": "winograd",
    "shufflenet": "gemm",
    "squeezenet": "fft",
    "vgg19": "winograd",
    "zfnet512": "fft",
}
#: Half a gigabyte of random weights and their float64 reference cost as much as those of all others, and tell nothing
#: new: its 3x3 convolutions under Winograd are ResNet's and DenseNet's, its fully connected layers AlexNet's.
AS_SHIPPED = ("vgg19",)


@dataclass(frozen=True)
class Network:
    name: str
    loaded: Artifact
    plan: Plan
    module: tvm.IRModule
    built: pipeline.Built
    machine: relax.VirtualMachine


def lowered(name, model, folder) -> tuple[Artifact, Plan, tuple]:
    """``model`` through a file, as a user's, and through everything before the compiler."""
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    loaded = artifact.load(path)
    plan = planning.plan(LOWERINGS[name], [s for _, s in loaded.conv_sites], cpu_device(), fallback="direct")
    return loaded, plan, pipeline.forced(artifact.read(path), plan, HOST)


@pytest.fixture(scope="module")
def network(request, tmp_path_factory) -> Network:
    """With random weights. Compiling takes most of the time, and weights are no part of the code: once is enough."""
    name, folder = request.param, tmp_path_factory.mktemp("random")
    model = zoo.with_logits(name) if name in AS_SHIPPED else zoo.with_weights(name)
    loaded, plan, (module, parameters, sites) = lowered(name, model, folder)
    built = pipeline.Built(tvm.compile(module, target=HOST.tvm), parameters, sites, [])
    return Network(name, loaded, plan, module, built, relax.VirtualMachine(built.executable, tvm.cpu()))


@pytest.mark.parametrize("network", [name for name in LOWERINGS if name not in AS_SHIPPED], indirect=True)
def test_within_its_bound_with_random_weights(network):
    sites = network.built.sites
    assert [s.site for s in sites] == [site for _, site in network.loaded.conv_sites]
    assert all(s.selected == network.plan[s.site] for s in sites)
    assert {s.selected for s in sites} >= {LOWERINGS[network.name]}
    x = np.random.default_rng(1).standard_normal(network.loaded.inputs[0].shape, dtype=np.float32)
    judged = Reference.of_onnx(network.loaded).evaluate([x], {s.site: s.rounding for s in sites})
    verdict = judge(run(network.built, [x], network.machine), judged)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("network", LOWERINGS, indirect=True)
def test_shipped_output(network, tmp_path):
    """The file as it ships is the same code with other weights, and gives the output beside it."""
    loaded, _, (module, parameters, sites) = lowered(network.name, zoo.with_logits(network.name), tmp_path)
    tvm.ir.assert_structural_equal(module, network.module)
    assert [s.site for s in sites] == [site for _, site in loaded.conv_sites]
    x = np.random.default_rng(0).standard_normal(loaded.inputs[0].shape, dtype=np.float32)
    built = pipeline.Built(network.built.executable, parameters, sites, [])
    np.testing.assert_allclose(run(built, [x], network.machine)[0], zoo.expected(network.name), rtol=1e-3, atol=1e-6)


def test_every_lowering_is_registered_under_its_name():
    for name in registry.LOWERINGS:
        assert registry.load(registry.LOWERINGS, name).name == name
