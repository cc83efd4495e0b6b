"""Does Caffe work here? One convolution; facts as JSON on the last line of stdout."""

import json
import os
import tempfile

import numpy as np

out = os.dup(1)
os.dup2(2, 1)
import caffe  # noqa: E402

NET = """
name: "probe"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }
layer { name: "y" type: "Convolution" bottom: "x" top: "y"
  convolution_param { num_output: 1 kernel_size: 3 bias_term: false } }
"""

caffe.set_mode_cpu()
with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as f:
    f.write(NET)
    f.flush()
    net = caffe.Net(f.name, caffe.TEST)
net.params["y"][0].data[...] = 1
net.blobs["x"].data[...] = np.arange(32).reshape(1, 2, 4, 4)
got = net.forward()["y"].reshape(2, 2)
expected = np.array([[234.0, 252.0], [306.0, 324.0]])
assert np.allclose(got, expected), f"a convolution gave {got.tolist()}, not {expected.tolist()}"
os.write(out, json.dumps({"version": caffe.__version__}).encode() + b"\n")
