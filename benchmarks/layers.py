"""Single convolutions: each lowering against oneDNN, images as each of them likes them best.

Ours reads and writes NHWC, as between the layers of a network; oneDNN is PyTorch's convolution, the faster of NCHW and
channels-last. Rows are those of ``benchmarks/lowerings.py``, one small network a convolution.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.rows import Row, budget, line, measured, table, with_peers
from xframe import registry, zoo
from xframe.comparison import Request
from xframe.registry import LOWERINGS, defaults
from xframe.types import ModelSpec, layer

EXACT = defaults(LOWERINGS)
#: The layers of convnet-benchmarks, stride 1, no padding: (image, input channels, output channels, kernel).
LAYERS = {
    "L1": (128, 3, 96, 11),
    "L2": (64, 64, 128, 9),
    "L3": (32, 128, 128, 9),
    "L4": (16, 128, 128, 7),
    "L5": (13, 384, 384, 3),
}
LAYERS_BATCH, NETWORK, BATCHES = 16, "alexnet", (1, 16)
#: Least ratio to oneDNN at every convolution of the network; transforms have theirs at stride 1 and batch 16.
BARS = {"direct": 0.97, "gemm": 0.9, "winograd": 2.0, "fft": 2.0}
OURS, PEERS = "jax", ("pytorch", "channels_last")  # whose export is NHWC; who are native rows


def layer_specs() -> list[ModelSpec]:
    return [
        ModelSpec(name, (channels, hw, hw), (layer("conv", "conv", out=out, kernel=kernel),))
        for name, (hw, channels, out, kernel) in LAYERS.items()
    ]


def site_specs() -> list[ModelSpec]:
    """Each convolution of the network as a network of its own."""
    spec = zoo.spec(NETWORK)
    shapes, sources = zoo.shapes(spec, 1), spec.sources()
    return [
        ModelSpec(x.name, shapes[sources[x.name][0]][1:], (replace(x, inputs=()),))  # type: ignore[arg-type]
        for x in spec.layers
        if x.op == "conv"
    ]


def rows(threads: Sequence[int], rounds: int) -> Iterator[list[Row]]:
    """The rows of one convolution after the other: the layers first, then the network's at each batch."""
    registry.FRAMEWORKS["channels_last"] = registry.Row("benchmarks.onednn:ChannelsLast", ("torch",), "torch")
    with tempfile.TemporaryDirectory(prefix="xframe-layers-") as folder:
        os.environ["XFRAME_MODELS"] = folder  # ends with this process; our own models are found all the same
        work = [(spec, LAYERS_BATCH) for spec in layer_specs()]
        work += [(spec, batch) for batch in BATCHES for spec in site_specs()]
        for spec, batch in work:
            text = f"from xframe.types import ModelSpec\n\nSPEC = ModelSpec.from_json({spec.to_json()!r})\n"
            Path(folder, f"{spec.name}.py").write_text(text, encoding="utf-8")
            request = Request(
                spec.name,
                frameworks=(*PEERS, OURS),
                runners=("native", "tvm"),
                lowerings=EXACT,
                batches=(batch,),
                threads=tuple(threads),
                budget=budget(rounds),
                pairs=(*((p, "native") for p in PEERS), (OURS, "tvm")),
            )
            yield with_peers(measured(request), lambda r: r["backend"] == "native")


def tables(groups: Sequence[list[Row]], threads: int) -> str:
    """Markdown: milliseconds of the layers, then ratios to oneDNN at the convolutions of the network."""
    layers, sites, failed = [], [], []
    for mine in filter(None, ([r for r in group if r["threads"] == threads] for group in groups)):
        failed += [f"- {line(r)}" for r in mine if r["outcome"] != "OK"]
        ours = {r["lowering"]: r for r in mine if r["backend"] == "tvm"}
        peer = min((r["median_s"] for r in mine if r["backend"] == "native" and r["median_s"]), default=None)
        if mine[0]["model"] in LAYERS:
            best = max((r for r in ours.values() if r["ratio"]), key=lambda r: r["ratio"], default=None)
            times = [_ms(ours[n]["median_s"]) if n in ours else "-" for n in EXACT]
            layers.append(
                [mine[0]["model"], *times, _ms(peer), f"{best['lowering']}, {best['ratio']:.2f}x" if best else "-"]
            )
        else:
            ratios = [_against_bar(ours[n]) if n in ours else "-" for n in EXACT]
            sites.append([mine[0]["model"], str(mine[0]["batch"]), _ms(peer), *ratios])
    return "\n".join(
        [
            f"Layers at batch {LAYERS_BATCH}, {threads} threads, ms; best: over oneDNN\n",
            table(["layer", *EXACT, "oneDNN", "best"], layers),
            f"\nConvolutions of {NETWORK}, {threads} threads: times as fast as oneDNN (misses: bar)\n",
            table(["convolution", "batch", "oneDNN ms", *EXACT], sites),
            "",
            *failed,
        ]
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def _against_bar(r: Row) -> str:
    if r["ratio"] is None:
        return r["outcome"] if r["outcome"] != "OK" else "-"
    transform = r["lowering"] in ("winograd", "fft")
    counts = not transform or (r["batch"] == LAYERS_BATCH and r["model"] != "conv1")
    missed = counts and r["ratio"] < BARS[r["lowering"]]
    return f"{r['ratio']:.2f}x" + (f" ({BARS[r['lowering']]:g}x)" if missed else "")
