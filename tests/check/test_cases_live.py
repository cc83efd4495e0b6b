"""Cases that are about frameworks: a dropout left in training mode, TensorFlow's padding, ported weights."""

import numpy as np
import pytest
from small_models import DIFFERENT, EQUIVALENT, said

from xframe.check.api import check_equivalence
from xframe.equivalence.result import judged

torch = pytest.importorskip("torch")
OPTIONS = {"runners": (), "count": 1}
X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def network(padding=1):
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3, stride=2, padding=padding), torch.nn.ReLU(), torch.nn.Dropout(0.5)
    return torch.nn.Sequential(*layers)


def test_dropout_passes_at_inference_alone():
    evaluated, again, trained = network().eval(), network().eval(), network().train()
    check = check_equivalence([evaluated, again, trained], X, **OPTIONS)
    assert check.state is not EQUIVALENT
    same, other = map(judged, check.comparisons)
    assert same is EQUIVALENT
    assert other is not EQUIVALENT
    assert "training" in said(check)
    assert trained.training  # nobody switched it


def ported(tf, module):
    """The convolution in TensorFlow: SAME pads 0 and 1 where stride is 2 and the size even."""
    w = tf.constant(module[0].weight.detach().numpy().transpose(2, 3, 1, 0))
    b = tf.constant(module[0].bias.detach().numpy())

    @tf.function(input_signature=[tf.TensorSpec((1, 8, 8, 3), tf.float32)])
    def run(x):
        return tf.transpose(tf.nn.relu(tf.nn.conv2d(x, w, 2, "SAME") + b), (0, 3, 1, 2))

    return run


def test_same_of_tensorflow_is_not_padding_1_of_torch():
    tf = pytest.importorskip("tensorflow")
    module = network().eval()
    check = check_equivalence({"torch": module, "tensorflow": ported(tf, module)}, X, **OPTIONS)
    assert check.state is DIFFERENT
    assert "pad" in said(check)
    padded = torch.nn.Sequential(torch.nn.ZeroPad2d((0, 1, 0, 1)), network(0)).eval()
    padded[1].load_state_dict(module.state_dict())
    check = check_equivalence({"torch": padded, "tensorflow": ported(tf, module)}, X, **OPTIONS)
    assert check.state is EQUIVALENT, said(check)
