"""Expressions written by hand in Theano, to be exported.

Imported by the tests for their names alone; run by the interpreter of Theano's environment, with a folder as its
argument, it writes for each its output on seeded data (``<number>.npz``) and its graph (``<number>.graph``), or why it
was refused (``<number>.refused``). Outputs are from Theano's own Python code, neither optimised nor compiled; only
convolutions have none that works.
"""

import os
import sys

import numpy as np

SHAPE = (2, 6, 9, 7)


def kernel(t, *shape):
    return t.shared(t.rng.standard_normal(shape).astype("float32"), "kernel")


def vector(t, n):
    return t.shared(t.rng.uniform(0.5, 1.5, n).astype("float32"), "vector")


def conv(t, x, *shape, **how):
    return t.conv2d(x, kernel(t, *shape), **how)


def biased(t, y, n):
    return y + vector(t, n).dimshuffle("x", 0, "x", "x")


def band(t, channels, half, other=0):
    place = np.arange(channels)
    inside = np.abs(place[:, None] - place + other) <= half
    return t.shared(inside.astype("float32")[:, :, None, None], "band")


def banded_lrn(t, x, **how):
    total = t.conv2d(x * x, band(t, 6, 1, **how), filter_flip=False)
    return x / t.T.pow(np.float32(2) + np.float32(0.3) * total, np.float32(0.75))


def shifted_lrn(t, x, squared=True, alpha=0.3):
    wide = t.T.set_subtensor(t.T.alloc(np.float32(0), 2, 10, 9, 7)[:, 2:8], t.T.sqr(x) if squared else abs(x))
    total = sum((wide[:, i : i + 6] for i in range(1, 5)), wide[:, :6])
    return x / (np.float32(1) + np.float32(alpha) * total) ** np.float32(0.5)


def normalised(t, x):
    four = [vector(t, 6).dimshuffle("x", 0, "x", "x") for _ in range(4)]
    return t.bn.batch_normalization(x, *four, mode="low_mem")


def inferred(t, x):
    return t.bn.batch_normalization_test(x, *(vector(t, 6) for _ in range(4)), axes="spatial", epsilon=0.01)


def fc(t, x, bias=True):
    y = t.T.dot(x.flatten(2), kernel(t, 6 * 9 * 7, 5))
    return y + vector(t, 5) if bias else y


def pool(t, x, *window, **how):
    return t.pool_2d(x, window, **how)


#: Name -> (expression, the ONNX operators of its graph).
CASES = {
    "the input itself": (lambda t, x: x, "Identity"),
    "a convolution flips": (lambda t, x: conv(t, x, 4, 6, 3, 2), "Conv"),
    "a bias is in its convolution": (lambda t, x: biased(t, conv(t, x, 4, 6, 3, 2), 4), "Conv"),
    "a bias from the left": (lambda t, x: vector(t, 4).dimshuffle("x", 0, "x", "x") + conv(t, x, 4, 6, 1, 1), "Conv"),
    "a product that is read twice": (
        lambda t, x: (lambda y: biased(t, y, 4) * y)(conv(t, x, 4, 6, 1, 1)),
        "Conv Add Mul",
    ),
    "one number is no bias": (lambda t, x: conv(t, x, 4, 6, 1, 1) + np.float32(2), "Conv Add"),
    "full": (lambda t, x: conv(t, x, 4, 6, 3, 2, border_mode="full"), "Conv"),
    "half": (lambda t, x: conv(t, x, 4, 6, 3, 5, border_mode="half", filter_flip=False), "Conv"),
    "one padding": (lambda t, x: conv(t, x, 4, 6, 3, 3, border_mode=1, subsample=(2, 3)), "Conv"),
    "four paddings": (
        lambda t, x: conv(t, x, 4, 6, 3, 3, border_mode=((2, 1), (0, 2)), filter_dilation=(2, 3)),
        "Conv",
    ),
    "groups": (lambda t, x: conv(t, x, 4, 3, 3, 3, num_groups=2), "Conv"),
    "pooling": (lambda t, x: pool(t, x, 3, 2, ignore_border=True, stride=(2, 1), pad=(1, 0)), "MaxPool"),
    "pooling beyond the border": (lambda t, x: pool(t, x, 2, 3, ignore_border=False), "MaxPool"),
    "overlapping, beyond the border": (lambda t, x: pool(t, x, 4, 3, ignore_border=False, stride=(3, 2)), "MaxPool"),
    "mean with padding": (
        lambda t, x: pool(t, x, 3, 3, ignore_border=True, stride=(2, 2), pad=(1, 1), mode="average_inc_pad"),
        "AveragePool",
    ),
    "mean without padding": (
        lambda t, x: pool(t, x, 3, 3, ignore_border=True, stride=(2, 2), pad=(1, 1), mode="average_exc_pad"),
        "AveragePool",
    ),
    "mean beyond the border": (
        lambda t, x: pool(t, x, 2, 3, ignore_border=False, mode="average_inc_pad"),
        "AveragePool",
    ),
    "sum": (lambda t, x: pool(t, x, 2, 2, ignore_border=True, mode="sum"), "AveragePool Mul"),
    "sum beyond the border": (lambda t, x: pool(t, x, 2, 2, ignore_border=False, mode="sum"), "AveragePool Mul"),
    "relu": (lambda t, x: t.T.nnet.relu(x), "Relu"),
    "relu as a maximum": (lambda t, x: t.T.maximum(np.float32(0), x), "Relu"),
    "a maximum that is no relu": (lambda t, x: t.T.maximum(x, np.float32(0.1)), "Max"),
    "half of x + abs(y)": (lambda t, x: 0.5 * (x + abs(x + 1)), "Add Abs Add Mul"),
    "leaky relu": (lambda t, x: t.T.nnet.relu(x, 0.1), "Mul Abs Mul Add"),
    "switch": (lambda t, x: t.T.switch(x > 0.5, x, t.T.exp(x)), "Greater Exp Where"),
    "functions": (
        lambda t, x: t.T.nnet.sigmoid(x) * t.T.tanh(x) - t.T.nnet.softplus(x),
        "Sigmoid Tanh Mul Softplus Sub",
    ),
    "clip": (lambda t, x: t.T.clip(x, np.float32(-1), np.float32(0.5)), "Clip"),
    "a comparison as numbers": (lambda t, x: t.T.cast(x > 0, "float32") / 2, "Greater Cast Div"),
    "fill": (lambda t, x: t.T.fill(x, np.float32(3)) * x, "Mul"),
    "lrn by a band": (banded_lrn, "LRN"),
    "a band beside its diagonal": (lambda t, x: banded_lrn(t, x, other=1), "Mul Conv Mul Add Pow Div"),
    "lrn by shifts": (shifted_lrn, "LRN"),
    "of what is no square": (
        lambda t, x: shifted_lrn(t, x, squared=False),
        "Abs Pad " + "Slice " * 2 + "Add" + " Slice Add" * 3 + " Mul Add Pow Div",
    ),
    "a composite": (normalised, "Sub Div Mul Add"),
    "batch normalisation": (inferred, "BatchNormalization"),
    "fc": (fc, "Flatten Gemm"),
    "fc without a bias": (lambda t, x: fc(t, x, bias=False), "Flatten MatMul"),
    "a product of two computed matrices": (
        lambda t, x: t.T.dot(x.flatten(2), x.flatten(2).T),
        "Flatten Flatten Transpose MatMul",
    ),
    "softmax": (lambda t, x: t.T.nnet.softmax(x.flatten(2)), "Flatten Softmax"),
    "slices": (lambda t, x: x[:, 1::2, -3, 2:-1], "Slice Reshape"),
    "an index": (lambda t, x: x[1], "Slice Reshape"),
    "reshapes": (lambda t, x: x.reshape((x.shape[1], -1, 3)).flatten(2), "Reshape Flatten"),
    "axes": (lambda t, x: t.T.addbroadcast(x[:, :, :1], 2).dimshuffle(3, "x", 0, 1), "Slice Transpose Reshape"),
    "join": (lambda t, x: t.T.concatenate([x, t.T.sqr(x), t.T.ones_like(x)], axis=-1), "Mul Concat"),
    "global mean": (lambda t, x: x.mean(axis=(2, 3)), "ReduceSum Div Div"),
    "largest": (lambda t, x: x.max(axis=[1]) - t.T.min(x, axis=1), "ReduceMax Neg ReduceMax Neg Sub"),
    "what is known is computed": (lambda t, x: x * t.T.sqrt(vector(t, 7) + 1).sum(), "Mul"),
    "padding": (
        lambda t, x: t.T.set_subtensor(t.T.alloc(np.float32(-2), 2, 6, 12, 9)[:, :, 1:10, 2:], x),
        "Pad",
    ),
}

#: Name -> (expression, words of the refusal).
REFUSED = {
    "an operator": (lambda t, x: t.T.sort(x, axis=1), "SortOp"),
    "an elementwise operator": (lambda t, x: t.T.expm1(x), "Expm1"),
    "float64": (lambda t, x: x.astype("float64"), "float64"),
    "integers": (lambda t, x: x.argmax(axis=1), "first output"),
    "a negative step": (lambda t, x: x[:, ::-1], "negative step"),
    "data put into data": (lambda t, x: t.T.set_subtensor(x[:, :3], x[:, 3:]), "padding only"),
    "data added to numbers": (lambda t, x: t.T.inc_subtensor(t.T.zeros((2, 8, 9, 7))[:, 1:7], x), "padding only"),
    "a computed kernel, flipped": (lambda t, x: t.conv2d(x, x[:, :, :3, :3]), "filter_flip=False"),
    "products of vectors": (lambda t, x: t.T.dot(x[0, 0, 0], x[0, 0, 1]), "two matrices"),
    "an input that was not named": (lambda t, x: x + t.T.tensor4("stranger"), "stranger"),
    "a shape that depends on data": (lambda t, x: x[: t.T.cast(x.sum(), "int64")], "int64"),
}


class Theano:
    """What expressions are written with."""

    def __init__(self):
        import theano
        from theano.tensor.nnet import bn, conv2d
        from theano.tensor.signal.pool import pool_2d

        self.T, self.shared, self.conv2d, self.pool_2d, self.bn = theano.tensor, theano.shared, conv2d, pool_2d, bn
        self.rng = np.random.default_rng(0)


def main(folder):
    import theano

    from xframe import neutral
    from xframe.errors import Unsupported
    from xframe.frameworks import theano_graph

    data = np.random.default_rng(1).standard_normal(SHAPE).astype("float32")
    python = theano.compile.Mode(linker="py", optimizer=None)
    for number, (make, _) in enumerate([*CASES.values(), *REFUSED.values()]):
        path = os.path.join(folder, str(number))
        x = theano.tensor.tensor4("data", dtype="float32")
        y = make(Theano(), x)
        try:
            graph = theano_graph.graph("case", [("x", x, SHAPE)], [("y", y)])
        except Unsupported as e:
            with open(path + ".refused", "w") as f:
                f.write(str(e))
            continue
        neutral.save(graph, path + ".graph")
        operators = {type(node.op).__name__ for node in theano.gof.graph.io_toposort([x], [y])}
        mode = None if "AbstractConv2d" in operators else python
        np.savez(path + ".npz", x=data, y=theano.function([x], y, mode=mode, on_unused_input="ignore")(data))


if __name__ == "__main__":
    main(sys.argv[1])
