"""The judge on whole networks: honest float32 runs pass, planted faults do not."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_nets import alexlike, images, pooled, residual, torch_layer, torch_run, weights

from xframe import artifact
from xframe.equivalence.graph import from_proto, from_spec, run
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import judge
from xframe.errors import ModelError, UsageError
from xframe.types import ConvSite, ModelSpec, Rounding, layer

torch = pytest.importorskip("torch")
F = torch.nn.functional


@pytest.mark.parametrize("spec", [alexlike(), alexlike(softmax=True), residual()], ids=lambda s: s.layers[-1].name)
def test_float32_runs_stay_inside(spec):
    ratios = []
    for seed in range(12):
        values, x = weights(spec, seed=seed), images(spec, 3, seed + 100)
        verdict = judge([torch_run(spec, values, x)], Reference.of_spec(spec, values).evaluate([x]))
        assert verdict.ok, verdict.reason
        ratios.append(verdict.ratio)
    # Not so far inside that anything would pass.
    assert min(ratios) > 1 / 40


def test_value_is_torch_in_float64():
    spec = alexlike()
    values, x = weights(spec), images(spec, 2)
    doubled = {k: v.astype(np.float64) for k, v in values.items()}
    theirs = torch_run(spec, doubled, x.astype(np.float64))
    np.testing.assert_allclose(Reference.of_spec(spec, values).evaluate([x])[0].value, theirs, rtol=1e-11, atol=1e-11)


def truncated(bits):
    """A layer whose operands keep only ``bits`` bits of mantissa, as tensor cores do."""

    def cut(a):
        mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
        return (np.ascontiguousarray(a).view(np.uint32) & mask).view(np.float32)

    def run(item, values, inputs):
        values = {k: cut(v) if k == f"{item.name}.weight" else v for k, v in values.items()}
        return torch_layer(item, values, [torch.from_numpy(cut(inputs[0].numpy()))])

    return run


def scaled_row(item, values, inputs):
    w = values[f"{item.name}.weight"].copy()
    w[5] *= np.float32(1.001)
    return torch_layer(item, values | {f"{item.name}.weight": w}, inputs)


def without_bias(item, values, inputs):
    return torch_layer(item, values | {f"{item.name}.bias": 0 * values[f"{item.name}.bias"]}, inputs)


def mirrored_pads(item, values, inputs):
    turned = {k: v[..., ::-1, ::-1].copy() if k == f"{item.name}.weight" else v for k, v in values.items()}
    return torch_layer(item, turned, [inputs[0].flip(2, 3)]).flip(2, 3)


def lrn_not_divided(item, values, inputs):
    return F.local_response_norm(inputs[0], item["size"], item["alpha"] * item["size"], item["beta"], item["bias"])


def flattened_hwc(item, values, inputs):
    return inputs[0].permute(0, 2, 3, 1).flatten(1)


def average_counting_padding(item, values, inputs):
    return F.avg_pool2d(inputs[0], item["kernel"], item["stride"], item["pads"][:2], count_include_pad=True)


def other_epsilon(item, values, inputs):
    v = {k: torch.from_numpy(values[f"{item.name}.{k}"]) for k in ("mean", "var", "scale", "shift")}
    return F.batch_norm(inputs[0], v["mean"], v["var"], v["scale"], v["shift"], False, 0.0, 1e-3)


def dropped(item, values, inputs):
    return inputs[0]


FAULTS = [
    (alexlike(), "lrn1", lrn_not_divided),
    (alexlike(), "conv2", mirrored_pads),
    (alexlike(), "flat", flattened_hwc),
    (alexlike(), "relu3", dropped),
    (alexlike(), "relu4", dropped),
    *((alexlike(), name, fault) for name in ("conv1", "conv2", "conv3", "fc5") for fault in (scaled_row, without_bias)),
    *((alexlike(), name, truncated(bits)) for name in ("conv1", "conv2", "conv3", "fc4", "fc5") for bits in (7, 10)),
    (residual(), "mean", average_counting_padding),
    (residual(), "bn1", other_epsilon),
    (residual(), "bn2", other_epsilon),
    (residual(), "sum", dropped),
    (residual(), "deep", scaled_row),
    (residual(), "deep", truncated(10)),
    (residual(), "conv2", truncated(10)),
]


FAULTS += [(alexlike(softmax=True), name, fault) for spec, name, fault in FAULTS if spec.name == "alexlike"]


@pytest.mark.parametrize(("spec", "name", "fault"), FAULTS)
def test_planted_faults_are_outside(spec, name, fault):
    values, x = weights(spec), images(spec, 2)
    verdict = judge([torch_run(spec, values, x, {name: fault})], Reference.of_spec(spec, values).evaluate([x]))
    assert not verdict.ok
    assert verdict.ratio > 2


@pytest.mark.parametrize("fill", [0.0, 0.02, np.nan, np.inf])
def test_a_constant_output_is_outside(fill):
    spec = alexlike(softmax=True)
    values, x = weights(spec), images(spec)
    assert not judge([np.full((1, 50), fill, np.float32)], Reference.of_spec(spec, values).evaluate([x])).ok


def pooling_model(ceil):
    """Max pooling whose ceil mode does not change the final shape."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=ceil),
        helper.make_node("GlobalAveragePool", ["p"], ["y"]),
    ]
    shapes = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 3, 8, 8]), ("y", [1, 3, 1, 1]))
    ]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("ceil", [0, 1])
def test_ceil_mode(tmp_path, ceil):
    path = tmp_path / "p.onnx"
    artifact.save(pooling_model(ceil), path, "p", "f", "1", "NCHW")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    judged = Reference.of_onnx(artifact.load(path)).evaluate([x])
    for theirs in (0, 1):
        out = F.max_pool2d(torch.from_numpy(x), 3, 2, ceil_mode=bool(theirs)).mean((2, 3), keepdim=True).numpy()
        assert judge([out], judged).ok == (theirs == ceil)


# -- coherent errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [100, 1000, 4608, 25088])
@pytest.mark.parametrize("weight", [0.1, 1 / 3, 0.37, 0.013])
def test_equal_addends_in_one_long_chain(terms, weight):
    """The worst honest implementation: one float32 accumulator, whose errors all have one sign."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, terms]), ("y", [1, 2]))]
    w = np.full((terms, 2), weight, np.float32)
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], [numpy_helper.from_array(w, "w")])
    reference = Reference(from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))
    x = np.full((1, terms), 0.7, np.float32)
    chain = np.cumsum(x[0, :, None] * w, axis=0, dtype=np.float32)[-1:]
    verdict = judge([chain], reference.evaluate([x]))
    assert verdict.ok, verdict.reason
    assert verdict.bound < 1e-2 * abs(float(chain[0, 0]))


def test_equal_filters_keep_relative_errors():
    """Copies of one channel carry one error: a deep net of equal weights does not average it away."""
    spec = alexlike()
    values = {k: np.full_like(v, 0.01) for k, v in weights(spec).items()}
    x = np.abs(images(spec))
    judged = Reference.of_spec(spec, values).evaluate([x])
    assert judge([torch_run(spec, values, x)], judged).ok
    nudged = torch_run(spec, values, x, {"relu1": lambda i, v, inputs: inputs[0].relu() * np.float32(1 + 2e-6)})
    assert judge([nudged], judged).ok  # conv1's own bound allows 2e-6 relative, so what follows must too


# -- roundings -------------------------------------------------------------------------------------------------------


def matrix(text):
    return np.array([row.split() for row in text.split(";")], np.float32)


def winograd(item, values, inputs):
    """F(4, 3) in float32: tiles of 6 x 6 share their rounding errors."""
    bt = matrix("4 0 -5 0 1 0; 0 -4 -4 1 1 0; 0 4 -4 -1 1 0; 0 -2 -1 2 1 0; 0 2 -1 -2 1 0; 0 4 0 -5 0 1")
    g = matrix("6 0 0; -4 -4 -4; -4 4 -4; 1 2 4; 1 -2 4; 0 0 24") / np.float32(24)
    at = matrix("1 1 1 1 1 0; 0 1 -1 2 -2 0; 0 1 1 4 4 0; 0 1 -1 8 -8 1")
    x, w, b = inputs[0].numpy(), values[f"{item.name}.weight"], values[f"{item.name}.bias"]
    h, wide = x.shape[2:]
    th, tw = -(-h // 4), -(-wide // 4)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 4 * th - h + 1), (1, 4 * tw - wide + 1)))
    tiles = np.lib.stride_tricks.sliding_window_view(padded, (6, 6), (2, 3))[:, :, ::4, ::4]
    product = np.einsum("ocij,nctuij->notuij", g @ w @ g.T, bt @ tiles @ bt.T, dtype=np.float32)
    y = (at @ product @ at.T).transpose(0, 1, 2, 4, 3, 5).reshape(*x.shape[:1], w.shape[0], 4 * th, 4 * tw)
    return torch.from_numpy(np.ascontiguousarray(y[:, :, :h, :wide] + b[:, None, None]))


def sites(spec, batch):
    """Layer name -> site, for the convolutions of ``alexlike``."""
    found, shape = {}, (batch, *spec.input)
    for item in spec.layers:
        if item.op == "conv":
            found[item.name] = ConvSite(
                batch,
                shape[1],
                shape[2:],
                item["out"],
                item["kernel"],
                item["stride"],
                item["pads"],
                groups=item["groups"],
            )
            shape = (batch, item["out"], *found[item.name].out_hw)
        elif item.op == "maxpool":
            shape = (*shape[:2], *pooled(shape, item))
    return found


def test_roundings_reach_their_sites():
    spec = alexlike()
    values, x = weights(spec), images(spec, 2)
    reference = Reference.of_spec(spec, values, outputs=["conv2", "conv3", "fc5"])
    plain = reference.evaluate([x])
    site = sites(spec, 2)["conv3"]
    wide = reference.evaluate([x], {site: Rounding(site.reduction, 16.0, (3, 3))})
    assert (wide[0].bound == plain[0].bound).all()
    assert (wide[1].bound > plain[1].bound).all()
    assert (wide[2].bound > plain[2].bound).all()
    assert np.median(wide[1].bound / plain[1].bound) > 5
    short = reference.evaluate([x], {site: Rounding(24)})
    assert (short[1].bound < plain[1].bound).all()
    for a, b in zip(wide, plain, strict=True):
        assert (a.value == b.value).all()


def test_winograd_needs_and_gets_its_own_bound():
    spec = ModelSpec("one", (16, 14, 14), (layer("conv", "conv", out=8, kernel=3, pads=1),))
    site = ConvSite(1, 16, (14, 14), 8, (3, 3), pads=(1, 1, 1, 1))
    for seed in range(4):
        values, x = weights(spec, seed=seed), images(spec, 1, seed)
        x[0, :, 6, 6] *= 1e4  # the exact result feels it 1 pixel away, the error all over its tile
        reference = Reference.of_spec(spec, values)
        out = torch_run(spec, values, x, {"conv": winograd})
        own = judge([out], reference.evaluate([x], {site: Rounding(16, 16.0, (3, 3))}))
        assert own.ok, own.reason
        assert not judge([out], reference.evaluate([x], {site: Rounding(16, 16.0)})).ok


# -- ONNX -------------------------------------------------------------------------------------------------------------

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
# Not VGG-19, seconds of operators that AlexNet has too, in a chain that is shorter than those of others.
LIGHT = ("bvlc_alexnet", "resnet50", "squeezenet", "inception_v1", "inception_v2")
LIGHT += ("densenet121", "shufflenet", "zfnet512")


@pytest.mark.parametrize("name", LIGHT)
def test_networks_of_the_onnx_package(name):
    """Against the outputs shipped with them, and a float32 run by ONNX Runtime, before the softmax as well."""
    ort = pytest.importorskip("onnxruntime")
    path = FOLDER / f"light_{name}.onnx"
    model = artifact.load(path)
    proto = onnx.load(path)
    last = proto.graph.node[-1]
    names = [model.outputs[0].name, *([last.input[0]] if last.op_type == "Softmax" else [])]
    shape = model.inputs[0].shape
    x = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)  # as onnx's own runner does
    judged = Reference.of_onnx(model, names).evaluate([x])
    shipped = numpy_helper.to_array(onnx.load_tensor(FOLDER / f"light_{name}_output_0.pb"))
    verdict = judge([shipped], judged[:1])
    assert verdict.ok, verdict.reason
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names[1:])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = session.run(names, {model.inputs[0].name: x})
    verdict = judge(outputs, judged)
    assert verdict.ok, verdict.reason
    assert max((j.bound / np.abs(j.value)).max() for j in judged) < 2e-3


def test_a_spec_and_its_graph_are_one_network(tmp_path):
    spec = alexlike(softmax=True)
    values, x = weights(spec), images(spec, 2)
    nodes = [
        helper.make_node(n.op, n.inputs, n.outputs, n.name, **{k: v for k, v in n.attrs.items() if v is not None})
        for n in from_spec(spec, values).nodes
    ]
    shapes = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("input", x.shape), ("prob", [2, 50]))
    ]
    tensors = [numpy_helper.from_array(v, k) for k, v in values.items()]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifact.save(proto, tmp_path / "a.onnx", spec.name, "f", "1", "NCHW")
    model = artifact.load(tmp_path / "a.onnx")
    assert [s for _, s in model.conv_sites] == list(sites(spec, 2).values())
    ours, theirs = Reference.of_spec(spec, values).evaluate([x])[0], Reference.of_onnx(model).evaluate([x])[0]
    np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-12)
    np.testing.assert_allclose(ours.bound, theirs.bound, rtol=1e-9)


def test_results_are_kept_by_feeds_and_roundings():
    spec = residual()
    reference = Reference.of_spec(spec, weights(spec))
    x = images(spec)
    first = reference.evaluate([x])
    assert reference.evaluate([x.copy()], {}) is first
    assert reference.evaluate([x + 1]) is not first
    assert (reference.evaluate([x], {ConvSite(1, 4, (12, 12), 16, (3, 3), pads=(1,) * 4): Rounding(7)})[0].bound).any()


def test_values_alone():
    spec = residual()
    reference = Reference.of_spec(spec, weights(spec))
    x = images(spec)
    (alone,) = reference.evaluate([x], bounds=False)
    (judged,) = reference.evaluate([x])
    np.testing.assert_allclose(alone.value, judged.value, rtol=1e-12, atol=1e-14)
    assert not alone.bound.any()
    assert judged.bound.all()
    assert reference.evaluate([x])[0] is judged
    assert reference.evaluate([x], bounds=False)[0] is judged  # known already


def test_threads_that_ask_for_the_same_get_one_evaluation(monkeypatch):
    spec = residual()
    reference, x = Reference.of_spec(spec, weights(spec)), images(spec)
    evaluated = []

    def counted(*args):
        evaluated.append(args)
        time.sleep(0.05)  # so that the others come while it is at it
        return run(*args)

    monkeypatch.setattr("xframe.equivalence.reference.run", counted)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: reference.evaluate([x]), range(4)))
    assert len(evaluated) == 1
    assert all(r is results[0] for r in results)


def test_feeds_and_weights_that_do_not_fit():
    spec = residual()
    values, x = weights(spec), images(spec)
    reference = Reference.of_spec(spec, values)
    for feeds in ([], [x, x], [x[0]], [x[:, :3]], [x.astype(np.float64)]):
        with pytest.raises(UsageError):
            reference.evaluate(feeds)
    del values["bn1.mean"]
    with pytest.raises(ModelError, match=r"bn1\.mean"):
        Reference.of_spec(spec, values)
