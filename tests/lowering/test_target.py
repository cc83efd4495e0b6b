"""Code for other CPUs than this one: run where it can run here, looked at where it can't; and targets that are none."""

import functools
import re

import pytest

from tests.lowering.networks import HOST, conv_data, conv_network, everywhere
from tests.lowering.test_convolutions import check, square
from xframe import environment, registry
from xframe.environment import cpu_device
from xframe.errors import Unsupported, UsageError
from xframe.lowering import pipeline
from xframe.lowering.target import CACHES, Cpu
from xframe.types import ConvSite

AVX2, BASELINE, NEON = "llvm -mcpu=core-avx2", "llvm -mcpu=x86-64", "llvm -mtriple=aarch64-linux-gnu -mattr=+neon"
#: Channels that are no whole vectors of 8, images that are no whole tiles, and what real networks have besides.
ODD = [
    square(2, 20, 13, 27, 3, pad=1),
    ConvSite(1, 3, (17, 11), 9, (5, 5), (1, 1), (2, 0, 1, 2)),
    square(1, 5, 15, 12, 3, pad=1, stride=2),
    square(1, 12, 14, 12, 3, pad=1, groups=12),
]


@functools.cache
def built(site, lowering, cpu):
    """The site with its ReLU, once for those that run it and those that look at its code."""
    _, w, b = conv_data(site, 0)
    return pipeline.build(conv_network(site, w, b, True), everywhere(lowering, site), cpu)


def code(site, lowering, cpu):
    """The assembly text of the site's kernels."""
    (module,) = (m for m in built(site, lowering, cpu).executable.mod.imports if m.kind == "llvm")
    return module.inspect_source("asm")


@pytest.mark.parametrize("site", ODD, ids=lambda s: s.key)
@pytest.mark.parametrize("lowering", registry.defaults(registry.LOWERINGS))
def test_avx2_runs_here(lowering, site):
    if registry.load(registry.LOWERINGS, lowering).refuses(site, cpu_device()):
        pytest.skip("refused: see test_refusals")
    check(site, lowering, relu=True, made=lambda *_: built(site, lowering, Cpu(AVX2, 2)))


@pytest.mark.parametrize("lowering", registry.defaults(registry.LOWERINGS))
def test_sse_runs_here(lowering):
    check(ODD[0], lowering, relu=True, made=lambda *_: built(ODD[0], lowering, Cpu(BASELINE, 2)))


@pytest.mark.parametrize("lowering", registry.defaults(registry.LOWERINGS))
def test_code_keeps_to_the_registers_of_its_target(lowering):
    avx2, sse = code(ODD[0], lowering, Cpu(AVX2, 2)), code(ODD[0], lowering, Cpu(BASELINE, 2))
    assert re.search(r"vfmadd\w+ps\s.*%ymm", avx2)
    assert not re.search(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])\b|%k[1-7]\b", avx2)
    assert re.search(r"mulps\s.*%xmm", sse)
    assert not re.search(r"%[yz]mm", sse)
    if HOST.lanes == 16:  # or else the search for zmm would find nothing anywhere
        assert "%zmm" in code(ODD[0], lowering, HOST)


@pytest.mark.parametrize("lowering", registry.defaults(registry.LOWERINGS))
def test_code_for_64_bit_arm_is_made(lowering):
    assert re.search(r"\tfmla\tv\d+\.4s", code(ODD[0], lowering, Cpu(NEON, 2)))


def test_what_is_read_off_a_target():
    """(lanes, registers); caches of this machine as far as it has such code, typical ones for another."""
    targets = {t: Cpu(t, 2) for t in (AVX2, BASELINE, NEON, "llvm -mcpu=x86-64-v4")}
    assert [(c.lanes, c.registers) for c in targets.values()] == [(8, 16), (4, 16), (4, 32), (16, 32)]
    own = environment.cache_bytes()
    for level, typical in CACHES.items():
        assert own.get(level, typical) == HOST.cache(level) >= 4096
    foreign = targets[NEON if HOST.architecture == "x86_64" else AVX2]
    assert {level: foreign.cache(level) for level in CACHES} == CACHES
    assert targets[AVX2].cost(0, 1, 1) < targets["llvm -mcpu=x86-64-v4"].cost(0, 1, 1)
    assert targets[AVX2].cost(1, 0, 0) == 1


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", UsageError, "is not the target of a CPU"),
        ("cuda", UsageError, "is not the target of a CPU"),
        ("core-avx2", UsageError, "is not the target of a CPU"),
        ("llvm -mcpu", UsageError, "is not the target of a CPU"),
        ("llvm -opt-level=0", UsageError, "may have -mcpu=NAME"),
        ("llvm -mcpu=core-avx3", UsageError, "knows no x86_64 processor 'core-avx3': did you mean core-avx2"),
        ("llvm -mcpu=cortex-a72", UsageError, "knows no x86_64 processor"),
        ("llvm -mtriple=nonsense-linux", UsageError, "knows no architecture 'nonsense'"),
        ("llvm -mattr=+nonsense", UsageError, r"no feature of x86_64 to set by \+nonsense"),
        ("llvm -mattr=avx2", UsageError, "to set by avx2"),
        (NEON, Unsupported, "code for aarch64 does not run on this machine, which is x86_64"),
        ("llvm -mcpu=bdver4", Unsupported, "instructions that this machine lacks: fma4"),
    ],
)
@pytest.mark.skipif(HOST.architecture != "x86_64", reason="the messages name this machine")
def test_a_target_that_can_not_be_used_is_refused_in_words(text, error, words):
    with pytest.raises(error, match=words):
        Cpu(text, 2).check()


@pytest.mark.parametrize("text", [HOST.text, "llvm"])
def test_a_target_of_this_machine_is_fine(text):
    Cpu(text, 2).check()
