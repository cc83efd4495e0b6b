"""Random graphs: the normal form computes what the file does, in either layout, and is its own normal form."""

import numpy as np
import onnx
import pytest
from spelled import equal, form, ops, proto, r

from xframe.normal import loading
from xframe.normal.canonical import canonical

TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


class Net:
    """A random chain with branches, written channels-first, or channels-last with transposes around what needs it."""

    def __init__(self, seed, last):
        self.rng, self.last = np.random.default_rng(seed), last
        self.nodes, self.weights, self.count = [], {}, 0

    def add(self, op, read, attrs=None, **weights):
        names = [self.weight(w) if isinstance(w, np.ndarray) else w for w in weights.values()]
        self.count += 1
        self.nodes.append((op, " ".join([read, *names]), f"t{self.count}", attrs or {}))
        return f"t{self.count}"

    def weight(self, array):
        self.weights[f"w{len(self.weights)}"] = array
        return f"w{len(self.weights) - 1}"

    def image(self, op, x, attrs=None, **weights):
        """An operator that wants NCHW."""
        if not self.last:
            return self.add(op, x, attrs, **weights)
        y = self.add(op, self.add("Transpose", x, {"perm": TO_FIRST}), attrs, **weights)
        return self.add("Transpose", y, {"perm": TO_LAST})

    def per_channel(self, c, seed):
        array = r(c, seed=seed, scale=0.3, shift=1)
        return array if self.last else array.reshape(c, 1, 1)

    def axis(self, a):
        return (0, 3, 1, 2)[a] if self.last else a

    def step(self, x, c, n, i):
        """One more operator on an image of ``c`` channels and size ``n``: the new tensor, channels and size."""
        kind = self.rng.integers(9)
        if kind == 0:
            k, out = int(self.rng.choice([1, 3])), int(self.rng.integers(2, 6))
            attrs = {"auto_pad": str(self.rng.choice(["SAME_UPPER", "SAME_LOWER"])), "strides": [1, 1]}
            y = self.image("Conv", x, attrs, w=r(out, c, k, k, seed=i, scale=0.4))
            return self.add("Add", y, b=self.per_channel(out, i)), out, n
        if kind == 1:
            parts = [r(c, seed=i, shift=1), r(c, seed=i + 1), r(c, seed=i + 2), np.abs(r(c, seed=i + 3)) + 0.5]
            return self.image("BatchNormalization", x, None, **dict(zip("abcd", parts, strict=True))), c, n
        if kind == 2 and n > 3:
            op = str(self.rng.choice(["MaxPool", "AveragePool"]))
            attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1}
            return self.image(op, x, attrs), c, (n + 2 - 3 + 1) // 2 + 1 if (n - 1) % 2 else (n - 1) // 2 + 1
        if kind == 3:
            return self.add("Mul", x, s=self.per_channel(c, i)), c, n
        if kind == 4:
            y = self.add("Sigmoid", x)
            return self.add("Mul", x, other=y), c, n
        if kind == 5:
            half = self.add("Concat", x, {"axis": self.axis(1)}, other=self.add("Tanh", x))
            return half, 2 * c, n
        if kind == 6:
            m = self.add("ReduceMean", x, {"axes": [self.axis(2), self.axis(3)], "keepdims": 1})
            return self.add("Sub", x, other=m), c, n
        if kind == 7:
            pads = np.zeros(8, np.int64)
            pads[[self.axis(2), 4 + self.axis(3)]] = 1
            cut = {"p": pads}
            y = self.add("Pad", x, None, **cut)
            begin, end, axis = (np.array([v]) for v in (0, n, self.axis(2)))
            y = self.add("Slice", y, None, a=begin, b=end, c=axis)
            begin, end, axis = (np.array([v]) for v in (1, n + 1, self.axis(3)))
            return self.add("Slice", y, None, a=begin, b=end, c=axis), c, n
        op = str(self.rng.choice(["Relu", "Softmax", "Elu"]))
        return self.add(op, x, {"axis": self.axis(1)} if op == "Softmax" else None), c, n

    def model(self, length=9):
        x, c, n = "x", 3, 7
        for i in range(length):
            x, c, n = self.step(x, c, n, 10 * i)
        rows = r(4, c * n * n, seed=99, scale=0.1)
        if self.last:
            rows = rows.reshape(4, c, n, n).transpose(0, 2, 3, 1).reshape(4, -1)
        y = self.add("Relu", self.add("Flatten", x))
        self.nodes.append(("MatMul", f"{y} {self.weight(np.ascontiguousarray(rows.T))}", "y"))
        shape = (2, 7, 7, 3) if self.last else (2, 3, 7, 7)
        return proto(self.nodes, self.weights, {"x": shape}, opset=13)


@pytest.mark.parametrize("seed", range(12))
def test_both_layouts_have_one_normal_form(seed):
    """``form`` checks that each computes what its file does."""
    first = form(Net(seed, False).model(), exact=False)
    last = form(Net(seed, True).model(), (0, 2, 3, 1), exact=False)
    assert "Transpose" not in ops(last)
    assert equal(first, last)


@pytest.mark.parametrize("seed", range(12, 18))
def test_a_normal_form_is_its_own(seed):
    made = form(Net(seed, True).model(), (0, 2, 3, 1), exact=False)
    raw = loading.Raw(made.graph.nodes, made.graph.constants, made.graph.inputs, made.graph.outputs, made.graph.shapes)
    assert equal(canonical(raw), made)


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_weight_changes_the_form(seed):
    net = Net(seed, True)
    model = net.model()
    name = next(n for n, w in net.weights.items() if w.dtype == np.float32 and w.size > 1)
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    changed = net.weights[name].copy()
    changed.flat[0] += 0.01
    before = form(model, (0, 2, 3, 1), evaluate=False)
    tensor.CopyFrom(onnx.numpy_helper.from_array(changed, name))
    assert not equal(before, form(model, (0, 2, 3, 1), evaluate=False))
