"""What TensorFlow does by itself, depending on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xframe.errors import Unsupported

CODE = """
import numpy as np
from float64 import close
from nets import EVERY
from test_frameworks import case, native
from xframe.frameworks.tensorflow import TensorFlow

weights, x, want = case(EVERY)
close(native(TensorFlow(), EVERY, weights, x), want)
print(TensorFlow().build(EVERY, weights, "cpu", 2, 1).environment["onednn"])
"""


def raising(error):
    """A network on a GPU whose first step raises it."""
    module = pytest.importorskip("xframe.frameworks.tensorflow", exc_type=ImportError)

    def step():
        raise getattr(module.tf.errors, error)(None, None, "Conv2D: why\nmore")

    network = object.__new__(module._Network)
    network._shape, network._nchw, network._device = (1, 3, 8, 8), False, "/GPU:0"
    network.environment, network.bind, network.step = {"layout": "NHWC"}, lambda feeds: None, step
    return network


@pytest.mark.parametrize("error", ["InvalidArgumentError", "NotFoundError", "UnimplementedError"])
def test_an_operator_without_a_kernel_is_unsupported(error):
    with pytest.raises(Unsupported, match=r"no kernels for it here \(Conv2D: why\); use --device cpu"):
        raising(error)._try()


@pytest.mark.parametrize("error", ["ResourceExhaustedError", "InternalError", "AbortedError"])
def test_what_fails_otherwise_in_the_first_step_is_no_refusal(error):
    """Memory may be full, a library broken: another machine can have what this one lacked."""
    with pytest.raises(Exception, match="why") as found:
        raising(error)._try()
    assert type(found.value).__name__ == error


def test_every_op_the_other_way_than_by_default():
    """With oneDNN or without: each CPU has one as its default, as the other tests run it, and the other is a surprise
    on another machine."""
    onednn = not pytest.importorskip("xframe.frameworks.tensorflow", exc_type=ImportError)._onednn()
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == str(onednn)
