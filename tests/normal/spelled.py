"""Small ONNX models written in a line a node, and their normal forms, each checked to compute what its file does."""

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from xframe.equivalence.reference import Reference
from xframe.normal import loading
from xframe.normal.canonical import canonical


def r(*shape, seed=0, scale=1.0, shift=0.0):
    """Seeded float32 noise."""
    return (shift + scale * np.random.default_rng((seed, *shape)).standard_normal(shape)).astype(np.float32)


def proto(nodes, weights=None, inputs=None, outputs=("y",), opset=17, kind=TensorProto.FLOAT):
    """A model; a node is ("Conv", "x w b", "y", attrs), ``-`` an absent operand, ``inputs`` name -> shape."""
    inputs = inputs or {"x": (1, 4, 8, 8)}
    made = []
    for op, read, given, *attrs in nodes:
        names = ["" if n == "-" else n for n in read.split()]
        made.append(helper.make_node(op, names, given.split(), **(attrs[0] if attrs else {})))
    graph = helper.make_graph(
        made,
        "small",
        [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def form(model, axes=None, evaluate=True, exact=True, **options):
    """The normal form of a model whose first input is the canonical one transposed by ``axes``.

    With and without folding it must compute what the raw graph does, on every output; ``exact``: but for folding, in
    which weights are rounded, to the last bits of float64.
    """
    raw = loading.from_proto(model)
    inputs = {} if axes is None else {raw.inputs[0]: axes}
    if evaluate:
        feeds = [r(*shape, seed=9) for shape in raw.shapes]
        turned = list(feeds)
        if axes is not None:
            turned[0] = np.ascontiguousarray(feeds[0].transpose(np.argsort(axes)))
        wanted = Reference(raw).evaluate(feeds)
        for fold, near in ((False, 1e-12 if exact else 1e-6), (True, 1e-6)):
            made = Reference(canonical(raw, inputs=inputs, fold_batchnorm=fold).graph).evaluate(turned)
            for a, b in zip(wanted, made, strict=True):
                assert a.value.shape == b.value.shape
                scale = max(np.abs(a.value).max(initial=0), 1.0)
                assert np.abs(a.value - b.value).max(initial=0) <= near * scale, (fold, b.name)
    return canonical(raw, inputs=inputs, **options)


def ops(normal):
    return [n.op for n in normal.graph.nodes]


def written(normal):
    """A normal form without its names: what each output is, as nested operators, attributes and digests of weights."""
    known = {name: f"input {i}" for i, name in enumerate(normal.graph.inputs)}
    known.update({name: w.digest for name, w in normal.weights.items()})
    for n in normal.graph.nodes:
        words = (n.op, tuple(sorted(n.attrs.items())), n.opset, tuple(known.get(i, "") for i in n.inputs))
        known.update({o: hash((words, i)) for i, o in enumerate(n.outputs)})
    return [known[o] for o in normal.graph.outputs]


def equal(a, b):
    return written(a) == written(b) and sorted(ops(a)) == sorted(ops(b))


def save(model, path, location=None):
    """A valid file: the shapes of the outputs filled in, the weights in a file ``location`` beside it if asked for."""
    model = onnx.shape_inference.infer_shapes(model)
    if location:
        external_data_helper.convert_model_to_external_data(model, location=location, size_threshold=0)
    onnx.save(model, path)
    return path


BRANCH = helper.make_graph(
    [helper.make_node("Constant", [], ["b"], value_float=1.0)],
    "branch",
    [],
    [helper.make_tensor_value_info("b", TensorProto.FLOAT, [])],
)
#: Attributes of an ``If``.
CONTROL = {"then_branch": BRANCH, "else_branch": BRANCH}
