"""Run inside Caffe's own environment by the tests: networks in text with made-up weights, and what Caffe computes.

``python caffe_run.py FOLDER``: for each ``FOLDER/*.prototxt``, a ``.caffemodel`` of the same name with random weights,
and a ``.npz`` with random inputs (``in:<blob>``) and Caffe's outputs (``out:<blob>``), each blob as it is in the end.
"""

import sys
import zlib
from pathlib import Path

import caffe
import numpy as np


def weigh(layer, rng):
    """Random weights that keep values in range, and that no part of a layer can ignore."""
    for number, blob in enumerate(layer.blobs):
        if layer.type == "BatchNorm" and number == 2:
            blob.data[...] = 4.0  # statistics are sums over batches
        elif layer.type == "BatchNorm" and number == 1:
            blob.data[...] = rng.uniform(2, 6, blob.data.shape)
        else:
            fan_in = max(1, int(np.prod(blob.data.shape[1:])))
            blob.data[...] = rng.standard_normal(blob.data.shape) / np.sqrt(fan_in)


def run(path):
    rng = np.random.default_rng(zlib.crc32(path.stem.encode()))
    net = caffe.Net(str(path), caffe.TEST)
    for layer in net.layers:
        weigh(layer, rng)
    net.save(str(path.with_suffix(".caffemodel")))
    arrays = {}
    for name in net.inputs:
        values = rng.standard_normal(net.blobs[name].data.shape).astype(np.float32)
        net.blobs[name].data[...] = arrays["in:" + name] = values
    net.forward()
    for name in net.outputs:
        arrays["out:" + name] = np.array(net.blobs[name].data)
    np.savez(str(path.with_suffix(".npz")), **arrays)


if __name__ == "__main__":
    caffe.set_mode_cpu()
    for each in sorted(Path(sys.argv[1]).glob("*.prototxt")):
        run(each)
