"""What is CNTK's alone as a framework: who pads, what a convolution runs as, its profile, gradients, its saver."""

import json
import os
import re
import subprocess
from pathlib import Path

import float64
import numpy as np
import onnx
import pytest
import torch
from float64 import close, output
from nets import EVERY, SMALL, TRAPS

from xframe import artifact, environments, launch, onnx_writer, registry, zoo
from xframe.errors import NotHonoured, Unavailable, Unsupported, UsageError
from xframe.types import ModelSpec, layer
from xframe.worker import wire
from xframe.worker.host import plugin_row

#: The first padding is what CNTK does by itself; the second is even, but at that stride CNTK would make one row more.
PADS = ModelSpec(
    "pads",
    (3, 16, 16),
    (
        layer("own", "conv", out=4, kernel=5, pads=2),
        layer("strided", "conv", out=4, kernel=3, stride=2, pads=1),
        layer("odd", "conv", out=4, kernel=3, pads=(1, 0, 0, 1)),
        layer("none", "conv", out=4, kernel=3),
    ),
)
LRN = ModelSpec(
    "lrn",
    (6, 7, 5),
    (
        layer("few", "lrn", size=5, alpha=0.9, beta=0.75, bias=2.0),
        layer("c", "conv", out=3, kernel=3),
        layer("many", "lrn", size=7, alpha=0.9, beta=0.75, bias=2.0),
    ),
)
ROOT = Path(__file__).resolve().parents[2]
_ROW = plugin_row(registry.FRAMEWORKS, "cntk")


def start(**more):
    try:
        return launch.worker(registry.FRAMEWORKS, "cntk", 2, **more)
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def worker():
    with start() as started:
        yield started


@pytest.fixture
def job(tmp_path):
    def fields(spec, batch=2):
        path = tmp_path / f"{spec.name}.npz"
        np.savez(path, **zoo.weights(spec))
        return {"plugin": _ROW, "spec": spec.to_json(), "weights": str(path), "batch": batch}

    return fields


def opened(worker, fields, **options):
    return worker.call("open", 60, runner="native", device="cpu", threads=2, options=options, **fields)


def ran(worker, fields, x):
    (y,), _ = worker.run([x], 60)
    return y


def exported(worker, fields, batch=2):
    raw = worker.place("raw")
    reply = worker.call("export", 60, path="", raw=raw, **fields)
    return onnx_writer.model(reply["form"], raw, batch)


def differentiated(spec, x, cotangent):
    """Gradients of the weights and of the input, by torch in float64."""
    leaves = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in zoo.weights(spec).items()}
    values = {"input": torch.tensor(x, dtype=torch.float64, requires_grad=True)}
    for item in spec.layers:
        own = {k.rpartition(".")[2]: v for k, v in leaves.items() if k.rpartition(".")[0] == item.name}
        values[item.name] = float64._layer(item, own, [values[s] for s in spec.sources()[item.name]])
    (values[spec.layers[-1].name] * torch.tensor(cotangent)).sum().backward()
    found = {**leaves, "input": values["input"]}
    return {k: np.zeros(v.shape) if v.grad is None else v.grad.numpy() for k, v in found.items()}


def operators(worker):
    (profile,) = wire.profiles_of(worker.call("profile", 60, passes=1)["profiles"])
    return profile, [(k.layer, k.name) for k in profile.kernels]


def test_it_pads_by_itself_where_that_is_the_same(worker, job):
    opened(worker, job(PADS))
    x = zoo.inputs((2, *PADS.input), 1)
    close(ran(worker, job(PADS), x), output(PADS, zoo.weights(PADS), x))
    _, seen = operators(worker)
    assert {layer for layer, name in seen if name == "Pad"} == {"strided", "odd"}
    assert [layer for layer, name in seen if name == "Convolution"] == [item.name for item in PADS.layers]


def test_the_profile_is_of_the_steps(worker, job):
    opened(worker, job(EVERY))
    x = zoo.inputs((2, *EVERY.input), 1)
    ran(worker, job(EVERY), x)
    profiles = wire.profiles_of(worker.call("profile", 60, passes=3)["profiles"])
    assert len(profiles) == 3
    assert len({tuple((k.layer, k.name) for k in p.kernels) for p in profiles}) == 1
    sites = zoo.sites(EVERY, 2)
    for profile in profiles:
        ends = [0.0, *(k.end for k in profile.kernels)]
        assert all(k.start >= end for k, end in zip(profile.kernels, ends, strict=False))
        assert ends[-1] <= profile.wall
        assert all(k.kind and k.layer for k in profile.kernels)
        assert {k.layer: k.site for k in profile.kernels if k.site} == sites
        for name, kind in (("n1", "norm"), ("s", "softmax")):  # composed of many operators
            assert {k.kind for k in profile.kernels if k.layer == name} == {kind}
        assert abs(profile.cost) < profile.wall


def test_a_convolution_is_no_matrix_product(monkeypatch, job):
    """MKL tells of every call of its BLAS, on what was stdout: that of fc is there, and none of a convolution."""
    monkeypatch.setenv("MKL_VERBOSE", "1")
    calls = {}
    with start() as worker:
        for spec in (TRAPS["depthwise"], PADS, TRAPS["flatten twice, fc twice"]):
            before = worker.log(10**6).count("SGEMM")
            opened(worker, job(spec))
            ran(worker, job(spec), zoo.inputs((2, *spec.input), 1))
            calls[spec.name] = worker.log(10**6).count("SGEMM") - before
    assert calls["depthwise"] == calls["pads"] == 0
    assert calls["twice"] >= 2


def test_what_it_says_of_itself(worker, job):
    reply = opened(worker, job(EVERY))
    environment = reply["environment"]
    assert environment["cntk"] == "2.7"
    assert environment["threads"] == 2
    assert environment["mkl"].startswith("2018")
    assert environment["convolution"].startswith("direct, DNN primitives of MKL " + environment["mkl"])
    assert any("zeros between the taps" in note for note in reply["notes"])  # EVERY has a dilated convolution
    assert opened(worker, job(SMALL))["notes"] == []


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"mkl_cpu": "avx2"}, "mkl_code", "AVX2"),
        ({"mkl_cpu": "avx512"}, "mkl_code", "AVX-512"),
        ({"cpueval_optimization": "off"}, "cpueval_optimization", "off"),
    ],
    ids=lambda v: next(iter(v.values())) if isinstance(v, dict) else "",
)
def test_switches(job, options, key, value):
    with start(options=options.items()) as worker:
        try:
            reply = opened(worker, job(EVERY), **options)
        except Unsupported as e:
            pytest.skip(str(e))
        x = zoo.inputs((2, *EVERY.input), 1)
        close(ran(worker, job(EVERY), x), output(EVERY, zoo.weights(EVERY), x))
    assert reply["environment"][key] == value


def test_a_code_that_mkl_did_not_take(job):
    """The switch of a worker that was started without it."""
    with start() as worker:
        if opened(worker, job(SMALL))["environment"]["mkl_code"] == "AVX2":
            pytest.skip("MKL takes its AVX2 code here by itself")
        with pytest.raises((NotHonoured, Unsupported), match="mkl_cpu=avx2"):
            opened(worker, job(SMALL), mkl_cpu="avx2")


@pytest.mark.parametrize(
    "spec", [EVERY, LRN, TRAPS["batchnorm"], TRAPS["flatten read by an unused fc, and out"]], ids=lambda s: s.name
)
def test_gradients(worker, job, spec):
    """Of the input too, of a dilated kernel, through an LRN of CNTK's own and a composed one, of a weight unread."""
    x = zoo.inputs((2, *spec.input), 1)
    cotangent = zoo.inputs(output(spec, zoo.weights(spec), x).shape, 2)
    found = worker.gradients([x], [cotangent], 60, **job(spec))
    want = differentiated(spec, x, cotangent)
    assert set(found) == {k for k in want if not k.endswith((".mean", ".var"))}
    for name, value in found.items():
        assert value.shape == want[name].shape
        assert np.abs(value - want[name]).max() <= 1e-4 * np.abs(want[name]).max(), name


def test_a_cotangent_that_does_not_fit(worker, job):
    x = zoo.inputs((2, *SMALL.input), 1)
    with pytest.raises(UsageError, match=r"one cotangent of shape \(2, 5\), got \(2, 4\)"):
        worker.gradients([x], [np.zeros((2, 4), np.float32)], 60, **job(SMALL))


def test_exports_are_the_same_and_have_the_sites_of_the_spec(worker, job, tmp_path):
    """CNTK numbers its operators through the process, and pads in nodes of their own."""
    one, two = (exported(worker, job(EVERY)).SerializeToString() for _ in range(2))
    assert one == two
    path = tmp_path / "every.onnx"
    artifact.save(onnx.load_from_string(one), path, "every", "cntk", "2.7", "NCHW")
    assert sorted(artifact.load(path).conv_sites) == sorted(zoo.sites(EVERY, 2).items())


def test_a_file_that_was_cut_short(job, tmp_path):
    """CNTK's saver does not look whether it could write: a full disk leaves half a file."""
    code = """
import json, resource, signal, sys
import numpy
from xframe.frameworks.cntk import Cntk
from xframe.types import ModelSpec
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    Cntk().export(ModelSpec.from_json(json.loads(sys.argv[1])), numpy.load(sys.argv[2]), 1)
except Exception as e:
    print(type(e).__name__, e, file=sys.stderr)
"""
    try:
        built = environments.find("cntk")
    except Unavailable as e:
        pytest.skip(str(e))
    fields = job(EVERY)
    done = subprocess.run(
        [built.python, "-c", code, json.dumps(fields["spec"]), fields["weights"]],
        env={**os.environ, **built.variables, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert re.search(rf"XframeError CNTK 2.7 wrote \d+ bytes of every .* make room in {tmp_path}", done.stderr), (
        done.stderr
    )


def test_an_lrn_wider_than_its_channels_is_exported_as_what_runs(worker, job):
    model = exported(worker, job(LRN))
    assert [n.op_type for n in model.graph.node].count("LRN") == 1
    assert "Pow" not in {n.op_type for n in model.graph.node}  # CNTK's own can't be differentiated
