"""oneDNN's verbose lines. Those here were printed by the versions inside PyTorch 2.13 and TensorFlow 2.21."""

import os

from xframe.frameworks import onednn
from xframe.types import ConvSite

CONV = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512_core,forward_inference,"
    "src:f32::blocked:acdb::f0 wei:f32:a:blocked:Acdb16a::f0 bia:f32::blocked:a::f0 dst:f32::blocked:acdb::f0,"
    "attr-scratchpad:user,alg:convolution_direct,{problem},1.5"
)
PLAIN = "mb2_ic64oc192_ih27oh27kh5sh1dh0ph2_iw27ow14kw3sw2dw0pw1"
SITE = ConvSite(2, 64, (27, 27), 192, (5, 3), (1, 2), (2, 1, 2, 1))


def test_a_convolution_and_its_site():
    (found,) = onednn.parse(CONV.format(problem=PLAIN))
    assert (found.kind, found.implementation, found.seconds) == ("convolution", "brgconv:avx512_core", 1.5e-3)
    assert found.memory[0] == ("src", "f32", "acdb")
    assert found.memory[1] == ("wei", "f32", "Acdb16a")
    assert found.details == "attr-scratchpad:user alg:convolution_direct"
    assert found.started is None
    assert found.computes(SITE)


def test_each_number_of_a_site_counts():
    (found,) = onednn.parse(CONV.format(problem=PLAIN))
    for change in (
        {"batch": 1}, {"in_channels": 32}, {"out_channels": 191}, {"in_hw": (28, 27)}, {"kernel": (5, 5)},
        {"stride": (1, 1)}, {"pads": (1, 1, 3, 1)}, {"pads": (2, 1, 3, 1)}, {"dilation": (1, 2)}, {"groups": 2},
    ):  # fmt: skip
        assert not found.computes(ConvSite(**{**vars(SITE), **change})), change


def test_groups_and_dilation():
    (found,) = onednn.parse(CONV.format(problem="g4mb1_ic8oc16_ih9oh5kh3sh1dh1ph0_iw9ow9kw1sw1dw0pw0"))
    assert found.computes(ConvSite(1, 8, (9, 9), 16, (3, 1), dilation=(2, 1), groups=4))


def test_a_reorder_of_version_2_and_a_timestamp():
    old = (
        "onednn_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd:f0 dst_f32::blocked:acdb:f0,"
        "attr-scratchpad:user,,64x3x11x11,0.25"
    )
    (found,) = onednn.parse(old)
    assert (found.kind, found.problem, found.seconds) == ("reorder", "64x3x11x11", 0.25e-3)
    assert found.memory == (("src", "f32", "abcd"), ("dst", "f32", "acdb"))
    (stamped,) = onednn.parse(CONV.format(problem=PLAIN).replace("v1,", "v1,1234.5,"))
    assert stamped.started == 1.2345
    assert stamped.computes(SITE)


def test_other_lines_are_passed_over():
    text = "\n".join(
        [
            "onednn_verbose,v1,info,oneDNN v3.11.2 (commit 1234)",
            "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,exec_time",
            CONV.format(problem=PLAIN).replace("exec,cpu", "create:cache_miss,cpu"),
            "what a framework says, exec, too",
            CONV.format(problem=PLAIN)[:150],
            CONV.format(problem=PLAIN),
        ]
    )
    assert len(onednn.parse(text)) == 1


def test_what_is_printed_to_the_descriptor_is_kept(capfd):
    with onednn.captured() as kept:
        os.write(1, b"native\n")
    os.write(1, b"shown\n")
    assert kept.text == "native\n"
    assert capfd.readouterr().out == "shown\n"


def test_marks_tell_whose_primitives_they_are():
    one, two = CONV.format(problem=PLAIN), CONV.format(problem=PLAIN.replace("mb2", "mb7"))
    with onednn.captured() as kept:
        os.write(1, f"{one}\n".encode())
        onednn.mark("a")
        os.write(1, f"{one}\n{two}\n".encode())
        onednn.mark("b")
        onednn.mark("a")
        os.write(1, f"{two}\n".encode())
    found = onednn.parse_marked(kept.text)
    assert {name: [p.problem[:3] for p in ran] for name, ran in found.items()} == {"a": ["mb2", "mb7", "mb7"], "b": []}
