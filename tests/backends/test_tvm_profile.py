"""Kernels of a TVM module tied to what they compute: planted names and shapes."""

import pytest
from onnx import helper

from xframe.backends import kinds
from xframe.backends.nodes import Nodes
from xframe.backends.tvm_profile import Instrument, forced, layered, stock
from xframe.errors import NotHonoured
from xframe.types import ConvSite, Kernel, SiteRecord

A, B = ConvSite(1, 16, (9, 9), 16, (3, 3)), ConvSite(1, 16, (7, 7), 16, (3, 3))


def record(name, site, lowering="winograd", detail="F(4,3)"):
    return SiteRecord(site, name, lowering, lowering, detail)


def test_stages_have_their_layer_role_and_algorithm():
    join = forced([record("conv1", A)], ["first"])
    owners = join(["conv1_winograd_pad", "conv1_winograd_input_product_output", "max_pool"])
    assert owners[0] == ("first", A, "pad", "winograd F(4,3)")
    assert owners[1] == ("first", A, "input_product_output", "winograd F(4,3)")
    assert owners[2] == ("", None, "", "")


def test_equal_convolutions_share_names_and_not_layers():
    records = [record("conv1", A), record("conv2", B), record("conv3", A)]
    names = [f"conv{n}_winograd_{role}" for n in (1, 2, 1) for role in ("input", "product")]
    owners = forced(records, ["a", "b", "c"])(names)
    assert [o.layer for o in owners] == ["a", "a", "b", "b", "c", "c"]


def test_equal_convolutions_one_after_the_other():
    records = [record("conv1", A), record("conv2", A)]
    owners = forced(records, ["a", "b"])(["conv1_winograd_input", "conv1_winograd_product"] * 2)
    assert [o.layer for o in owners] == ["a", "a", "b", "b"]


def test_without_the_nodes_there_are_no_layers():
    (owner,) = forced([record("conv1", A)], [])(["conv1_winograd_product"])
    assert (owner.layer, owner.site) == ("", A)


@pytest.mark.parametrize("names", [[], ["conv1_direct_product"], ["conv1_winograd_product"]])
def test_fewer_kernels_than_planned_are_not_honoured(names):
    with pytest.raises(NotHonoured, match="conv1, conv2"):
        forced([record("conv1", A), record("conv2", A)], [])(names)


def shapes(site):
    weight = (site.out_channels, site.in_channels // site.groups, *site.kernel)
    image, out = (site.batch, site.in_channels, *site.in_hw), (site.batch, site.out_channels, *site.out_hw)
    return [image, weight, (1, site.out_channels, 1, 1), out]


def test_tvms_own_convolutions_are_told_by_their_shapes():
    seen = [("fused_conv2d1_add", shapes(B)), ("pad", [A.in_hw]), ("conv2d", shapes(A)), ("conv2d", shapes(A))]
    owners = stock(seen, [("a", A), ("b", B), ("c", A)])([name for name, _ in seen])
    assert [(o.layer, o.site) for o in owners] == [("b", B), ("", None), ("a", A), ("c", A)]
    assert owners[0].algorithm == "direct:topi"


def test_kernels_that_were_not_looked_at_belong_to_nothing():
    owners = stock([("conv2d", shapes(A))], [("a", A)])(["conv2d", "conv2d"])
    assert [o.site for o in owners] == [None, None]


def test_other_kernels_have_their_layers_where_there_are_as_many():
    nodes = Nodes(
        helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], f"{op}{i}")
        for i, op in enumerate(("MaxPool", "Gemm", "Relu", "Gemm", "AveragePool", "LRN"))
    )
    names = ("max_pool", "fc1_product", "fc2_product", "average_pool")
    kernels = [Kernel(name, 0.0, 0.0, kind=kinds.of_name(name)) for name in names]
    assert [k.layer for k in layered(kernels, nodes)] == ["MaxPool0", "Gemm1", "Gemm3", "AveragePool4"]
    assert [k.layer for k in layered(kernels[:2], nodes)] == ["", ""]  # a pooling and a product are in other kernels


def test_calls_are_paired_also_within_each_other():
    instrument = Instrument()
    instrument.seen += [("out", True, 1.0), ("in", True, 2.0), ("in", False, 3.0), ("out", False, 5.0)]
    assert instrument.calls(0.5) == [("in", 1.5, 2.5), ("out", 0.5, 4.5)]


def test_a_mark_is_made_before_each_kernel_and_nothing_else():
    marked = []
    instrument = Instrument(lambda: marked.append(len(instrument.seen)))
    for name, begins in (("vm.builtin.check", True), ("vm.builtin.check", False), ("conv1", True), ("conv1", False)):
        instrument.function(None, name, begins, None)
    assert marked == [2]
    assert [name for name, *_ in instrument.calls(0.0)] == ["vm.builtin.check", "conv1"]
