"""Profiled passes of PyTorch: every kernel with its layer, its kind and a convolution's site and algorithm."""

import itertools

import numpy as np
import pytest
import torch
from float64 import close, output
from nets import EVERY, TRAPS, random_net

from xframe import registry, zoo
from xframe.errors import XframeError
from xframe.frameworks import onednn, pytorch_profile, pytorch_trace
from xframe.frameworks.pytorch_inductor import Call, Job, jobs, place
from xframe.frameworks.pytorch_layers import Marked
from xframe.frameworks.pytorch_profile import KIND, _kernels, _Network, _on_device, _split
from xframe.frameworks.pytorch_trace import Event, Node, trees
from xframe.types import HOST, KINDS, ConvSite, ModelSpec, layer

#: Images large enough for oneDNN; a padded, a grouped and a depthwise convolution; additions.
RESIDUAL = ModelSpec(
    "residual",
    (16, 24, 20),
    (
        layer("c1", "conv", out=32, kernel=5, pads=(2, 1, 2, 2)),
        layer("b1", "batchnorm"),
        layer("r1", "relu"),
        layer("c2", "conv", out=32, kernel=3, pads=1, groups=4),
        layer("sum", "add", ("c2", "r1")),
        layer("r2", "relu6"),
        layer("dw", "conv", out=32, kernel=3, pads=1, groups=32),
        layer("pw", "conv", out=24, kernel=1),
        layer("sum2", "add", ("pw", "pw")),
        layer("p", "avgpool", kernel=2, stride=2),
        layer("f", "flatten"),
        layer("fc", "fc", out=10),
        layer("s", "softmax"),
    ),
)
NETS = {"every op": EVERY, "residual": RESIDUAL, **{f"random {seed}": random_net(seed) for seed in range(3)},
        **{name: TRAPS[name] for name in ("depthwise", "average at the rim", "flatten twice, fc twice")}}  # fmt: skip


@pytest.fixture
def build():
    """Networks of the registered PyTorch, fed; what is set for the process is put back."""
    networks = []
    enabled = torch.backends.mkldnn.enabled

    def made(spec, batch=2, **options):
        framework = registry.load(registry.FRAMEWORKS, "pytorch")
        networks.append(framework.build(spec, zoo.weights(spec), "cpu", batch, 2, options))
        networks[-1].bind([zoo.inputs((batch, *spec.input), 1)])
        return networks[-1]

    yield made
    for network in networks:
        network.close()
    torch.backends.mkldnn.enabled = enabled


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_kernel_is_attributed(build, name, batch):
    spec = NETS[name]
    ops, sites = {x.name: x.op for x in spec.layers}, zoo.sites(spec, batch)
    profiles = build(spec, batch).profile(2)
    assert len(profiles) == 2
    for profile in profiles:
        kernels = profile.kernels
        assert {k.layer for k in kernels} >= {n for n, op in ops.items() if op not in ("dropout", "flatten")}
        assert [k.layer for k in kernels] == sorted((k.layer for k in kernels), key=list(ops).index)
        for k in kernels:
            assert k.kind in (KIND[ops[k.layer]], "layout"), k
            assert k.kind in KINDS
            assert k.site == (sites[k.layer] if k.kind == "conv" else None)
        for conv in sites:
            words = {k.algorithm for k in kernels if k.layer == conv and k.kind == "conv" and k.role != "pad"}
            assert words - {""}, conv


@pytest.mark.parametrize("name", NETS)
def test_times_add_up(build, name):
    for profile in build(NETS[name]).profile(2):
        kernels = profile.kernels
        assert kernels[0].start > 0
        assert kernels[-1].end < profile.wall
        assert all(k.start < k.end for k in kernels)
        assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(kernels))
        assert 0 < sum(k.end - k.start for k in kernels) < profile.wall
        assert all(0 <= s.start <= s.end <= profile.wall for s in profile.host)
        kinds = {s.kind for s in profile.host}
        assert kinds <= set(HOST)
        assert "python" in kinds
        assert {"dispatch", "allocation"} <= kinds or name != "residual"
        assert np.isfinite(profile.cost)


def test_padding_before_a_convolution_is_its_own_kernel(build):
    (profile,) = build(RESIDUAL).profile(1)
    pads = [k for k in profile.kernels if k.role == "pad"]
    assert pads
    assert {k.layer for k in pads} == {"c1"}
    assert {k.algorithm for k in pads} == {""}


def test_steps_after_a_profile_are_as_before(build, capfd):
    network = build(RESIDUAL)
    network.profile(1)
    network.step()
    close(network.fetch()[0], output(RESIDUAL, zoo.weights(RESIDUAL), zoo.inputs((2, *RESIDUAL.input), 1)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network._module.modules())
    assert capfd.readouterr().out == ""  # oneDNN is quiet again, and what it said was kept


def test_algorithms_are_those_of_onednn_and_of_torch_without_it(build):
    def words(**options):
        (profile,) = build(RESIDUAL, **options).profile(1)
        return {k.layer: k.algorithm for k in profile.kernels if k.algorithm}

    assert all(":" in text for text in words().values())
    assert set(words()) == {"c1", "c2", "dw", "pw"}
    assert set(words(mkldnn="off").values()) == {"im2col+gemm"}


def test_other_operators_than_those_marked():
    marks = Marked([("aten::relu", "r"), ("aten::add", "sum")], {})
    with pytest.raises(XframeError, match="ran 1 operators, and not the 2 of the step that told their layers"):
        marks.place(trees([Event("aten::relu", 0.0, 1.0)]))


def test_what_has_changed_inside_torch_is_an_error_in_words(build, monkeypatch):
    network = build(TRAPS["depthwise"])
    monkeypatch.setattr(pytorch_trace, "Mark", None)
    with pytest.raises(XframeError, match=r"torch [\d.+a-z]+ can't be profiled: TypeError"):
        network.profile(1)


# The parts, on events made by hand.


def test_trees_and_own_times():
    events = [
        Event("aten::empty", 2.0, 3.0), Event("aten::conv2d", 0.0, 10.0), Event("aten::relu", 10.0, 11.0),
        Event("aten::mkldnn_convolution", 1.0, 9.0), Event("other thread", 4.0, 20.0, 1),
    ]  # fmt: skip
    conv, other, relu = trees(events)
    assert [n.name for n in conv.walk()] == ["aten::conv2d", "aten::mkldnn_convolution", "aten::empty"]
    assert conv.children[0].own() == [(1.0, 2.0), (3.0, 9.0)]
    assert (other.name, relu.name) == ("other thread", "aten::relu")
    assert [n.computes for n in conv.walk()] == [False, True, False]


@pytest.mark.parametrize(
    ("name", "computes"),
    [
        ("aten::addmm", True), ("aten::max_pool2d_with_indices", True), ("aten::_softmax", True), ("aten::cat", True),
        ("aten::native_batch_norm", True), ("aten::copy_", True), ("aten::_slow_conv2d_forward", True),
        ("aten::mkldnn_convolution", True), ("mkldnn::_convolution_pointwise", True), ("mkl::_mkl_linear", True),
        ("aoti_torch_cpu_mkldnn__convolution_pointwise", True), ("aoti_torch_cpu__mkl_linear", True),
        ("aoti_torch_cpu_addmm_out", True), ("aoti_torch_cpu_view", False),
        ("graph_0_cpp_fused_relu_3", True), ("aten::view", False), ("aten::as_strided_", False), ("aten::t", False),
        ("aten::empty", False), ("aten::resize_", False), ("aten::dropout", False), ("aten::conv2d", False),
        ("aten::flatten", False), ("aten::contiguous", False), ("aten::_unsafe_view", False),
        ("Torch-Compiled Region: 0/0", False), ("no_such::operator", True),
    ],
)  # fmt: skip
def test_what_computes(name, computes):
    assert Node(Event(name, 0.0, 1.0)).computes == computes


def test_an_operator_that_only_calls_others_does_not_compute():
    (conv,) = trees([Event("aten::convolution", 0.0, 3.0), Event("aten::addmm", 1.0, 2.0)])
    assert [n.computes for n in conv.walk()] == [False, True]
    (conv,) = trees([Event("aoti_torch_cpu_convolution", 0.0, 3.0), Event("aten::mkldnn_convolution", 1.0, 2.0)])
    assert [n.computes for n in conv.walk()] == [False, True]
    (product,) = trees([Event("aten::addmm", 0.0, 3.0), Event("aten::copy_", 1.0, 2.0)])
    assert [n.computes for n in product.walk()] == [True, True]


def test_splitting_keeps_every_instant():
    pieces = [(0.0, 1.0), (2.0, 4.0), (5.0, 6.0)]
    assert list(_split(pieces, [1.0, 2.0, 1.0])) == [[(0.0, 1.0)], [(2.0, 4.0)], [(5.0, 6.0)]]
    assert list(_split(pieces, [3.0, 1.0])) == [[(0.0, 1.0), (2.0, 4.0)], [(5.0, 6.0)]]
    assert list(_split(pieces, [1.0, 1.0])) == [[(0.0, 1.0), (2.0, 3.0)], [(3.0, 4.0), (5.0, 6.0)]]
    assert list(_split([(0.0, 8.0)], [1.0, 2.0, 1.0])) == [[(0.0, 2.0)], [(2.0, 6.0)], [(6.0, 8.0)]]


SITE = ConvSite(1, 3, (8, 8), 4, (3, 3))


def primitive(kind, seconds):
    return onednn.Primitive(kind, "brgconv:any", "", (("src", "f32", "abcd"), ("dst", "f32", "acdb")), "", seconds)


def test_reorders_inside_a_convolution_are_split_out_of_it():
    network = _Network({"c": "conv"}, {"c": SITE}, {"c": [primitive("reorder", 1.0), primitive("convolution", 3.0)]})
    (node,) = trees([Event("aten::mkldnn_convolution", 0.0, 8.0), Event("aten::empty", 4.0, 5.0)])
    node.layer = "c"
    reorder, first, second = _kernels(network, node)
    assert (reorder.start, reorder.end, reorder.kind, reorder.site, reorder.layer) == (0.0, 1.75, "layout", None, "c")
    assert reorder.name == "aten::mkldnn_convolution reorder abcd to acdb"
    assert [(k.start, k.end, k.kind, k.site, k.algorithm) for k in (first, second)] == [
        (1.75, 4.0, "conv", SITE, "brgconv:any"), (5.0, 8.0, "conv", SITE, "brgconv:any")]  # fmt: skip


def test_kernels_of_a_device_take_the_layers_of_their_operators():
    network = _Network({"c": "conv", "r": "relu"}, {"c": SITE}, {})
    conv, relu = trees([Event("aten::cudnn_convolution", 0, 1, id=7), Event("aten::relu", 1, 2, id=8)])
    conv.layer, relu.layer = "c", "r"
    device = [
        Event("void nchwToNhwcKernel", 2, 3, 0, True, 0, 7), Event("implicit_convolve_sgemm", 3, 5, 0, True, 0, 7),
        Event("void elementwise", 5, 6, 0, True, 0, 8), Event("Memcpy DtoD", 6, 7, 0, True, 0, 99),
        Event("made up", 7, 8, 0, True),
    ]  # fmt: skip
    found = list(_on_device(network, [conv, relu], device))
    assert [(k.kind, k.layer) for k in found] == [
        ("layout", "c"), ("conv", "c"), ("activation", "r"), ("copy", ""), ("", "")]  # fmt: skip
    assert (found[1].site, found[1].algorithm) == (SITE, "implicit_convolve_sgemm")


def test_calls_of_cuda_are_no_operators_though_their_numbers_are_the_same():
    network = _Network({"c": "conv", "r": "relu"}, {"c": SITE}, {})
    roots = trees([
        Event("aten::cudnn_convolution", 0, 1, id=1), Event("aten::relu", 1, 3, id=513),
        Event("cudaLaunchKernel", 1.5, 2, id=1, caller=513),
    ])  # fmt: skip
    roots[0].layer = roots[1].layer = roots[1].children[0].layer = "r"
    roots[0].layer = "c"
    (kernel,) = _on_device(network, [n for r in roots for n in r.walk()], [Event("sgemm", 3, 4, 0, True, 0, 1)])
    assert (kernel.kind, kernel.layer) == ("conv", "c")


def test_launching_is_no_work_of_the_interpreter():
    names = ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaDeviceSynchronize", "custom thing")
    kinds = [pytorch_profile._span(trees([Event(name, 0, 1)])[0]).kind for name in names]
    assert kinds == ["dispatch", "dispatch", "dispatch", "python", "python"]


def test_what_inductor_fused_around_a_product_is_no_product():
    names = {
        "triton_poi_fused_convolution_relu_0": "activation", "triton_poi_fused_max_pool2d_with_indices_1": "pool",
        "triton_poi_fused_addmm_relu_3": "activation", "triton_tem_fused_addmm_2": "fc",
        "triton_poi_fused_convolution_4": "",
    }  # fmt: skip
    assert {name: pytorch_profile._by_name(name) for name in names} == names


SPEC = ModelSpec(
    "net",
    (3, 9, 7),
    (layer("c", "conv", out=16, kernel=3), layer("r", "relu"), layer("p", "maxpool", kernel=2), layer("f", "flatten"),
     layer("fc", "fc", out=3)),
)  # fmt: skip
CALLS = [Call("cpp_fused_convolution_0", ("c",)), Call("", ("c",)), Call("cpp_fused_max_pool2d_relu_1", ("r", "p")),
         Call("", ("r", "p", "f", "fc"))]  # fmt: skip
COMPILED = [
    Event("Torch-Compiled Region: 0/0", 0.0, 20.0), Event("graph_0_cpp_fused_convolution_0", 1.0, 2.0),
    Event("aten::convolution", 3.0, 6.0), Event("aten::mkldnn_convolution", 4.0, 5.0), Event("aten::as_strided", 6, 7),
    Event("graph_0_cpp_fused_max_pool2d_relu_1", 7.0, 8.0), Event("mkl::_mkl_linear", 9.0, 10.0),
]  # fmt: skip


def test_calls_of_a_compiled_network():
    roots = trees(COMPILED)
    assert place(CALLS, SPEC, roots)
    found = {n.name: (n.layer, n.kind) for r in roots for n in r.walk() if n.computes}
    assert found == {
        "graph_0_cpp_fused_convolution_0": ("c", "layout"),
        "aten::mkldnn_convolution": ("c", ""),
        "graph_0_cpp_fused_max_pool2d_relu_1": ("p", ""),
        "mkl::_mkl_linear": ("fc", ""),
    }


@pytest.mark.parametrize("seen", [COMPILED[:-1], [*COMPILED[:-1], Event("graph_0_cpp_fused_relu_2", 9.0, 10.0)]])
def test_calls_that_were_not_written_are_not_guessed(seen):
    roots = trees(seen)
    assert not place(CALLS, SPEC, roots)
    assert {n.layer for r in roots for n in r.walk()} == {""}
    kinds = {n.name: pytorch_profile._kind(_Network({}, {}, {}), n) for r in roots for n in r.walk() if n.computes}
    assert kinds["aten::mkldnn_convolution"] == "conv"
    assert kinds["graph_0_cpp_fused_max_pool2d_relu_1"] == "pool"


def test_what_calls_are_for():
    net = ModelSpec(
        "net",
        (3, 9, 9),
        (
            layer("c", "conv", out=3, kernel=3, pads=1), layer("sum", "add", ("c", "input")), layer("r", "relu"),
            layer("p", "maxpool", kernel=2), layer("c2", "conv", out=3, kernel=3), layer("r2", "relu"),
            layer("f", "flatten"), layer("fc", "fc", out=3), layer("s", "softmax"),
        ),
    )  # fmt: skip
    calls = [
        (Call("cpp_0", ("c",)), Job("c", True)),  # the image into another order
        (Call("", ("c", "sum", "r")), Job("c", False)),
        (Call("cpp_1", ("c", "sum", "r", "p", "c2")), Job("p", False)),  # and weights
        (Call("", ("r", "p", "c2")), Job("c2", False)),
        (Call("cpp_2", ("c2", "r2", "f")), Job("r2", False)),
        (Call("", ("r2", "f", "fc")), Job("fc", False)),
        (Call("cpp_3", ("r2", "f", "fc", "s")), Job("s", False)),
        (Call("cpp_4", ("r2", "fc", "s")), Job("s", True)),  # all is done: a copy
        (Call("cpp_5", ()), Job("", True)),
    ]
    assert jobs([call for call, _ in calls], net) == [job for _, job in calls]


def test_a_profile_has_what_numpy_can_check(build):
    """The shares of the parts of a step add up to it: kernels, and the rest, which host spans cover."""
    (profile,) = build(RESIDUAL).profile(1)
    edges = np.unique([0.0, profile.wall, *(t for x in (*profile.kernels, *profile.host) for t in (x.start, x.end))])
    middles = (edges[1:] + edges[:-1]) / 2
    busy = sum((k.start <= middles) & (middles < k.end) for k in profile.kernels)
    spanned = sum((s.start <= middles) & (middles < s.end) for s in profile.host)
    assert set(busy) <= {0, 1}
    assert (spanned >= 1).all()
