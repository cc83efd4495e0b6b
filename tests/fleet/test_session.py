"""The samples that a server sends: read back, and refused where they are none."""

import json

import pytest

from xframe.fleet.session import read_samples


def test_samples_are_read():
    samples, note = read_samples('{"seconds": [1e-3, 2e-3], "baseline": [3e-3, 4e-3], "note": "warm"}')
    assert (samples.seconds, samples.baseline, note) == ((1e-3, 2e-3), (3e-3, 4e-3), "warm")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"seconds": [1.0]},
        {"seconds": [], "baseline": [], "note": ""},
        {"seconds": [1.0], "baseline": [1.0, 2.0], "note": ""},
        {"seconds": [0.0], "baseline": [1.0], "note": ""},
        {"seconds": [1.0], "baseline": [-1.0], "note": ""},
        {"seconds": [float("nan")], "baseline": [1.0], "note": ""},
        {"seconds": [float("inf")], "baseline": [1.0], "note": ""},
        {"seconds": ["fast"], "baseline": [1.0], "note": ""},
        {"seconds": 1.0, "baseline": 1.0, "note": ""},
        {"seconds": [10**400], "baseline": [1.0], "note": ""},
    ],
)
def test_what_is_none(data):
    with pytest.raises(ValueError):  # noqa: PT011  # in whatever words
        read_samples(json.dumps(data))


def test_what_is_no_json():
    with pytest.raises(ValueError):  # noqa: PT011
        read_samples("{")
