"""The networks that ship with the ``onnx`` package: their own expected outputs, and weights that mean something."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.lowering import zoo
from tests.lowering.networks import HOST, quick, run
from xframe import artifact, planning, registry
from xframe.environment import cpu_device
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.lowering import pipeline
from xframe.types import Artifact, Plan

#: Each network under one lowering, the sites that it refuses under direct. ShuffleNet has none for a transform; the
#: transforms are where they have fewest kinds of sites, as their code takes long to compile.
LOWERINGS = {
    "bvlc_alexnet": "fft",
    "densenet121": "winograd",
    "inception_v1": "gemm",
    "resnet50": "direct",
    "shufflenet": "gemm",
    "squeezenet": "fft",
    "vgg19": "winograd",
    "zfnet512": "fft",
}
#: Compiled as for users: one without branches, one with. It is the graph and its numbers that are looked at here, and
#: that LLVM optimises the larger ones adds nothing to that but minutes.
USUAL = ("bvlc_alexnet", "squeezenet")
#: Half a gigabyte of random weights and their float64 reference cost as much as those of all others, and tell nothing
#: new: VGG's 3x3 convolutions under Winograd are DenseNet's, its fully connected layers AlexNet's, as are all operators
#: of ZFNet, and under the same lowering.
AS_SHIPPED = ("vgg19", "zfnet512")


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
    """As it ships. Compiling takes most of the time, and weights are no part of the code: once is enough."""
    name, folder = request.param, tmp_path_factory.mktemp("shipped")
    loaded, plan, (module, parameters, sites) = lowered(name, zoo.with_logits(name), folder)
    executable = pipeline.compiled(module, HOST) if name in USUAL else quick(module)
    built = pipeline.Built(executable, parameters, sites, [])
    return Network(name, loaded, plan, module, built, relax.VirtualMachine(executable, tvm.cpu()))


@pytest.mark.parametrize("network", LOWERINGS, indirect=True)
def test_shipped_output(network):
    """The file as it ships gives the output beside it."""
    assert [s.site for s in network.built.sites] == [site for _, site in network.loaded.conv_sites]
    assert all(s.selected == network.plan[s.site] for s in network.built.sites)
    assert {s.selected for s in network.built.sites} >= {LOWERINGS[network.name]}
    x = np.random.default_rng(0).standard_normal(network.loaded.inputs[0].shape, dtype=np.float32)
    got = run(network.built, [x], network.machine)[0]
    np.testing.assert_allclose(got, zoo.expected(network.name), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("network", [name for name in LOWERINGS if name not in AS_SHIPPED], indirect=True)
def test_within_its_bound_with_random_weights(network, tmp_path):
    """They make the same code with other parameters."""
    loaded, plan, (module, parameters, sites) = lowered(network.name, zoo.with_weights(network.name), tmp_path)
    tvm.ir.assert_structural_equal(module, network.module)
    assert [s.site for s in sites] == [site for _, site in loaded.conv_sites]
    assert all(s.selected == plan[s.site] for s in sites)
    x = np.random.default_rng(1).standard_normal(loaded.inputs[0].shape, dtype=np.float32)
    judged = Reference.of_onnx(loaded).evaluate([x], {s.site: s.rounding for s in sites})
    built = pipeline.Built(network.built.executable, parameters, sites, [])
    verdict = judge(run(built, [x], network.machine), judged)
    assert verdict.ok, verdict.reason


def test_every_lowering_is_registered_under_its_name():
    for name in registry.LOWERINGS:
        assert registry.load(registry.LOWERINGS, name).name == name
