"""Does Theano work here? One convolution, compiled; facts as JSON on the last line of stdout."""

import json
import os

import numpy as np

out = os.dup(1)
os.dup2(2, 1)
import theano  # noqa: E402
import theano.tensor as T  # noqa: E402
from theano.tensor.nnet import conv2d  # noqa: E402

image = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
x = T.tensor4("x", dtype="float32")
run = theano.function([x], conv2d(x, theano.shared(np.ones((1, 2, 3, 3), np.float32)), filter_flip=False))
got = run(image).reshape(2, 2)
expected = np.array([[234.0, 252.0], [306.0, 324.0]])
assert np.allclose(got, expected), f"a convolution gave {got.tolist()}, not {expected.tolist()}"
nodes = sorted({type(node.op).__name__ for node in run.maker.fgraph.toposort()})
assert "CorrMM" in nodes, f"its convolution is not the one compiled with BLAS, but among {nodes}"
os.write(out, json.dumps({"version": theano.__version__}).encode() + b"\n")
