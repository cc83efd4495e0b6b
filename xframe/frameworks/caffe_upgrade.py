"""Networks in the forms of Caffe before 1.0, brought to that of 1.0: layers of 2014, inputs outside of layers."""

from typing import Any

from caffe.proto import caffe_pb2

from xframe.errors import ModelError, Unsupported

#: Types of 2014 whose names today are not theirs in title case.
_NAMES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}
#: Fields of 2014 that only training had a use for, or that are told otherwise today.
_GONE = ("type", "layer", "param", "blob_share_mode", "blobs_lr", "weight_decay")


def upgraded(net: Any, path: str) -> Any:
    """The network as Caffe 1.0 writes it. The message may be changed.

    Raises
    ------
    ModelError
        It mixes layers of both forms, or its inputs lack shapes.
    Unsupported
        It is of 2013, when layers were nested in layers.
    """
    if net.layer and net.layers:
        raise ModelError("%s has layers of two forms, `layer` and `layers`: keep one of them" % path)
    if any(old.HasField("layer") for old in net.layers):
        raise Unsupported(
            "%s is in the form of 2013, with layers in layers: upgrade it with Caffe's own upgrade_net_proto_text"
            % path
        )
    net.layer.extend(_layer(old) for old in net.layers)
    del net.layers[:]
    if net.input:
        _move_inputs(net, path)
    return net


def _layer(old: Any) -> Any:
    new = caffe_pb2.LayerParameter()
    name = old.LayerType.Name(old.type)
    new.type = _NAMES.get(name, name.title().replace("_", ""))
    for shared in old.param:
        new.param.add(name=shared)
    for field, value in old.ListFields():
        if field.name in _GONE:
            continue
        if field.label == field.LABEL_REPEATED:
            getattr(new, field.name).extend(value)
        elif field.message_type is not None:
            getattr(new, field.name).CopyFrom(value)
        else:
            setattr(new, field.name, value)
    return new


def _move_inputs(net: Any, path: str) -> None:
    """From ``input`` with ``input_shape`` or ``input_dim``, four numbers each, to a layer in front."""
    count, dims = len(net.input), list(net.input_dim)
    shapes = [list(shape.dim) for shape in net.input_shape] or [dims[i : i + 4] for i in range(0, len(dims), 4)]
    if len(shapes) != count or (dims and len(dims) != 4 * count):
        raise ModelError(
            "%s names %d inputs, and has shapes for %d: give each an input_shape" % (path, count, len(shapes))
        )
    first = caffe_pb2.LayerParameter(name="input", type="Input", top=list(net.input))
    for shape in shapes:
        first.input_param.shape.add(dim=shape)
    rest = list(net.layer)
    del net.layer[:]
    net.layer.extend([first, *rest])
    for field in ("input", "input_dim", "input_shape"):
        net.ClearField(field)
