"""What the instructions of an HLO module compute, and which of them ran."""

import pytest

from xframe.frameworks import xla
from xframe.frameworks.traces import Event
from xframe.types import ModelSpec, layer

NET = ModelSpec(
    "net",
    (3, 8, 8),
    (
        layer("conv", "conv", out=4, kernel=3, pads=1),
        layer("relu", "relu"),
        layer("one", "conv", out=4, kernel=1),
        layer("pool", "maxpool", kernel=2, stride=2),
        layer("flat", "flatten"),
        layer("fc", "fc", out=5),
        layer("soft", "softmax"),
    ),
)
TEXT = """\
HloModule jit_run, is_scheduled=true

FileLocations
1 {file_name_id=1 function_name_id=1 line=10}

%fused (p: f32[1,8,8,4], q: f32[4]) -> f32[1,8,8,4] {
  %p = f32[1,8,8,4]{3,2,1,0} parameter(0)
  %q = f32[4]{0} parameter(1)
  %b = f32[1,8,8,4]{3,2,1,0} broadcast(%q), dimensions={3}, metadata={op_name="jit(run)/conv/add"}
  %a = f32[1,8,8,4]{3,2,1,0} add(%p, %b), metadata={op_name="jit(run)/conv/add"}
  %z = f32[] constant(0)
  ROOT %m = f32[1,8,8,4]{3,2,1,0} maximum(%a, %z), metadata={op_name="jit(run)/relu/jit(relu)/max"}
}

%bias (p.1: f32[1,5], q.1: f32[5]) -> f32[1,5] {
  %p.1 = f32[1,5]{1,0} parameter(0)
  %q.1 = f32[5]{0} parameter(1)
  %a.1 = f32[1,5]{1,0} add(%p.1, %q.1), metadata={op_name="jit(run)/fc/add"}
  ROOT %e = f32[1,5]{1,0} exponential(%a.1), metadata={op_name="jit(run)/soft/exp"}
}

%library (p.2: f32[1,8,8,4], q.2: f32[1,1,4,4]) -> f32[1,8,8,4] {
  %p.2 = f32[1,8,8,4]{3,2,1,0} parameter(0)
  %q.2 = f32[1,1,4,4]{3,2,1,0} parameter(1)
  ROOT %c.2 = f32[1,8,8,4]{3,2,1,0} convolution(%p.2, %q.2), window={size=1x1}, dim_labels=b01f_01io->b01f, \
metadata={op_name="jit(run)/one/conv_general_dilated"}
}

%larger (u: f32[], v: f32[]) -> f32[] {
  %u = f32[] parameter(0)
  %v = f32[] parameter(1)
  ROOT %w = f32[] maximum(%u, %v), metadata={op_name="jit(run)/pool/reduce_window_max"}
}

%wrapped (p.3: f32[1,8,8,4]) -> f32[1,4,4,4] {
  %p.3 = f32[1,8,8,4]{3,2,1,0} parameter(0)
  %low = f32[] constant(-inf)
  ROOT %r = f32[1,4,4,4]{3,2,1,0} reduce-window(%p.3, %low), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=%larger, \
metadata={op_name="jit(run)/pool/reduce_window_max"}
}

ENTRY %main (x: f32[1,3,8,8], k: f32[3,3,3,4]) -> f32[1,5] {
  %x = f32[1,3,8,8]{3,2,1,0} parameter(0), metadata={op_name="x"}
  %k = f32[3,3,3,4]{3,2,1,0} parameter(1), metadata={op_name="values[\\'conv.weight\\']"}
  %turned = f32[1,8,8,3]{3,2,1,0} transpose(%x), dimensions={0,2,3,1}
  %c = f32[1,8,8,4]{3,2,1,0} convolution(%turned, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, \
metadata={op_name="jit(run)/conv/conv_general_dilated"}
  %fusion = f32[1,8,8,4]{3,2,1,0} fusion(%c, %k), kind=kLoop, calls=%fused, metadata={op_name="jit(run)/relu/max"}
  %ynn_fusion = f32[1,8,8,4]{3,2,1,0} fusion(%fusion, %k), kind=kCustom, calls=%library, \
metadata={op_name="jit(run)/one/conv_general_dilated"}, backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
  %pooling = f32[1,4,4,4]{3,2,1,0} fusion(%ynn_fusion), kind=kLoop, calls=%wrapped
  %other = f32[1,4,4,4]{2,3,1,0} copy(%pooling)
  %same = f32[1,4,4,4]{2,3,1,0} copy(%other)
  %flat = f32[1,64]{1,0} bitcast(%same)
  %dot.1 = f32[1,5]{1,0} dot(%flat, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %call = f32[1,5]{1,0} call(%dot.1), to_apply=%bias
  ROOT %last = f32[1,5]{1,0} fusion(%dot.1, %k), kind=kLoop, calls=%bias, metadata={op_name="jit(run)/soft/exp"}
}
"""


def layer_of(op_name):
    names = {x.name for x in NET.layers}
    return next((part for part in op_name.split("/")[:-1] if part in names), "")


def works():
    return xla.program(TEXT, NET, 1, layer_of)


def test_instructions_are_what_they_hold():
    found = {name: (work.kind, work.layer) for name, work in works().items()}
    assert found["c"] == ("conv", "conv")
    assert found["fusion"] == ("activation", "relu")
    assert found["ynn_fusion"] == ("conv", "one")
    assert found["pooling"] == ("pool", "pool")
    assert found["last"] == ("softmax", "soft")


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("sort(%x), dimensions={1}", ""),
        ("rng(%low, %z), distribution=rng_uniform", ""),
        ("fft(%x), fft_type=FFT", ""),
        ('custom-call(%x), custom_call_target="TopK"', ""),
        ("invented-tomorrow(%x)", ""),
        ("tanh(%x)", "elementwise"),
        ("reduce(%x, %low), dimensions={1}, to_apply=%larger", "elementwise"),
        ("after-all()", "copy"),
        ('custom-call(%x), custom_call_target="__onednn$matmul"', "fc"),
        # its layer tells what it is for
        ('sort(%x), dimensions={1}, metadata={op_name="jit(run)/soft/sort"}', "softmax"),
        ('sort(%x), dimensions={1}, metadata={op_name="jit(run)/conv/sort"}', ""),
    ],
)
@pytest.mark.parametrize("fused", [False, True])
def test_what_no_table_has_is_of_no_kind(instruction, kind, fused):
    """In a fusion it is not outweighed by what is beside it, unless that is a layer's main work."""
    line = f"  %new = f32[1,8]{{1,0}} {instruction}\n"
    if fused:
        beside = "  %beside = f32[1,8]{1,0} add(%x, %x)\n"
        inside, line = f"%held (x: f32[1,8]) -> f32[1,8] {{\n{beside}{line}}}\n\n", ""
        text = TEXT.replace("ENTRY", f"{inside}ENTRY")
        line = "  %new.1 = f32[1,8]{1,0} fusion(%x), kind=kLoop, calls=%held\n"
    else:
        text = TEXT
    text = text.replace("  ROOT %last", f"{line}  ROOT %last")
    found = xla.program(text, NET, 1, layer_of)["new.1" if fused else "new"].kind
    assert found == ("elementwise" if fused and kind == "copy" else kind)


def test_what_has_no_metadata_is_of_the_layer_that_reads_it():
    found = {name: (work.kind, work.layer) for name, work in works().items()}
    assert found["dot.1"] == ("fc", "fc")
    assert found["turned"] == ("layout", "conv")


def test_a_copy_changes_the_layout_or_not():
    found = works()
    assert (found["other"].kind, found["same"].kind) == ("layout", "copy")


def test_algorithms_are_those_that_the_module_shows():
    found = works()
    assert found["c"].algorithm == "eigen convolution"
    assert found["ynn_fusion"].algorithm == "ynnpack"
    assert found["c"].site.key == "n1c3h8w8o4k3x3s1x1p1.1.1.1d1x1g1float32"
    text = TEXT.replace(
        'dim_labels=b01f_01io->b01f, metadata={op_name="jit(run)/conv',
        'dim_labels=bf01_oi01->bf01, \
metadata={op_name="jit(run)/conv',
    )
    assert xla.program(text, NET, 1, layer_of)["c"].algorithm == "xla naive loops"
    text = TEXT.replace("__ynn_fusion", "__onednn_fusion")
    assert xla.program(text, NET, 1, layer_of)["ynn_fusion"].algorithm == "onednn"
    text = TEXT.replace(" convolution(%turned, %k)", " dot(%turned, %k)")
    assert xla.program(text, NET, 1, layer_of)["c"] == found["c"]._replace(algorithm="matmul (xla dot)")


def test_several_convolutions_in_one_kernel_are_of_no_site():
    another = TEXT.replace(
        "  ROOT %c.2 =",
        "  %c.3 = f32[1,8,8,4]{3,2,1,0} convolution(%p.2, %q.2), dim_labels=b01f_01io->b01f, "
        'metadata={op_name="jit(run)/conv/conv_general_dilated"}\n  ROOT %c.2 =',
    )
    work = xla.program(another, NET, 1, layer_of)["ynn_fusion"]
    assert (work.kind, work.layer, work.site, work.algorithm) == ("conv", "", None, "ynnpack")
    (kernel,), _ = xla.kernels([Event("x", 0.0, 1.0, "main", {"hlo_op": "ynn_fusion"})], {"ynn_fusion": work})
    assert kernel.name == "ynn_fusion (conv, one)"


def test_a_kernel_ends_when_it_is_done_not_when_it_was_started():
    events = [
        Event("call", 0.0, 9.0, "main", {"hlo_op": "call"}),
        Event("c", 1.0, 1.5, "main", {"hlo_op": "c", "_p": 7}),
        Event("end: c", 4.0, 4.1, "pool", {"_c": 7}),
        Event("fusion", 5.0, 6.0, "pool", {"hlo_op": "fusion", "_p": 8}),
        Event("elsewhere", 6.0, 7.0, "pool", {"hlo_op": "elsewhere"}),
        Event("Execute", 0.5, 8.0, "main"),
    ]
    kernels, others = xla.kernels(events, works())
    assert [(k.name, k.start, k.end, k.kind) for k in kernels] == [
        ("c", 1.0, 4.0, "conv"),
        ("fusion", 5.0, 6.0, "activation"),
    ]
    assert [e.name for e in others] == ["call", "elsewhere", "Execute"]
