"""Does CNTK work here? One convolution; facts as JSON on the last line of stdout."""

import json
import os

import numpy as np

out = os.dup(1)
os.dup2(2, 1)
import cntk  # noqa: E402

image = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
x = cntk.input_variable((2, 4, 4))
weights = cntk.constant(np.ones((1, 2, 3, 3), np.float32))
network = cntk.convolution(weights, x, auto_padding=[False], sequential=False)
got = network.eval({x: image}, device=cntk.cpu()).reshape(2, 2)
expected = np.array([[234.0, 252.0], [306.0, 324.0]])
assert np.allclose(got, expected), f"a convolution gave {got.tolist()}, not {expected.tolist()}"
os.write(out, json.dumps({"version": cntk.__version__}).encode() + b"\n")
os._exit(0)
