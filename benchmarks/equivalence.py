"""The checker of equivalence: how fast, how small, and how often it is wrong.

    python benchmarks/equivalence.py speed
    python benchmarks/equivalence.py robustness --robustness 1000 --keep wrong/
    python benchmarks/equivalence.py robustness --robustness 0 --executed 1000 --journal told.jsonl

Each figure of the first part is taken in a process of its own and stands beside its bar; exports are made, or found in
the cache, before. The second part asks the checker about pairs of small random networks of which the answer is known,
and about some of them as ONNX Runtime and TVM execute them. With a journal it can be interrupted, and goes on later;
``--share 1/2`` and ``--share 2/2``, on one journal, are two processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import robustness
from benchmarks.rows import names, run
from xframe import environment, exports, zoo
from xframe.check.api import check_equivalence
from xframe.errors import XframeError
from xframe.normal.canonical import canonical
from xframe.normal.loading import load

GB = 1e9
FRAMEWORKS = ("pytorch", "tensorflow", "jax")
#: Layers of the chains whose memory is compared, and how much more the longest may take than the shortest.
CHAINS, CHAIN_GROWTH = (10, 20, 40), 1.1
#: Width and number of the products of the large model: 2.1 GB of weights in an external file.
WIDTH, PRODUCTS = 8192, 8
PARTS = ("speed", "robustness")


# -- models ------------------------------------------------------------------------------------------------------------


def exported(model: str, frameworks: Sequence[str]) -> list[Path]:
    """The exports of a registered model, from the cache where they are there."""
    spec = zoo.spec(model)
    weights, threads = zoo.weights_file(spec), len(environment.allowed_cpus())
    made = [exports.export(framework, spec, weights, 1, threads)[0] for framework in frameworks]
    return [Path(artifact.path) for artifact in made]


def chain(folder: Path, layers: int, width: int = 32, size: int = 112) -> list[Path]:
    """Two chains of convolutions as in VGG that differ in one weight of the first layer, hence in all that follows."""
    r = np.random.default_rng(0)
    scale = (2 / (9 * width)) ** 0.5
    weights = {f"w{i}": (scale * r.standard_normal((width, width, 3, 3))).astype(np.float32) for i in range(layers)}
    nodes, x = [], "x"
    for i in range(layers):
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        x = f"r{i}"
    paths = []
    for name in ("first", "second"):
        tensors = [numpy_helper.from_array(w, k) for k, w in weights.items()]
        paths.append(folder / f"{name}.onnx")
        onnx.save(_model(nodes, "x", (1, width, size, size), x, (1, width, size, size), tensors), paths[-1])
        weights["w0"] = weights["w0"].copy()
        weights["w0"][0, 0, 0, 0] += 1e-6
    return paths


def large(folder: Path, width: int = WIDTH, products: int = PRODUCTS) -> Path:
    """A chain of products with all weights in an external file, every second one transposed."""
    block = np.random.default_rng(0).standard_normal((width, width), dtype=np.float32) / np.float32(width**0.5)
    nodes, tensors, x = [], [], "x"
    with open(folder / "large.data", "wb") as file:
        for i in range(products):
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=block.shape)
            tensor.data_location = TensorProto.EXTERNAL
            where = {"location": "large.data", "offset": file.tell(), "length": block.nbytes}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            np.roll(block, i).tofile(file)
            if i % 2:
                nodes.append(helper.make_node("Gemm", [x, f"w{i}"], [f"y{i}"], f"fc{i}", transB=1))
            else:
                nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"y{i}"], f"fc{i}"))
            x = f"y{i}"
    path = folder / "large.onnx"
    path.write_bytes(_model(nodes, "x", (1, width), x, (1, width), tensors).SerializeToString())
    return path


def _model(nodes, name, shape, output, out_shape, tensors) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    ends = [value(name, TensorProto.FLOAT, shape)], [value(output, TensorProto.FLOAT, out_shape)]
    graph = helper.make_graph(nodes, "model", *ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# -- what is measured, in a process of its own -------------------------------------------------------------------------


def checked(paths: Sequence[Path]) -> None:
    """Signature, normal form and numerics of all against the first, with two inputs."""
    check_equivalence({f"{i} {p.stem}": p for i, p in enumerate(paths)}, runners=(), count=2)


def normalised(paths: Sequence[Path]) -> None:
    """The normal form of one model, each weight hashed."""
    for weight in canonical(load(paths[0])).weights.values():
        _ = weight.digest


WORK: dict[str, Callable[[Sequence[Path]], None]] = {"checked": checked, "normalised": normalised}


def measured(work: str, paths: Sequence[Path]) -> dict[str, float]:
    """Seconds and peak of the resident set of some work in a fresh process, imports not counted as time.

    Raises
    ------
    XframeError
        The process failed.
    """
    command = [sys.executable, __file__, "--measure", work, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise XframeError(f"{work} of {paths[0].name}: {(done.stderr.strip() or 'no word').splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(work: str, paths: Sequence[Path]) -> int:
    """In that process."""
    start = time.perf_counter()
    WORK[work](paths)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak": peak()}))
    return 0


def peak() -> int:
    """Bytes of the largest resident set so far. ``getrusage`` would count what the parent had before this process was
    its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def figure(what: str, value: float, unit: str, bar: float) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "bar": bar, "reached": value < bar}


def speed() -> Iterator[dict[str, Any]]:
    """The figures, each with its bar."""
    found = measured("checked", exported("alexnet", FRAMEWORKS))
    yield figure("AlexNet, three exports, two inputs", found["seconds"], "s", 20)
    yield figure("AlexNet, three exports, peak", found["peak"] / GB, "GB", 2.5)
    found = measured("checked", exported("resnet50", FRAMEWORKS[:2]))
    yield figure("ResNet-50, two exports, two inputs", found["seconds"], "s", 30)
    peaks = {}
    for layers in CHAINS:
        with tempfile.TemporaryDirectory() as folder:
            peaks[layers] = measured("checked", chain(Path(folder), layers))["peak"]
        bar = CHAIN_GROWTH * peaks[CHAINS[0]] / GB
        yield figure(f"chain of {layers} convolutions, peak", peaks[layers] / GB, "GB", bar)
    with tempfile.TemporaryDirectory() as folder:
        path = large(Path(folder))
        size = (Path(folder) / "large.data").stat().st_size
        found = measured("normalised", [path])
    yield figure(f"external data of {size / GB:.1f} GB, normal form", found["seconds"], "s", 30)
    yield figure(f"external data of {size / GB:.1f} GB, peak", found["peak"] / GB, "GB", 1.5 * size / GB)


def show(row: dict[str, Any], as_json: bool, text: Callable[[dict[str, Any]], str]) -> None:
    print(json.dumps(row) if as_json else text(row), flush=True)


def line(row: dict[str, Any]) -> str:
    reached = "yes" if row["reached"] else "no"
    return f"{row['what']:45} {row['value']:8.2f} {row['unit']:2} (under {row['bar']:.2f}: {reached})"


def share(text: str) -> tuple[int, int]:
    k, n = map(int, text.split("/"))
    if not 1 <= k <= n:
        raise ValueError(text)
    return k, n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"{' or '.join(PARTS)}; both without")
    parser.add_argument("--robustness", type=int, default=1000, metavar="N", help="pairs of each sort")
    parser.add_argument("--executed", type=int, default=32, metavar="N", help="equal pairs that are executed as well")
    parser.add_argument("--runners", type=names, default=("ort", "tvm:gemm"), help="by what")
    parser.add_argument("--seed", type=int, default=robustness.SEED)
    parser.add_argument("--keep", default="", metavar="FOLDER", help="where the pairs go that were not told rightly")
    parser.add_argument(
        "--journal", default="", metavar="FILE", help="a line for each pair; those in it are not redone"
    )
    parser.add_argument(
        "--share", type=share, default=(1, 1), metavar="K/N", help="the K-th of N processes, one journal"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    parser.add_argument("--measure", choices=WORK, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure, [Path(p) for p in given.part])
    unknown = [p for p in given.part if p not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]!r} is neither {' nor '.join(PARTS)}")
    parts, ok = given.part or PARTS, True
    if "speed" in parts:
        for row in speed():
            ok &= row["reached"]
            show(row, given.json, line)
    if "robustness" in parts:
        for count, runners in ((given.robustness, ()), (given.executed, given.runners)):
            if count < 1:
                continue
            asked = robustness.Questions(given.seed, tuple(runners), given.keep, given.journal, given.share)
            for row in robustness.rows(robustness.told(asked.answers(count, not runners))):
                ok &= row["kind"] != "all" or robustness.reached(row)
                show(row | {"runners": list(runners)}, given.json, robustness.line)
    return int(not ok)


if __name__ == "__main__":
    sys.exit(run(main))
