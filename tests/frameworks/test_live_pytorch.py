"""A user's nn.Module: what it gives, how it is exported, and that a check leaves it as it was."""

import warnings

import numpy as np
import onnxruntime
import pytest
from nets import SMALL
from onnx import numpy_helper

from xframe import zoo
from xframe.errors import UsageError, XframeError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from xframe.frameworks.pytorch import PyTorch  # noqa: E402
from xframe.frameworks.pytorch_live import Module  # noqa: E402

pytestmark = pytest.mark.usefixtures("_torchlib")


class Two(nn.Module):
    """Two inputs, two outputs in a dict, a weight that is used twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5, bias=False)

    def forward(self, image, other):
        y = self.conv(image).relu()
        return {"main": self.fc(y.mean((2, 3))) + other, "aux": self.fc(y.amax((2, 3)))}


@pytest.fixture
def feeds():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 3, 6, 6), np.float32), rng.standard_normal((2, 5), np.float32)]


def onnx_run(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], feeds, strict=True)))


@pytest.fixture
def two():
    torch.manual_seed(0)
    return Two().eval()


def test_run_and_export_agree(two, feeds, capfd):
    live = Module(two)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, found = live.export(feeds), live.run(feeds)
    assert capfd.readouterr() == ("", "")
    assert live.kind == "torch.nn.Module"
    assert live.shapes() is None
    assert live.notes == ()
    assert [i.name for i in model.graph.input] == ["image", "other"]
    assert [o.name for o in model.graph.output] == ["output_0", "output_1"]
    assert {"conv.weight", "conv.bias"} <= {t.name for t in model.graph.initializer}
    assert not any(n.metadata_props for n in model.graph.node)
    for want, got in zip(found, onnx_run(model, feeds), strict=True):
        assert want.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_input_that_nothing_reads_stays_an_input():
    class First(nn.Module):
        def forward(self, x, mask):
            return x.relu()

    feeds = [np.ones((1, 3), np.float32), np.ones((1, 1), np.float32)]
    live = Module(First().eval())
    assert [i.name for i in live.export(feeds).graph.input] == ["x", "mask"]
    inputs, weights = live.gradients(feeds, [feeds[0]])
    assert [g.max() for g in inputs] == [1, 0]
    assert weights == {}


def test_gradients_of_inputs_and_of_frozen_weights(two, feeds):
    two.conv.requires_grad_(False)
    cotangents = [np.full((2, 5), 2, np.float32), np.zeros((2, 5), np.float32)]
    inputs, weights = Module(two).gradients(feeds, cotangents)
    np.testing.assert_array_equal(inputs[1], cotangents[0])
    assert weights.keys() == {"conv.weight", "conv.bias", "fc.weight"}
    step = 1e-2  # the function is linear in this weight
    before = Module(two).run(feeds)[0].sum()
    with torch.no_grad():
        two.fc.weight[1, 2] += step
    assert weights["fc.weight"][1, 2] == pytest.approx(2 * (Module(two).run(feeds)[0].sum() - before) / step, rel=1e-2)
    assert not two.conv.weight.requires_grad
    assert two.fc.weight.grad is None


def test_training_mode_is_told_kept_and_leaves_no_trace():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())
    assert net.training
    before = {name: value.clone() for name, value in net.state_dict().items()}
    live, x = Module(net), np.random.default_rng(1).standard_normal((2, 3, 5, 5)).astype(np.float32)
    (note,) = live.notes
    assert "training mode" in note
    assert "dropout is active in 2" in note
    assert "statistics of the batch in 1" in note
    state = torch.random.get_rng_state()
    (y,) = live.run([x])
    model = live.export([x])
    live.gradients([x], [np.ones_like(y)])
    assert net.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert (y == 0).sum() > 20  # dropped, not switched off
    assert "Dropout" in {n.op_type for n in model.graph.node}


def test_a_dropout_that_drops_nothing_and_a_mode_without_effect():
    assert Module(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Dropout(0)).train()).notes[0].count("none of its layers") == 1
    net = nn.Sequential(nn.Dropout(0.5)).eval()
    net[0].train()
    assert "dropout is active in 0" in Module(net).notes[0]


def test_other_precisions_are_told():
    live = Module(nn.Linear(3, 2).double().eval())
    assert live.notes == ("its parameters are float64",)
    assert live.run([np.ones((1, 3), np.float32)])[0].dtype == np.float32


def test_a_module_that_writes_into_its_input():
    x = -np.ones((1, 3), np.float32)
    live = Module(nn.Sequential(nn.ReLU(inplace=True)).eval())
    assert live.run([x])[0].max() == 0
    inputs, _ = live.gradients([x], [x])
    assert np.array_equal(x, -np.ones((1, 3)))
    assert inputs[0].max() == 0


def test_a_registered_network_has_the_weights_of_its_export():
    weights, x = zoo.weights(SMALL), zoo.inputs((2, *SMALL.input), 1)
    live = Module.from_spec(SMALL, weights, 2)
    assert live.shapes() == [(2, *SMALL.input)]
    (y,) = live.run([x])
    inputs, found = live.gradients([x], [y])
    assert found.keys() == {name for name, _ in live._module.named_parameters()}
    live.place({t.name: numpy_helper.to_array(t) for t in PyTorch().export(SMALL, weights, 2).graph.initializer})
    _, placed = live.gradients([x], [y])
    assert "grouped.weight" in placed
    assert {"conv.weight", "conv.weight (changed)"} & placed.keys() == {"conv.weight (changed)"}  # with bn folded in
    assert inputs[0].shape == x.shape
    assert np.abs(inputs[0]).max() > 0


def test_what_a_module_says_is_one_line():
    with pytest.raises(XframeError, match=r"Linear failed on float32\[1, 7\]: RuntimeError") as e:
        Module(nn.Linear(3, 2)).export([np.zeros((1, 7), np.float32)])
    assert "\n" not in str(e.value)


def test_a_result_that_is_no_tensor():
    class Length(nn.Module):
        def forward(self, x):
            return len(x)

    with pytest.raises(UsageError, match="gives int"):
        Module(Length().eval()).run([np.zeros((1, 2), np.float32)])
    with pytest.raises(UsageError, match=r"a Tensor is no torch\.nn\.Module"):
        Module(torch.zeros(1))
