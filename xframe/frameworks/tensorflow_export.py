"""tf2onnx in seconds: a network is converted with its weights as inputs, which become initializers afterwards."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from onnx import helper, numpy_helper

from xframe.types import ModelSpec

OPSET = 18

#: What tf2onnx does to a weight before using it -> the same in numpy, given the weight, the node's second input (None
#: when it has none) and its attributes.
FOLDED: dict[str, Callable[[np.ndarray, Any, dict[str, Any]], np.ndarray]] = {
    "Identity": lambda w, _, attrs: w,
    "Transpose": lambda w, _, attrs: np.transpose(w, attrs.get("perm")),
    "Reshape": lambda w, shape, attrs: np.reshape(w, shape),
    "Squeeze": lambda w, axes, attrs: np.squeeze(w, None if axes is None else tuple(axes)),
    "Unsqueeze": lambda w, axes, attrs: np.expand_dims(w, tuple(axes)),
}


def _fill(graph: onnx.GraphProto, origin: dict[str, str], weights: Mapping[str, np.ndarray]) -> None:
    """Turn the inputs in ``origin`` (input -> name of its weight) into initializers, rearranged as nodes ask for."""
    known = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    values = {name: weights[weight] for name, weight in origin.items()}
    inputs = [i for i in graph.input if i.name not in origin]
    nodes = []
    for node in graph.node:
        first, rest = node.input[0], node.input[1:]
        if node.op_type in FOLDED and first in values and all(r in known for r in rest):
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            value = FOLDED[node.op_type](values[first], known[rest[0]] if rest else None, attrs)
            values[node.output[0]], origin[node.output[0]] = value, origin[first]
        else:
            nodes.append(node)
    names: dict[str, str] = {}
    for node in nodes:
        for i, used in enumerate(node.input):
            if used in values:
                if used not in names:
                    names[used] = origin[used] if origin[used] not in names.values() else used
                    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values[used]), names[used]))
                node.input[i] = names[used]
    read = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
    constants = [i for i in graph.initializer if i.name in read]
    for field, items in ((graph.node, nodes), (graph.input, inputs), (graph.initializer, constants)):
        del field[:]
        field.extend(items)


def _rename(graph: onnx.GraphProto, inputs: Iterable[str], origin: dict[str, str], outputs: Sequence[str]) -> None:
    """Name what tf2onnx made after its operator: its own names count on from one export to the next, and a model's hash
    should not."""
    names = {name: name for name in (*inputs, *origin.values())}
    names |= {value.name: name for value, name in zip(graph.output, outputs, strict=True)}
    for i, item in enumerate(graph.initializer):
        item.name = names.setdefault(item.name, f"constant_{i}")
    for i, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{i}"
        for j, name in enumerate(node.output):
            names.setdefault(name, f"{node.name}.{j}" if j else node.name)
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names[name] if name else "" for name in field]
    for value, name in zip(graph.output, outputs, strict=True):
        value.name = name
    graph.name, graph.doc_string = "tensorflow", ""
    del graph.value_info[:]


def convert(
    function: Callable[..., Any],
    inputs: Mapping[str, Sequence[int]],
    weights: Mapping[str, np.ndarray],
    outputs: Sequence[str],
) -> onnx.ModelProto:
    """``function(*inputs, *weights)``, which gives a list of tensors, as a model with those inputs and outputs.

    The weights become initializers of their names, rearranged as the graph asks for.
    """
    signature = [tf.TensorSpec(shape, tf.float32, name=name) for name, shape in inputs.items()]
    signature += [tf.TensorSpec(w.shape, tf.float32, name=f"weight_{i}") for i, w in enumerate(weights.values())]
    traced = tf.function(function, input_signature=signature, autograph=False)
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        model, _ = tf2onnx.convert.from_function(traced, input_signature=signature, opset=OPSET)
    finally:
        logger.setLevel(level)
    graph = model.graph
    captured = _captured(traced, len(signature))
    origin = {f"weight_{i}": name for i, name in enumerate(weights)}
    _fill(graph, {**origin, **{name: name for name in captured}}, {**weights, **captured})
    _rename(graph, inputs, origin, outputs)
    used = {node.domain for node in graph.node}
    for opset in [o for o in model.opset_import if o.domain not in used]:
        model.opset_import.remove(opset)
    return model


def _captured(traced: Any, given: int) -> dict[str, np.ndarray]:
    """Tensors from outside that a function with so many inputs uses, by the names of the inputs that tf2onnx makes of
    them. Variables are none: it makes constants of those itself."""
    concrete = traced.get_concrete_function()
    pairs = zip(concrete.inputs[given:], concrete.captured_inputs, strict=True)
    return {inner.name: value.numpy() for inner, value in pairs if value.dtype != tf.resource}


def export(
    spec: ModelSpec, weights: Mapping[str, np.ndarray], batch: int, network: Callable[..., Any]
) -> onnx.ModelProto:
    """``network(spec, weights, x)`` as a model with the input ``input`` (NHWC) and the output ``output``."""
    channels, height, width = spec.input
    return convert(
        lambda x, *ws: [network(spec, dict(zip(weights, ws, strict=True)), x)],
        {"input": (batch, height, width, channels)},
        weights,
        ["output"],
    )
