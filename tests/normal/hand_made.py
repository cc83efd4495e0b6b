"""Normal forms made by hand, node by node, with a layer or two changed at will."""

import numpy as np

from xframe.equivalence.graph import Graph, Node
from xframe.normal.form import Normal, Weight
from xframe.normal.match import match

NAMES = ("caffe", "pytorch")


class Net:
    """A graph in the making. ``change``: layer name -> what replaces its attributes or, as arrays, its weights."""

    def __init__(self, shape=(1, 3, 16, 16), change=None, seed=0, inputs=("x",)):
        self.change = change or {}
        self.nodes, self.weights, self.shapes = [], {}, {name: shape for name in inputs}
        self.inputs, self.seed = inputs, seed

    def add(self, op, name, inputs, shape, weights=(), outputs=None, opset=13, **attrs):
        inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        changed = dict(self.change.get(name, {}))
        weights = [changed.pop(i, w) for i, w in enumerate(weights)]
        op = changed.pop("op", op)
        names = [""] * len(weights)
        for i, array in enumerate(weights):
            if array is not None:
                names[i] = f"{name}.{i}"
                self.weights[names[i]] = array if isinstance(array, Weight) else Weight(np.asarray(array))
                self.shapes[names[i]] = self.weights[names[i]].array.shape
        outputs = outputs or (f"{name}.out",)
        attrs = {k: v for k, v in (attrs | changed).items() if v is not None}
        self.nodes.append(Node(name, op, (*inputs, *names), outputs, attrs, opset))
        self.shapes.update(dict.fromkeys(outputs, tuple(shape)))
        return outputs[0]

    def random(self, name, shape):
        """Weights that depend on the layer's name and the seed alone."""
        rng = np.random.default_rng([self.seed, *name.encode()])
        return rng.standard_normal(shape, dtype=np.float32)

    def conv(self, x, name, filters, kernel=3, stride=1, pads=(1, 1, 1, 1), groups=1):
        n, c, h, w = self.shapes[x]
        shape = (
            n,
            filters,
            (h + pads[0] + pads[2] - kernel) // stride + 1,
            (w + pads[1] + pads[3] - kernel) // stride + 1,
        )
        weights = self.random(name, (filters, c // groups, kernel, kernel)), self.random(name + "b", filters)
        attrs = {"strides": [stride] * 2, "pads": list(pads), "group": groups, "dilations": [1, 1]}
        return self.add("Conv", name, x, shape, weights, **attrs)

    def fc(self, x, name, count):
        n, c = self.shapes[x]
        weights = self.random(name, (count, c)), self.random(name + "b", count)
        return self.add("Gemm", name, x, (n, count), weights, transB=1)

    def point(self, op, x, name=None, **attrs):
        name = name or f"{op.lower()}{len(self.nodes)}"
        return self.add(op, name, x, self.shapes[x], **attrs)

    def pool(self, x, name, op="MaxPool", **attrs):
        n, c, h, w = self.shapes[x]
        return self.add(op, name, x, (n, c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2], **attrs)

    def flat(self, x, name="flatten"):
        n, *rest = self.shapes[x]
        return self.add("Reshape", name, x, (n, int(np.prod(rest))), (np.array([n, -1]),))

    def join(self, op, xs, name):
        n, _, *rest = self.shapes[xs[0]]
        channels = sum(self.shapes[x][1] for x in xs) if op == "Concat" else self.shapes[xs[0]][1]
        return self.add(op, name, xs, (n, channels, *rest), **({"axis": 1} if op == "Concat" else {}))

    def normal(self, *outputs):
        graph = Graph(
            tuple(self.nodes),
            {name: w.array for name, w in self.weights.items()},
            self.inputs,
            outputs,
            tuple(self.shapes[name] for name in self.inputs),
        )
        return Normal(graph, self.shapes, self.weights, {n.name: (n.name,) for n in self.nodes}, {})


def chain(change=None, skip=(), seed=0):
    """Two convolutions with all that AlexNet has between them, and two products."""
    net = Net(change=change, seed=seed)
    x = net.conv("x", "conv1", 8)
    x = net.point("Relu", x, "relu1")
    x = x if "norm1" in skip else net.point("LRN", x, "norm1", alpha=1e-4, beta=0.75, size=5)
    x = net.pool(x, "pool1")
    x = net.conv(x, "conv2", 16)
    x = net.point("Relu", x, "relu2")
    x = net.pool(x, "pool2")
    x = net.fc(net.flat(x), "fc6", 32)
    x = net.point("Relu", x, "relu6")
    x = net.fc(x, "fc7", 10)
    return net.normal(net.point("Softmax", x, "prob", axis=1))


def residual(blocks=6, change=None, skip=(), extra=(), seed=0):
    """A stem and residual blocks; ``skip``: layers left out, ``extra``: layers with a Sigmoid after them."""
    net = Net(change=change, seed=seed)

    def layer(x, name, make):
        y = x if name in skip else make(x)
        return net.point("Sigmoid", y, f"extra_{name}") if name in extra else y

    x = layer("x", "stem", lambda v: net.conv(v, "stem", 8))
    for i in range(blocks):
        y = x
        for j in (1, 2):
            y = layer(y, f"conv{i}_{j}", lambda v, n=f"conv{i}_{j}": net.conv(v, n, 8))
            y = layer(y, f"relu{i}_{j}", lambda v, n=f"relu{i}_{j}": net.point("Relu", v, n)) if j == 1 else y
        x = net.join("Add", [y, x], f"add{i}")
        x = layer(x, f"relu{i}_2", lambda v, n=f"relu{i}_2": net.point("Relu", v, n))
    return net.normal(net.add("GlobalAveragePool", "pool", x, (1, 8, 1, 1)))


def told(a, b):
    """The differences of two normal forms as (kind, text)."""
    return [(d.kind, d.text) for d in match(a, b, NAMES).differences]


def partners(found):
    """Names of the nodes that were paired, and of those that were not."""
    return (
        {p.a.name: p.b.name for p in found.pairs if p.a and p.b},
        {p.a.name for p in found.pairs if p.a and not p.b},
        {p.b.name for p in found.pairs if p.b and not p.a},
    )
