"""The real networks that ship in the ``onnx`` package, as they are and with weights that mean something."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = sorted(p.stem.removeprefix("light_") for p in FOLDER.glob("light_*.onnx"))


def path(name: str) -> Path:
    return FOLDER / f"light_{name}.onnx"


def expected(name: str) -> np.ndarray:
    data = (FOLDER / f"light_{name}_output_0.pb").read_bytes()
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def with_logits(name: str) -> onnx.ModelProto:
    """The network as it ships, with what goes into its final Softmax, if it has one, as a second output."""
    model = onnx.load(path(name))
    model.ir_version = 8  # before 4, an initializer had to be an input, too
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
        logits = helper.make_tensor_value_info(last.input[0], onnx.TensorProto.FLOAT, shape)
        model.graph.output.append(logits)
    return model


def with_weights(name: str, seed: int = 0) -> onnx.ModelProto:
    """:func:`with_logits`, with random weights in place of the one-value ones.

    One value for all weights makes all channels equal, and all logits, so that a mixed-up channel would not be seen.
    Weights are scaled by He's rule, normalisation statistics are near the identity. Probabilities alone would hide
    errors where one of them is near 1.
    """
    model = with_logits(name)
    graph, g = model.graph, np.random.default_rng(seed)
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    made = {n.output[0]: shapes[n.input[0]] for n in graph.node if n.op_type == "ConstantOfShape"}
    values = {}
    for node in graph.node:
        for i, tensor in enumerate(node.input):
            if tensor not in made or tensor in values:
                continue
            shape = tuple(int(d) for d in made[tensor])
            if node.op_type in ("Conv", "Gemm", "MatMul") and i == 1:
                fan = np.prod(shape[1:]) if node.op_type == "Conv" or _transposed(node) else shape[0]
                value = g.standard_normal(shape, np.float32) * np.float32(np.sqrt(2.0 / fan))
            elif node.op_type == "BatchNormalization":
                value = np.abs(1 + 0.1 * g.standard_normal(shape)) if i in (1, 4) else 0.1 * g.standard_normal(shape)
            else:
                value = 0.1 * g.standard_normal(shape) + (node.op_type == "Mul")
            values[tensor] = value.astype(np.float32, copy=False)
    kept = [n for n in graph.node if n.output[0] not in values]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in values.items())
    return model


def _transposed(node) -> bool:
    return any(a.name == "transB" and a.i for a in node.attribute)
