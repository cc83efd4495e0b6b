"""What TensorFlow does by itself, depending on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("onednn", [False, True])
def test_every_op_with_and_without_onednn(onednn):
    """Each CPU has one of the two as its default, and the other is a surprise on another machine."""
    pytest.importorskip("tensorflow")
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == str(onednn)
