"""What CUPTI's records are, and what XLA's are of the instructions of a module."""

import pytest
from gpu_step import HLO, NET, OF_XLA, XLA
from xspaces import COPY, told

from xframe import zoo
from xframe.errors import XframeError
from xframe.frameworks import cupti, xla
from xframe.frameworks.traces import Event


def events(streams=XLA):
    """What ran on the streams, in seconds."""
    found = [(line, *record) for line, records in streams.items() for record in records]
    out = [Event(name, start * 1e-6, end * 1e-6, line, stats, True) for line, name, start, end, stats in found]
    return cupti.split(out, "jax")[0]


def layer_of(op_name):
    names = {x.name for x in NET.layers}
    return next((part for part in op_name.split("/")[:-1] if part in names), "")


def works():
    return xla.program(HLO, NET, 1, layer_of)


def test_records_have_details_that_derived_events_lack():
    assert all(cupti.ran(e.stats) for e in events())
    assert not cupti.ran({"hlo_op": "fusion", "correlation_id": 3, "group_id": 1})


def test_device_and_host_are_told_apart_by_the_plane():
    call = Event("cuMemcpyHtoDAsync_v2", 0.0, 1.0, "main", COPY)
    late, early = Event("b", 2.0, 3.0, "s", {}, True), Event("a", 1.0, 2.0, "s", {}, True)
    assert cupti.split([late, call, early], "jax") == ([early, late], [call])


def test_a_trace_of_the_host_alone_says_what_to_do():
    with pytest.raises(
        XframeError, match=r"trace of jax has no kernel of a GPU.*NVreg_RestrictProfilingToAdminUsers=0"
    ):
        cupti.split([Event("cuLaunchKernel", 0.0, 1.0, "main")], "jax")


@pytest.mark.parametrize(
    ("name", "known", "kind"),
    [
        ("MemcpyD2D", "conv", "copy"),
        ("Memset", "conv", "copy"),
        ("void cudnn::ops::nhwcToNchwKernel<float>", "conv", "layout"),
        ("void tensorflow::functor::SwapDimension1And2InTensor3UsingTiles<unsigned int>", "conv", "layout"),
        ("implicit_convolve_sgemm", "conv", "conv"),
        ("implicit_convolve_sgemm", "", ""),
    ],
)
def test_a_name_tells_what_a_library_adds(name, known, kind):
    assert cupti.kind(name, known) == kind


def test_kernels_are_those_of_the_instructions_that_launched_them():
    kernels = xla.on_device(events(), works())
    assert told(kernels) == OF_XLA
    sites = zoo.sites(NET, 1)
    assert [k.site for k in kernels] == [sites[k.layer] if k.kind == "conv" else None for k in kernels]


def test_a_kernel_that_ran_twice_in_a_graph_is_of_nobody():
    """XLA has one kernel for all instructions that are alike, called after the first."""
    graph = [e for e in events() if e.name == "input_exponential_fusion_2"]
    again = [e._replace(start=e.end, end=e.end + 1e-6) for e in graph]
    assert told(xla.on_device([*graph, *again], works())) == [("input_exponential_fusion_2", "", "", "")] * 2
    known = [e._replace(stats={**e.stats, "hlo_op": "loop_add_fusion"}) for e in [*graph, *again]]
    assert {k.layer for k in xla.on_device(known, works())} == {"wide"}


def test_a_step_whose_kernels_have_no_instruction_says_what_gives_them_one():
    """As of a CUDA graph: XLA's own kernels are told by their names, those of libraries by nothing."""
    whole = events()
    graph = [e._replace(stats={k: v for k, v in e.stats.items() if k != "hlo_op"}) for e in whole]
    assert cupti.note(xla.on_device(whole, works())) == ""
    found = xla.on_device(graph, works())
    assert any(k.layer for k in found)
    assert cupti.note(found) == cupti.NOBODYS


def test_a_name_that_several_programs_have_is_of_nobody():
    (event,) = (e for e in events() if e.name == "input_exponential_fusion_2")
    both = {f"{program}/soft/input_exponential_fusion.2": xla.Work("softmax", "soft") for program in (1, 2)}
    assert told(xla.on_device([event], both)) == [("input_exponential_fusion_2", "", "", "")]


def test_what_libraries_compute_is_told_by_their_calls():
    found = {name: (work.kind, work.layer, work.calls) for name, work in works().items()}
    assert found["cudnn-conv-bias-activation.4"] == ("conv", "conv", False)
    assert found["cudnn-conv.7"] == ("conv", "wide", False)  # by what reads the image of its tuple
    assert found["cublas-lt-matmul.2"] == ("fc", "fc", False)
    assert found["gemm_fusion_dot.1"] == ("fc", "fc", False)
    assert found["wrapped_transpose"] == ("layout", "conv", False)
    assert found["copy-start.1"][0] == "copy"
    assert found["async-start"] == found["call"] == ("", "", True)
