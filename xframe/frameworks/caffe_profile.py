"""Where the time goes in Caffe: its layers run one after another, so each is timed on its own."""

from time import perf_counter
from typing import Any, List

from xframe.frameworks.caffe_net import Network
from xframe.frameworks.shapes import sites
from xframe.types import Kernel, ModelSpec, Profile

#: Layers that do nothing in a pass.
_IDLE = ("Input", "DummyData")
#: Layers that only copy, whatever they are a part of.
_COPIES = ("Concat", "Dropout", "Split")
_KINDS = {
    "conv": "conv",
    "fc": "fc",
    "maxpool": "pool",
    "avgpool": "pool",
    "lrn": "norm",
    "batchnorm": "norm",
    "relu": "activation",
    "relu6": "activation",
    "add": "elementwise",
    "flatten": "layout",
    "softmax": "softmax",
}
#: Calls of an idle layer, to know what a call costs.
_CALLS = 200


def profiles(spec: ModelSpec, batch: int, network: Network, net: Any, passes: int) -> List[Profile]:
    """So many passes layer by layer, each after one as a whole.

    ``cost`` of a pass is that of a call from Python for each layer but one.
    """
    ops, known = {item.name: item.op for item in spec.layers}, sites(spec, batch)
    names, types = list(net._layer_names), [layer.type for layer in net.layers]
    calls = [i for i, type_ in enumerate(types) if type_ not in _IDLE]
    idle = types.index("Input")
    started = perf_counter()
    for _ in range(_CALLS):
        net._forward(idle, idle)
    call = (perf_counter() - started) / _CALLS
    found = []
    for _ in range(passes):
        net._forward(0, len(names) - 1)
        times = []
        begun = perf_counter()
        for i in calls:
            start = perf_counter()
            net._forward(i, i)
            times.append((start - begun, perf_counter() - begun))
        wall = perf_counter() - begun
        kernels = []
        for i, (start, end) in zip(calls, times):
            owner = network.owners.get(names[i], "")
            kind = "copy" if types[i] in _COPIES else _KINDS.get(ops.get(owner, ""), "")
            is_conv = types[i] == "Convolution"
            words = algorithm(known[owner]) if is_conv else ""
            site = known[owner] if is_conv else None
            kernels.append(Kernel(types[i], start, end, site, "", kind, owner, words))
        found.append(Profile(wall, tuple(kernels), cost=call * (len(calls) - 1)))
    return found


def algorithm(site: Any) -> str:
    """How Caffe computes a convolution: the columns of an image, then a product, one image and one group at a time."""
    plain = site.kernel == (1, 1) and site.stride == (1, 1) and site.pads == (0, 0, 0, 0)
    return "GEMM" if plain else "im2col + GEMM"
