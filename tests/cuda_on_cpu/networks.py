"""Whole networks at small sizes under the shim, every lowering, against float64 with its own bound, in two orders.

    python -m tests.cuda_on_cpu.networks                       # alexnet, alexnet_bvlc and resnet50, all lowerings
    python -m tests.cuda_on_cpu.networks resnet50 gemm,fft     # of one network, some

Each network has all of its layers, with a sixteenth of the channels and a smaller image: the kernels are those of the
network with other extents, down to the last ones, which see an image of a pixel or a few. What a lowering refuses,
``direct`` takes.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.cuda_on_cpu import shim
from tests.lowering import on_cuda
from xframe import geometry, planning, registry, zoo
from xframe.equivalence.reference import Reference
from xframe.equivalence.verdict import Verdict, judge
from xframe.lowering.cuda.target import Gpu
from xframe.types import Device, Layer, ModelSpec

#: Network -> (side of its image, side of the image that its average pooling sees).
SMALL = {"alexnet": (67, 0), "alexnet_bvlc": (67, 0), "resnet50": (65, 3)}
DIVISOR, BATCH, CLASSES = 16, 1, 10
ARCH = "sm_80"


def small(name: str) -> ModelSpec:
    """The network with a sixteenth of its channels. LRN, whose effect is tiny at the published factor, has more."""
    spec, (side, last) = zoo.spec(name), SMALL[name]

    def changed(item: Layer) -> Layer:
        attrs = dict(item.attrs)
        if "out" in attrs:
            attrs["out"] = CLASSES if item is spec.layers[-1] else max(1, attrs["out"] // DIVISOR)
        if item.op == "avgpool":
            attrs["kernel"] = attrs["stride"] = (last, last)
        if item.op == "lrn":
            attrs["alpha"] = 1.0
        return replace(item, attrs=tuple(sorted(attrs.items())))

    return replace(spec, input=(3, side, side), layers=tuple(map(changed, spec.layers)))


def exported(spec: ModelSpec, batch: int) -> onnx.ModelProto:
    """As ONNX, a node a layer."""
    weights, sources, names = zoo.weights(spec), spec.sources(), {"input": "input"}
    nodes = []
    for item in spec.layers:
        ins = [names[s] for s in sources[item.name]]
        names[item.name] = ins[0] if item.op == "dropout" else item.name
        if item.op == "dropout":
            continue
        own = [k for k in geometry.tensors(spec) if k.rpartition(".")[0] == item.name]
        window = ("kernel", "stride", "pads") if item.op in ("conv", "maxpool", "avgpool") else ()
        given = dict(zip(("kernel_shape", "strides", "pads"), (item[a] for a in window), strict=False))
        attributes = {
            "conv": lambda item=item: {"dilations": item["dilation"], "group": item["groups"]},
            "fc": lambda: {"transB": 1},
            "lrn": lambda item=item: {a: item[a] for a in ("size", "alpha", "beta", "bias")},
            "batchnorm": lambda item=item: {"epsilon": item["epsilon"]},
        }.get(item.op, dict)()
        op = {
            **{"conv": "Conv", "fc": "Gemm", "relu": "Relu", "lrn": "LRN", "maxpool": "MaxPool", "add": "Add"},
            **{"avgpool": "AveragePool", "batchnorm": "BatchNormalization", "flatten": "Flatten"},
        }[item.op]
        nodes.append(helper.make_node(op, [*ins, *own], [item.name], item.name, **given, **attributes))
    graph = helper.make_graph(
        nodes,
        spec.name,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, (batch, *spec.input))],
        [helper.make_tensor_value_info(names[spec.layers[-1].name], TensorProto.FLOAT, (batch, CLASSES))],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def judged(device: shim.Shim, spec: ModelSpec, lowering: str, orders: Sequence[str]) -> tuple[Verdict, int]:
    """The worst verdict of all orders, and the convolutions that the lowering took itself.

    Raises
    ------
    KernelError
        A kernel does what no kernel may.
    """
    gpu, sites = Gpu.named(ARCH), geometry.sites(spec, BATCH)
    target = Device(ARCH, "cuda", ARCH, ARCH, gpu.multiprocessors)
    plan = planning.plan(lowering, sites.values(), target, fallback="direct")
    feed = [zoo.inputs((BATCH, *spec.input), 1)]
    reference = Reference.of_spec(spec, zoo.weights(spec))
    request = exported(spec, BATCH).SerializeToString(), plan, feed, gpu
    verdicts, exact = [], None
    for order in orders:
        outputs, records = device.call(on_cuda.outputs, *request, order=order, arch=ARCH)
        assert [(r.site, r.selected) for r in records] == [(s, plan[s]) for s in sites.values()]
        exact = exact or reference.evaluate(feed, {r.site: r.rounding for r in records})
        verdicts.append(judge(outputs, exact))
    worst = max(verdicts, key=lambda v: (not v.ok, v.ratio or 0.0))
    return worst, sum(plan[s] == lowering for s in sites.values())


def main(names: str = "", lowerings: str = "") -> int:
    """Prints a row for each network and lowering: convolutions, and the error as a share of its bound."""
    wrong = 0
    for name in names.split(",") if names else SMALL:
        spec = small(name)
        for lowering in lowerings.split(",") if lowerings else registry.defaults(registry.LOWERINGS):
            started = time.perf_counter()
            verdict, own = judged(shim.default(), spec, lowering, ("forward", "reverse"))
            wrong += not verdict.ok
            count = len(geometry.sites(spec, BATCH))
            error = f"{verdict.ratio:.3f}" if verdict.ok and verdict.ratio is not None else verdict.reason
            print(f"| {name} | {lowering} | {own} of {count} | {error} |", flush=True)
            print(f"{time.perf_counter() - started:.1f} s", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
