"""Lies in PyTorch: each is carried out in every step, clocks itself, and leaves the outputs as they are."""

import tempfile

import numpy as np
import pytest
from torch import nn

from xframe import zoo
from xframe.frameworks.pytorch import PyTorch
from xframe.selftest import ledger, pytorch_lies
from xframe.types import ModelSpec, layer

SPEC = ModelSpec(
    "lying",
    (3, 16, 16),
    (
        layer("conv1", "conv", out=8, kernel=3, pads=1),
        layer("relu1", "relu"),
        layer("pool1", "maxpool", kernel=2, stride=2),
        layer("conv2", "conv", out=32, kernel=3, pads=1),
        layer("relu2", "relu"),
        layer("flatten", "flatten"),
        layer("fc", "fc", out=5),
        layer("relu3", "relu"),
    ),
)
LIES = {
    pytorch_lies.SleepInDispatch: "",
    pytorch_lies.SpinInDispatch: "",
    pytorch_lies.SlowKernel: "conv2",
    pytorch_lies.NeedlessTranspose: "relu1",  # as large an image as relu2 reads, and the first
    pytorch_lies.AllocationStorm: "relu1",
}


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    """Ledgers that nobody reads go with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def feed(seed):
    return [zoo.inputs((2, *SPEC.input), seed)]


def network(framework):
    made = framework().build(SPEC, zoo.weights(SPEC), "cpu", 2, 1)
    made.bind(feed(0))
    return made


def stepped(made):
    made.step()
    made.sync()
    return made.fetch()[0]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_in_every_step_and_changes_no_output(lie):
    honest, lying = network(PyTorch), network(lie)
    for seed in (1, 2, 3):
        for made in (honest, lying):
            made.bind(feed(seed))
        np.testing.assert_array_equal(stepped(lying), stepped(honest))
    facts = lying.environment
    assert facts["planted_layer"] == LIES[lie]
    assert {k: v for k, v in facts.items() if not k.startswith("planted")} == honest.environment
    lying.close()
    taken = ledger.taken(facts["planted_file"])
    assert len(taken) == 3  # the steps that found its size are not in it
    assert min(taken) > 0


def test_a_transpose_is_seen_as_copies_at_its_layer():
    made = network(pytorch_lies.NeedlessTranspose)
    (one,) = made.profile(1)
    honest = {(k.kind, k.layer) for p in network(PyTorch).profile(1) for k in p.kernels}
    assert {(k.kind, k.layer) for k in one.kernels} - honest == {("copy", "relu1")}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_in_profiled_steps_too_and_they_are_kept_apart(lie, monkeypatch):
    def profile(self, passes):
        for _ in range(2 * passes):
            self.step()
        return ["profile"] * passes

    monkeypatch.setattr("xframe.frameworks.pytorch._Network.profile", profile)
    lying = network(lie)
    stepped(lying)
    assert lying.profile(3) == ["profile"] * 3
    lying.close()
    assert len(ledger.taken(lying.environment["planted_file"])) == 1


def test_the_slowed_kernel_is_computed_a_fixed_number_of_times(monkeypatch):
    calls, forward = [], nn.Conv2d.forward

    def counted(self, x):
        calls.append(self.out_channels)
        return forward(self, x)

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    lying = network(pytorch_lies.SlowKernel)
    counts = []
    for _ in range(3):
        calls.clear()
        stepped(lying)
        counts.append(calls.count(32))
        assert calls.count(8) == 1
    assert counts[0] > 1
    assert len(set(counts)) == 1


def test_the_lie_takes_its_share_of_an_honest_step(monkeypatch):
    """By a clock that knows only the spin: the honest step takes 20 turns of it."""
    now = [0.0]

    def tick():
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(pytorch_lies.time, "perf_counter", tick)
    forward = nn.Linear.forward

    def slow(self, x):
        now[0] += 20 * pytorch_lies.SPIN
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", slow)
    lying = network(pytorch_lies.SpinInDispatch)
    stepped(lying)
    lying.close()
    (taken,) = ledger.taken(lying.environment["planted_file"])
    assert taken == pytest.approx(20 * pytorch_lies.SPIN * pytorch_lies.SHARE, rel=0.1)


def test_a_cached_output_stays_what_it_was():
    lying = network(pytorch_lies.CachedOutput)
    first = stepped(lying)
    lying.bind(feed(1))
    np.testing.assert_array_equal(stepped(lying), first)
    assert not np.array_equal(stepped(network(PyTorch)), np.zeros_like(first))
