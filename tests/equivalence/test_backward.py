"""The reverse pass against finite differences and PyTorch in float64; its bounds against PyTorch in float32."""

import numpy as np
import pytest
import small_nets

from xframe.equivalence import backward, graph
from xframe.equivalence.bounds import Z
from xframe.equivalence.graph import Graph, Node
from xframe.equivalence.reference import OPERATORS
from xframe.errors import ModelError, UsageError

IMAGE = (2, 6, 7, 8)
INTS = {"shape": [2, 6, 56], "axes": [1], "split": [2, 4], "size": [2, 6, 7, 8], "repeats": [1, 2, 1, 1]}


def case(op, *shapes, ints=(), shift=0.0, opset=13, outputs=1, **attrs):
    """An operator, its float inputs' shapes, constant integer inputs after them, its attributes."""
    return (op, shapes, [np.array(i) for i in ints], shift, opset, outputs, attrs)


CASES = [
    case("Conv", IMAGE, (4, 6, 3, 2), (4,), strides=[2, 1], pads=[1, 0, 2, 1]),
    case("Conv", IMAGE, (6, 2, 3, 3), dilations=[2, 1], group=3),
    case("Conv", (2, 4, 9), (4, 1, 3), (4,), group=4, auto_pad="SAME_UPPER", strides=[2]),
    case("Conv", (1, 2, 5, 5, 4), (3, 2, 3, 2, 2), pads=[1, 1, 0, 0, 0, 1]),
    case("ConvTranspose", (2, 4, 5, 4), (4, 3, 3, 2), (3,), strides=[2, 1], pads=[1, 0, 2, 1], output_padding=[1, 0]),
    case("ConvTranspose", (2, 4, 5, 4), (4, 3, 3, 2), (6,), group=2, dilations=[1, 2]),
    case("MatMul", (3, 5), (5, 4)),
    case("MatMul", (2, 3, 5), (5, 4)),
    case("MatMul", (2, 3, 3, 5), (3, 5, 4)),
    case("MatMul", (5,), (5, 4)),
    case("MatMul", (3, 5), (5,)),
    case("Gemm", (3, 5), (4, 5), (4,), transB=1, alpha=0.5, beta=2.0),
    case("Gemm", (5, 3), (5, 4), transA=1),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 1]),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    case("GlobalAveragePool", IMAGE),
    case("GlobalMaxPool", IMAGE),
    case("ReduceMean", IMAGE, axes=[1, -1], keepdims=0),
    case("ReduceSum", IMAGE, ints=[[2]], keepdims=1),
    case("ReduceMax", IMAGE, axes=[1, 3], keepdims=0),
    case("ReduceMax", IMAGE),
    case("ReduceMin", IMAGE, axes=[1], keepdims=0),
    case("ReduceSumSquare", IMAGE, axes=[1], keepdims=0),
    case("ReduceL2", IMAGE, axes=[2, 3]),
    case("Where", IMAGE, (7, 8), ints=[np.arange(48).reshape(6, 1, 8) % 3 == 0]),
    case("LayerNormalization", IMAGE, (7, 8), (7, 8), axis=2, opset=17),
    case("LayerNormalization", IMAGE, (8,), epsilon=0.1, opset=17),
    case("InstanceNormalization", IMAGE, (6,), (6,)),
    case("GroupNormalization", IMAGE, (6,), (6,), num_groups=3, opset=21),
    case("GroupNormalization", IMAGE, (3,), (3,), num_groups=3, opset=18),
    case("Resize", IMAGE, ints=[[1.0, 1.0, 2.0, 1.5]], mode="nearest", opset=10),
    case("Upsample", IMAGE, ints=[[1.0, 1.0, 2.0, 1.5]], opset=9),
    *(case(op, (3, 40)) for op in backward.adjoints_pointwise.SLOPES if op not in ("Log", "Sqrt", "Gelu")),
    case("Log", (3, 40), shift=6.0),
    case("Sqrt", (3, 40), shift=6.0),
    case("Gelu", (3, 40), opset=20),
    case("Gelu", (3, 40), opset=20, approximate="tanh"),
    case("HardSigmoid", (3, 40), alpha=0.3, beta=0.4),
    case("Clip", (3, 40), min=-0.5, max=0.75, opset=6),
    case("PRelu", IMAGE, (6, 1, 1)),
    case("Add", IMAGE, (6, 1, 8)),
    case("Sub", (7, 1), IMAGE),
    case("Sum", IMAGE, IMAGE, (8,)),
    case("Mean", IMAGE, IMAGE, (7, 8)),
    case("Mul", IMAGE, (1, 6, 1, 1)),
    case("Div", IMAGE, (6, 1, 8), shift=5.0),
    case("Pow", (3, 40), ints=[3.0], shift=4.0),
    case("Max", IMAGE, (7, 8), IMAGE),
    case("Min", IMAGE, (6, 7, 1)),
    case("LRN", IMAGE, size=3, alpha=0.5, beta=0.75, bias=1.5),
    case("LRN", IMAGE, size=4, alpha=0.5),
    case("BatchNormalization", IMAGE, (6,), (6,), (6,), (6,), shift=4.0, epsilon=1e-3),
    case("Softmax", (4, 6, 5), axis=1),
    case("Softmax", (4, 6, 5), axis=1, opset=11),
    case("LogSoftmax", (4, 6, 5), axis=-1),
    case("Reshape", IMAGE, ints=[[2, 0, -1]]),
    case("Flatten", IMAGE, axis=2),
    case("Transpose", IMAGE, perm=[0, 2, 3, 1]),
    case("Squeeze", (3, 1, 4), ints=[[1]]),
    case("Unsqueeze", (3, 4), ints=[[1]]),
    case("Concat", IMAGE, (2, 3, 7, 8), axis=1),
    case("Split", IMAGE, ints=[[2, 4]], axis=1, outputs=2),
    case("Slice", IMAGE, ints=[[5, 1], [0, 7], [2, 3], [-2, 1]]),
    case("Gather", IMAGE, ints=[[[0, 3], [3, 5]]], axis=1),
    case("Expand", (6, 1, 8), ints=[[2, 6, 7, 8]]),
    case("Tile", (2, 3, 4), ints=[[1, 2, 3]]),
    case("Pad", IMAGE, ints=[[0, 0, 1, 2, 0, 0, 3, -1]]),
    case("Pad", IMAGE, mode="reflect", pads=[0, 0, 1, 2, 0, 0, 3, 1], opset=10),
    case("DepthToSpace", (2, 8, 3, 3), blocksize=2),
    case("SpaceToDepth", (2, 3, 4, 6), blocksize=2),
    case("Identity", IMAGE),
    case("Dropout", IMAGE),
    case("Cast", IMAGE, to=1),
]


def test_every_operator_has_a_case():
    assert {c[0] for c in CASES} == set(backward.ADJOINTS)


@pytest.mark.parametrize("what", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_agrees_with_finite_differences(what):
    op, shapes, ints, shift, opset, count, attrs = what
    if op not in OPERATORS:
        pytest.skip("the forward pass does not know it")
    r = np.random.default_rng(3)
    floats = [f"x{i}" for i in range(len(shapes))]
    constants = {f"i{i}": a for i, a in enumerate(ints)}
    outputs = tuple(f"y{i}" for i in range(count))
    names = (*constants, *floats) if op == "Where" else (*floats, *constants)
    net = Graph((Node("n", op, names, outputs, attrs, opset),), constants, tuple(floats), outputs, ((),))
    at = {name: r.standard_normal(shape) + shift for name, shape in zip(floats, shapes, strict=True)}

    def forward(feeds):
        return [q.real for q in graph.run(net, feeds, OPERATORS, {})]

    cotangents = [r.standard_normal(y.shape) for y in forward(at)]
    found = backward.gradients(net, at, cotangents)
    step = 1e-6
    for name, x in at.items():
        for _ in range(4):
            v = r.standard_normal(x.shape)
            ends = [forward(at | {name: x + side * v}) for side in (step, -step)]
            slope = sum(((a - b) * c).sum() for a, b, c in zip(*ends, cotangents, strict=True)) / (2 * step)
            assert found[name].value.shape == x.shape
            size = np.abs(found[name].value * v).sum()
            assert abs((found[name].value * v).sum() - slope) <= 1e-6 * size, name


def torch_gradients(spec, values, x, cotangent, dtype, fault=lambda item, y: y):
    """By PyTorch's autograd. ``fault`` may replace what a layer gives."""
    import torch
    import torch.nn.functional as F

    w = {k: torch.tensor(v, dtype=dtype, requires_grad=True) for k, v in values.items()}
    done = {"input": torch.tensor(x, dtype=dtype, requires_grad=True)}
    sources = spec.sources()
    for item in spec.layers:
        inputs, name = [done[s] for s in sources[item.name]], item.name
        y = inputs[0]
        if item.op in ("conv", "maxpool", "avgpool"):
            t, left, b, right = item["pads"]
        if item.op == "conv":
            y = F.pad(y, (left, right, t, b))
            weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
            y = F.conv2d(y, weight, bias, item["stride"], 0, item["dilation"], item["groups"])
        elif item.op == "fc":
            y = F.linear(y, w[f"{name}.weight"], w[f"{name}.bias"])
        elif item.op == "maxpool":
            y = F.max_pool2d(F.pad(y, (left, right, t, b), value=-np.inf), item["kernel"], item["stride"])
        elif item.op == "avgpool":
            y = F.avg_pool2d(y, item["kernel"], item["stride"], (t, left), count_include_pad=False)
        elif item.op == "batchnorm":
            parts = [w[f"{name}.{p}"] for p in ("mean", "var", "scale", "shift")]
            mean, var, scale, shift = (p.reshape(1, -1, 1, 1) for p in parts)
            y = (y - mean) / torch.sqrt(var + item["epsilon"]) * scale + shift
        elif item.op == "lrn":
            y = F.local_response_norm(y, item["size"], item["alpha"], item["beta"], item["bias"])
        elif item.op in ("relu", "softmax", "flatten"):
            y = {"relu": F.relu, "softmax": lambda v: F.softmax(v, 1), "flatten": lambda v: v.flatten(1)}[item.op](y)
        elif item.op == "add":
            y = inputs[0] + inputs[1]
        elif item.op == "concat":
            y = torch.cat(inputs, 1)
        done[name] = fault(item, y)
    (done[spec.layers[-1].name] * torch.tensor(cotangent, dtype=dtype)).sum().backward()
    return {
        k: (v.grad.numpy() if v.grad is not None else np.zeros(v.shape))
        for k, v in {**w, "input": done["input"]}.items()
    }


def nets():
    return [small_nets.alexlike(), small_nets.alexlike(softmax=True), small_nets.residual()]


def prepared(spec, seed=0, batch=2):
    values, x = small_nets.weights(spec, seed=seed), small_nets.images(spec, batch, seed + 1)
    net = graph.from_spec(spec, values)
    shape = graph.run(net, {"input": x}, OPERATORS, {})[0].value.shape
    cotangent = np.random.default_rng(seed + 2).standard_normal(shape).astype(np.float32)
    return values, x, cotangent, backward.gradients(net, {"input": x}, [cotangent])


@pytest.mark.parametrize("spec", nets(), ids=["alexlike", "softmax", "residual"])
def test_agrees_with_autograd_in_float64(spec):
    import torch

    values, x, cotangent, ours = prepared(spec)
    theirs = torch_gradients(spec, values, x, cotangent, torch.float64)
    assert set(ours) == set(theirs)
    for name, gradient in theirs.items():
        np.testing.assert_allclose(ours[name].value, gradient, rtol=1e-9, atol=1e-12 * np.abs(gradient).max())


@pytest.mark.parametrize("spec", nets(), ids=["alexlike", "softmax", "residual"])
def test_float32_gradients_stay_within_their_bound(spec):
    import torch

    for seed in range(3):
        values, x, cotangent, ours = prepared(spec, seed)
        theirs = torch_gradients(spec, values, x, cotangent, torch.float32)
        for name, gradient in theirs.items():
            off = np.abs(gradient - ours[name].value)
            assert (off <= ours[name].bound).all(), name
            # A rounding error, not a tolerance. (Where a choice is open the whole jump is allowed.)
            assert np.median(ours[name].bound) <= 1e-2 * np.abs(gradient).max(), name


SMOOTH = {
    "Tanh": ({}, lambda F, x: F.tanh(x)),
    "Sigmoid": ({}, lambda F, x: F.sigmoid(x)),
    "Softplus": ({}, lambda F, x: F.softplus(x)),
    "Elu": ({}, lambda F, x: F.elu(x)),
    "Selu": ({}, lambda F, x: F.selu(x)),
    "Mish": ({}, lambda F, x: F.mish(x)),
    "Gelu": ({}, lambda F, x: F.gelu(x)),
    "HardSwish": ({}, lambda F, x: F.hardswish(x)),
    "HardSigmoid": ({"alpha": 1 / 6}, lambda F, x: F.hardsigmoid(x)),
    "Softmax": ({"axis": 1}, lambda F, x: F.softmax(x, 1)),
    "LogSoftmax": ({"axis": 1}, lambda F, x: F.log_softmax(x, 1)),
    "LayerNormalization": ({"axis": 1}, lambda F, x: F.layer_norm(x, (48,))),
    "ReduceL2": ({"axes": [1]}, lambda F, x: x.norm(dim=1, keepdim=True)),
}


@pytest.mark.parametrize("op", SMOOTH)
def test_float32_gradients_of_one_operator(op):
    """Between two products, with errors that arrive from both sides."""
    import torch

    attrs, function = SMOOTH[op]
    r, names = np.random.default_rng(5), ("h", "ones") if op == "LayerNormalization" else ("h",)
    last = 1 if op == "ReduceL2" else 48
    w = {"w": r.standard_normal((64, 48)) / 4, "v": r.standard_normal((last, 20)) / 7, "x": r.standard_normal((16, 64))}
    w = {name: a.astype(np.float32) for name, a in w.items()}
    nodes = Node("a", "MatMul", ("x", "w"), ("h",)), Node("n", op, names, ("y",), attrs)
    nodes += (Node("b", "MatMul", ("y", "v"), ("z",)),)
    constants = {"w": w["w"], "v": w["v"], "ones": np.ones(48, np.float32)}
    cotangent = r.standard_normal((16, 20)).astype(np.float32)
    ours = backward.gradients(Graph(nodes, constants, ("x",), ("z",), ((),)), {"x": w["x"]}, [cotangent])
    t = {name: torch.tensor(a, requires_grad=True) for name, a in w.items()}
    ((function(torch.nn.functional, t["x"] @ t["w"]) @ t["v"]) * torch.tensor(cotangent)).sum().backward()
    for name, a in t.items():
        off = np.abs(a.grad.numpy() - ours[name].value)
        assert (off <= ours[name].bound).all(), name
        assert np.median(ours[name].bound) <= 1e-3 * np.abs(ours[name].value).max(), name


def test_a_fault_leaves_the_bound():
    import torch

    spec = small_nets.alexlike()
    values, x, cotangent, ours = prepared(spec)

    def fault(item, y):
        if item.name == "pool2":
            y.register_hook(lambda g: g * (1 + 1e-3))
        return y

    theirs = torch_gradients(spec, values, x, cotangent, torch.float32, fault)
    beyond = {n for n, g in theirs.items() if (np.abs(g - ours[n].value) > ours[n].bound).any()}
    assert beyond == {"input", "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"}


def single(op, x, cotangent, **attrs):
    net = Graph((Node("n", op, ("x",), ("y",), attrs),), {}, ("x",), ("y",), ((),))
    return backward.gradients(net, {"x": np.array(x, np.float32)}, [np.array(cotangent)])["x"]


@pytest.mark.parametrize("chosen", [0.0, 0.5, 1.0])
def test_a_kink_that_is_met_may_go_either_way(chosen):
    g = single("Relu", [0.0, 1.0, -1.0], [3.0, 3.0, 3.0])
    assert abs(3 * chosen - g.value[0]) <= g.bound[0]
    assert (g.bound[1:] < 1e-5).all()


def test_a_tie_of_a_pooling_may_go_either_way():
    g = single("MaxPool", [[[[2.0, 2.0, 1.0], [0.0, 0.0, 0.0]]]], [[[[5.0]]]], kernel_shape=[2, 3])
    assert g.value.ravel().tolist() == [5, 0, 0, 0, 0, 0]
    assert (np.abs([[0, 5, 0], [0, 0, 0]] - g.value[0, 0]) <= g.bound[0, 0]).all()
    assert (g.bound[0, 0, 1] < 1e-5).all()
    assert g.bound[0, 0, 0, 2] < 1e-5


def test_errors_of_copies_add_up():
    """Below a global pooling all gradients of a channel are one number; in their sum its error stays relative."""
    shape = (1, 2, 20, 20)
    nodes = (
        Node("b", "Add", ("x", "bias"), ("z",)),
        Node("p", "GlobalAveragePool", ("z",), ("p",)),
        Node("e", "Tanh", ("p",), ("y",)),
    )
    bias = {"bias": np.zeros((2, 1, 1), np.float32)}
    net = Graph(nodes, bias, ("x",), ("y",), ((),))
    found = backward.gradients(net, {"x": np.ones(shape, np.float32)}, [np.ones((1, 2, 1, 1))])
    each, whole = found["x"], found["bias"]
    assert whole.bound.max() / whole.value.max() >= 0.9 * each.bound.max() / each.value.max()
    assert whole.bound.max() < Z * 1e-4


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(ModelError, match=r"node n \(Floor\): the gradient"):
        single("Floor", [1.0], [0.0])
    with pytest.raises(UsageError, match="cotangent"):
        single("Relu", [1.0], [0.0, 1.0])


def test_what_the_loss_does_not_depend_on_is_left_out():
    nodes = (Node("a", "Relu", ("x",), ("y",)), Node("b", "Mul", ("z", "w"), ("u",)))
    net = Graph(nodes, {"w": np.ones(3, np.float32)}, ("x", "z"), ("y",), ((), ()))
    found = backward.gradients(net, dict.fromkeys("xz", np.ones(3, np.float32)), [np.ones(3)])
    assert set(found) == {"x"}
