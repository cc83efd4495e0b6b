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
