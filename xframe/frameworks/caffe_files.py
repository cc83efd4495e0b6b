"""A user's Caffe model: the network in a text file, the weights in a binary one. Nothing in them is run."""

import warnings
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from caffe.proto import caffe_pb2
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from xframe.errors import ModelError, Unsupported, UsageError
from xframe.frameworks.caffe_graph import walk
from xframe.frameworks.caffe_upgrade import upgraded
from xframe.neutral import Graph


def converted(files: Sequence[str], batch: Optional[int]) -> Graph:
    """The graph of a network and its weights.

    Parameters
    ----------
    files
        ``deploy.prototxt`` and the ``.caffemodel``.
    batch
        Of the graph's inputs; None keeps that of the file.

    Raises
    ------
    UsageError
        Not two files.
    ModelError
        One can't be read, is malformed, or does not fit the other.
    Unsupported
        A layer that can't be exported; by name.
    """
    if len(files) != 2:
        raise UsageError("a Caffe model is two files, model.prototxt and model.caffemodel; %d were given" % len(files))
    net = network(files[0])
    try:
        return walk(net, _shared(net, weights(files[1])), batch)
    except (ModelError, Unsupported) as e:
        raise type(e)("%s: %s" % (files[0], e)) from e


def network(path: str) -> Any:
    """The network in a ``.prototxt`` in the form of Caffe 1.0, with the layers that a test phase has.

    Raises
    ------
    ModelError
        The file can't be read, or is no network.
    Unsupported
        It is in the form of 2013.
    """
    net = caffe_pb2.NetParameter()
    try:
        text_format.Merge(_content(path).decode("utf-8"), net)
    except (text_format.ParseError, UnicodeDecodeError) as e:
        raise ModelError("%s is no network in Caffe's text format: %s" % (path, " ".join(str(e).split()))) from e
    net = upgraded(net, path)
    kept = [layer for layer in net.layer if _included(layer, net.state)]
    if not kept:
        raise ModelError("%s has no layers for the test phase" % path)
    del net.layer[:]
    net.layer.extend(kept)
    return net


def weights(path: str) -> Dict[str, List[np.ndarray]]:
    """Layer -> its blobs, from a ``.caffemodel``.

    Raises
    ------
    ModelError
        The file can't be read, is no binary network, or is cut short.
    """
    net = caffe_pb2.NetParameter()
    content = _content(path)
    if content.startswith(b"\x89HDF"):
        raise ModelError("%s is an HDF5 file; save the weights as a binary .caffemodel" % path)
    try:
        with warnings.catch_warnings(record=True) as stopped:  # that it stopped before the end it tells by a warning
            warnings.simplefilter("always")
            net.ParseFromString(content)
        why = str(stopped[0].message) if stopped else ""
    except DecodeError as e:
        why = str(e)
    if why:
        raise ModelError("%s is no .caffemodel, or it is cut short or damaged (%s)" % (path, why))
    del content
    found: Dict[str, List[np.ndarray]] = {}
    for layer in list(net.layer) + list(net.layers):
        if not found.get(layer.name):  # an Input may have the name of its blob, and so of a layer
            found[layer.name] = [_array(blob, layer.name, path) for blob in layer.blobs]
    if not found:
        raise ModelError("%s has no layers: it is no .caffemodel" % path)
    return found


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as e:
        raise ModelError("can't read %s: %s" % (path, e.strerror or e)) from e


def _array(blob: Any, layer: str, path: str) -> np.ndarray:
    # Old files have four dimensions, always; of a single number a new one has none, and then not even that field.
    old = (blob.num, blob.channels, blob.height, blob.width) if blob.HasField("num") else ()
    shape = tuple(blob.shape.dim) if blob.HasField("shape") else old
    array = _numbers(blob)
    if min(shape, default=0) < 0 or array.size != int(np.prod(shape)):
        words = (path, layer, array.size, shape)
        raise ModelError("%s: a blob of layer %s holds %d numbers for the shape %s" % words)
    return array.reshape(shape)


def _numbers(blob: Any) -> np.ndarray:
    """The numbers of a blob as float32; the blob is not the same afterwards.

    Read one by one, those of a large network would take tens of seconds and gigabytes. Packed in a message of their own
    they lie in one piece, after a tag of one byte and a length, whose bytes but the last are 128 or more.
    """
    name, kind = ("double_data", "<f8") if blob.double_data else ("data", "<f4")
    blob.DiscardUnknownFields()
    for field, _ in blob.ListFields():
        if field.name != name:
            blob.ClearField(field.name)
    packed = blob.SerializeToString()
    start = 1
    while packed and packed[start] >= 128:
        start += 1
    return np.frombuffer(packed, kind, offset=start + 1 if packed else 0).astype(np.float32, copy=False)


def _shared(net: Any, found: Dict[str, List[np.ndarray]]) -> Dict[str, List[np.ndarray]]:
    """With the weights of layers that have none in the file, and share those of another by the names of parameters."""
    named: Dict[str, np.ndarray] = {}
    for layer in net.layer:
        for param, blob in zip(layer.param, found.get(layer.name, ())):
            if param.name:
                named.setdefault(param.name, blob)
    for layer in net.layer:
        names = [param.name for param in layer.param]
        if not found.get(layer.name) and names and all(name in named for name in names):
            found[layer.name] = [named[name] for name in names]
    return found


def _included(layer: Any, state: Any) -> bool:
    if layer.include:
        return any(_met(rule, state) for rule in layer.include)
    return not any(_met(rule, state) for rule in layer.exclude)


def _met(rule: Any, state: Any) -> bool:
    return (
        (not rule.HasField("phase") or rule.phase == caffe_pb2.TEST)
        and (not rule.HasField("min_level") or state.level >= rule.min_level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and all(stage in state.stage for stage in rule.stage)
        and not any(stage in state.stage for stage in rule.not_stage)
    )
