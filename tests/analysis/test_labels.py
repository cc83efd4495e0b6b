"""Names that a reader recognises, and that tell things apart."""

from dataclasses import replace

import pytest

from tests.analysis.profiles import A, B
from xframe.analysis.labels import PLANNED, site_names, title, words
from xframe.results import LayerWork
from xframe.types import Case, ConvSite, Plan

ROW = Case("alexnet", "pytorch", "native", Plan(), "cpu", 1, 2)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (ROW, "pytorch native, batch 1, threads 2"),
        (replace(ROW, runner="tvm", plan=Plan("fft")), "pytorch tvm fft, batch 1, threads 2"),
        (replace(ROW, framework=None, runner="ort"), "alexnet ort, batch 1, threads 2"),
        (replace(ROW, options=(("xla", "on"),), batch=16), "pytorch native xla=on, batch 16, threads 2"),
    ],
)
def test_a_row_in_words_as_everywhere(case, expected):
    assert title(case) == expected
    assert PLANNED == "tvm"


def test_a_site_in_words():
    assert words(ConvSite(1, 64, (27, 27), 192, (5, 5), pads=(2, 2, 2, 2))) == "64x27x27 -> 192, 5x5"
    site = ConvSite(1, 64, (28, 27), 64, (3, 3), (2, 2), dilation=(2, 2), groups=4)
    assert words(site) == "64x28x27 -> 64, 3x3 /2 dilated 2 in 4 groups"


def test_sites_are_named_as_their_layers_and_no_two_alike():
    padded = replace(A, pads=(1, 1, 1, 1))
    layers = [LayerWork(n, "conv", s, 0, 0) for n, s in (("a", B), ("b", B), ("c", B), ("fc", None))]
    found = site_names([A, padded, B], layers)
    assert found == {A: "8x9x9 -> 8, 3x3", padded: padded.key, B: "a and 2 more"}


def test_no_site_has_the_name_of_a_kind():
    layers = [LayerWork(n, "conv", s, 0, 0) for n, s in (("conv", A), ("pool", B))]
    assert site_names([A, B], layers) == {A: words(A), B: words(B)}
