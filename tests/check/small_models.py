"""Tiny models, and what a check says of two of them."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from xframe.check.api import check_equivalence
from xframe.equivalence.result import State

EQUIVALENT, DIFFERENT, UNCHECKED = State.EQUIVALENT, State.DIFFERENT, State.UNCHECKED


def weights(*shape, seed=0, scale=None):
    scale = np.prod(shape[1:], dtype=np.float64) ** -0.5 if scale is None else scale
    return (scale * np.random.default_rng((seed, *shape)).standard_normal(shape)).astype(np.float32)


def node(op, inputs, output="y", **attrs):
    """``inputs`` and ``output`` are names with spaces between; ``-`` is an absent input."""
    inputs, outputs = ([x.replace("-", "") for x in names.split()] for names in (inputs, output))
    return helper.make_node(op, inputs, outputs, f"{op.lower()}_{outputs[0]}", **attrs)


def model(
    *nodes, x=(1, 3, 9, 9), outputs="y", opset=17, ir=8, listed=False, inputs=(), dtype=TensorProto.FLOAT, **constants
):
    """A valid model of one input ``x``; arrays by name are its constants. A size that is a string is symbolic."""
    tensors = [numpy_helper.from_array(np.array(v, order="C"), k) for k, v in constants.items()]
    ports = [helper.make_tensor_value_info("x", dtype, x)]
    ports += [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in inputs]
    if listed:
        ports += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in tensors]
    ends = [helper.make_tensor_value_info(name, dtype, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "small", ports, ends, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3 if listed else ir)
    inferred = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
    for declared, found in zip(made.graph.output, inferred.graph.output, strict=True):
        declared.CopyFrom(found)
    onnx.checker.check_model(made)
    return made


class Checker:
    """Writes two models down and has them checked: ``(state, all that was said)``."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, a, b, **options):
        paths = {}
        for name, made in (("first", a), ("second", b)):
            paths[name] = self.folder / f"{name}.onnx"
            if isinstance(made, onnx.ModelProto):
                onnx.save(made, paths[name])
            else:
                paths[name] = made
        check = check_equivalence(paths, **{"runners": ()} | options)
        return check.state, said(check)


def said(check) -> str:
    texts = [*check.notes, *(note for s in check.subjects for note in s.notes)]
    for comparison in check.comparisons:
        for verdict in comparison.levels:
            texts += [verdict.reason, *(d.text for d in verdict.differences)]
        texts += [row.reason for row in (*comparison.layers, *comparison.outputs)]
    return "\n".join(filter(None, texts))
