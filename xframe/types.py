"""The vocabulary: plain frozen records that every other module speaks.

Standard library only, and written for Python 3.6 upwards, because the worker process of an old framework imports it.
"""

import re
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Dict, Mapping, Optional, Tuple

#: Layer operators and the attributes each takes. The list is closed: a framework is one mapping table over it.
#: ``kernel``, ``stride`` and ``dilation`` are (height, width); ``pads`` is (top, left, bottom, right).
#: ``lrn``: y = x / (bias + alpha/size * sum(x^2 over `size` channels)) ** beta (the ONNX and Caffe convention).
#: ``relu6``: y = min(max(x, 0), 6).
#: ``avgpool`` does not count padding. Every ``conv`` and ``fc`` has a bias. ``dropout`` is the identity in inference.
OPS: Dict[str, Tuple[str, ...]] = {
    "conv": ("out", "kernel", "stride", "pads", "dilation", "groups"),
    "fc": ("out",),
    "batchnorm": ("epsilon",),
    "relu": (),
    "relu6": (),
    "maxpool": ("kernel", "stride", "pads"),
    "avgpool": ("kernel", "stride", "pads"),
    "lrn": ("size", "alpha", "beta", "bias"),
    "dropout": ("rate",),
    "flatten": (),
    "add": (),
    "concat": (),
    "softmax": (),
}


def pair(value):
    """``3`` -> ``(3, 3)``; a pair passes through."""
    return (value, value) if isinstance(value, int) else tuple(value)


@dataclass(frozen=True)
class Layer:
    """One operator of a network, framework-neutral.

    ``inputs`` names earlier layers (or ``"input"``); empty means the layer before. Attributes read as ``layer["out"]``.
    """

    name: str
    op: str
    inputs: Tuple[str, ...] = ()
    attrs: Tuple[Tuple[str, Any], ...] = ()

    def __post_init__(self):
        if self.op not in OPS:
            raise ValueError("layer %s: unknown op %r; the ops are %s" % (self.name, self.op, ", ".join(OPS)))
        given = tuple(sorted(k for k, _ in self.attrs))
        if given != tuple(sorted(OPS[self.op])):
            raise ValueError("layer %s: %s takes %s, got %s" % (self.name, self.op, OPS[self.op], given))

    def __getitem__(self, attr: str) -> Any:
        return dict(self.attrs)[attr]


def layer(name, op, inputs=(), **attrs):
    """A :class:`Layer` with the usual defaults (stride 1, no padding, one group) and ints widened to pairs."""
    defaults = {"stride": 1, "pads": 0, "dilation": 1, "groups": 1, "epsilon": 1e-5}
    values = {a: attrs.pop(a, defaults.get(a)) for a in OPS.get(op, ())}
    if attrs or any(v is None for v in values.values()):
        raise ValueError("layer %s: %s takes %s" % (name, op, OPS.get(op)))
    for a in ("kernel", "stride", "dilation"):
        if a in values:
            values[a] = pair(values[a])
    if "pads" in values and not (isinstance(values["pads"], (tuple, list)) and len(values["pads"]) == 4):
        values["pads"] = pair(values["pads"]) * 2
    inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    return Layer(name, op, inputs, tuple(sorted(values.items())))


@dataclass(frozen=True)
class ModelSpec:
    """A network with one input and one output (its last layer). ``input`` is (channels, height, width), no batch.

    Weights are named ``<layer>.weight`` (OIHW for conv with I per group, [out, in] for fc), ``<layer>.bias``, and for
    batchnorm ``<layer>.scale .shift .mean .var``; all float32. FC after flatten counts its columns in CHW order.
    """

    name: str
    input: Tuple[int, int, int]
    layers: Tuple[Layer, ...]
    seed: int = 0

    def sources(self) -> Dict[str, Tuple[str, ...]]:
        """Layer name -> names of its input layers, defaults filled in; ``"input"`` is the network's input."""
        out, before = {}, "input"
        for item in self.layers:
            out[item.name] = item.inputs or (before,)
            before = item.name
        return out

    def to_json(self) -> Dict[str, Any]:
        rows = [{"name": x.name, "op": x.op, "inputs": x.inputs, "attrs": dict(x.attrs)} for x in self.layers]
        return {"name": self.name, "input": self.input, "seed": self.seed, "layers": rows}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "ModelSpec":
        def frozen(v):
            return tuple(v) if isinstance(v, list) else v

        layers = tuple(
            Layer(x["name"], x["op"], tuple(x["inputs"]), tuple(sorted((k, frozen(v)) for k, v in x["attrs"].items())))
            for x in data["layers"]
        )
        return ModelSpec(data["name"], tuple(data["input"]), layers, data["seed"])


@dataclass(frozen=True)
class ConvSite:
    """One 2-D convolution as a workload, the join key everywhere: equal sites are the same problem.

    ``pads`` is (top, left, bottom, right); ``in_channels`` counts all groups.
    """

    batch: int
    in_channels: int
    in_hw: Tuple[int, int]
    out_channels: int
    kernel: Tuple[int, int]
    stride: Tuple[int, int] = (1, 1)
    pads: Tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: Tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: str = "float32"

    @property
    def out_hw(self) -> Tuple[int, int]:
        t, left, b, r = self.pads
        sizes = zip(self.in_hw, (t + b, left + r), self.kernel, self.dilation, self.stride)
        h, w = ((n + p - d * (k - 1) - 1) // s + 1 for n, p, k, d, s in sizes)
        return h, w

    @property
    def reduction(self) -> int:
        """Number of products summed into one output element."""
        return self.in_channels // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def flop(self) -> int:
        """FLOP of the direct algorithm, one multiply-add counted as two; bias not counted."""
        h, w = self.out_hw
        return 2 * self.batch * self.out_channels * h * w * self.reduction

    @property
    def key(self) -> str:
        """A short string with all fields, e.g. ``n1c64h27w27o192k5x5s1x1p2.2.2.2d1x1g1float32``."""
        return "n{}c{}h{}w{}o{}k{}x{}s{}x{}p{}d{}x{}g{}{}".format(
            self.batch, self.in_channels, *self.in_hw, self.out_channels, *self.kernel, *self.stride,
            ".".join(map(str, self.pads)), *self.dilation, self.groups, self.dtype,
        )  # fmt: skip

    @staticmethod
    def parse(key: str) -> "ConvSite":
        """The inverse of :attr:`key`. Raises ValueError on anything else."""
        m = re.match(
            r"n(\d+)c(\d+)h(\d+)w(\d+)o(\d+)k(\d+)x(\d+)s(\d+)x(\d+)p([\d.]+)d(\d+)x(\d+)g(\d+)([a-z]\w+)$", key
        )
        if not m:
            raise ValueError(
                "not a convolution site: %r (an example: n1c64h27w27o192k5x5s1x1p2.2.2.2d1x1g1float32)" % key
            )
        g = m.groups()
        n, c, h, w, o, kh, kw, sh, sw = map(int, g[:9])
        pads = tuple(map(int, g[9].split(".")))
        if len(pads) != 4:
            raise ValueError("not a convolution site: %r (four paddings are needed)" % key)
        return ConvSite(n, c, (h, w), o, (kh, kw), (sh, sw), pads, (int(g[10]), int(g[11])), int(g[12]), g[13])


@dataclass(frozen=True)
class TensorInfo:
    """Name, static shape, dtype and layout (``"NCHW"``, ``"NHWC"``, or ``""``: no claim) of a model input or output."""

    name: str
    shape: Tuple[int, ...]
    dtype: str
    layout: str = ""


@dataclass(frozen=True)
class Artifact:
    """An ONNX file that was checked. ``conv_sites`` holds (node name, site) in topological order."""

    path: str
    sha256: str
    model: str
    framework: Optional[str]
    framework_version: Optional[str]
    opset: int
    inputs: Tuple[TensorInfo, ...]
    outputs: Tuple[TensorInfo, ...]
    conv_sites: Tuple[Tuple[str, ConvSite], ...]


def gpu_index(device: str) -> int:
    """The number of ``cuda`` or ``cuda:<number>``: 0 and that number."""
    return int(device.partition(":")[2] or 0)


@dataclass(frozen=True)
class Device:
    """A compute device. ``slug`` names its folder under ``schedules/``; ``kind`` is ``"cpu"`` or ``"cuda"``."""

    slug: str
    kind: str
    name: str
    arch: str
    cores: int
    index: int = 0


#: How far a backend that has such a switch optimises the graph, none to all; labels of a :class:`Plan`.
OPTIMIZATIONS = ("disabled", "basic", "extended", "all")

#: Error budget unless another is asked for: above the prediction of every variant up to 6000 input channels whose
#: products are float32, below that of every one whose products are not.
ERROR_BUDGET = 2e-3
#: The same where a lowering with products of fewer bits is asked for by name.
NARROW_BUDGET = 2e-2


@dataclass(frozen=True)
class Tuned:
    """A recorded schedule of one kernel of a plan, from a schedule log.

    ``task`` is the kernel (``xframe.lowering.tasks.task_of``), ``tile`` the (rows, vectors) of its register tile,
    ``trace`` MetaSchedule's instructions with their decisions, as JSON, for the function whose structural hash is
    ``workload``. ``origin``: the log that it is from, in words.
    """

    task: str
    tile: Tuple[int, int]
    trace: str
    workload: str
    origin: str


@dataclass(frozen=True)
class Plan:
    """Which lowering each convolution site must use; empty leaves the choice to the backend.

    ``label`` is what the user asked for (``auto``, ``winograd``, one of :data:`OPTIMIZATIONS`); ``fallback`` tells, for
    each site that the asked lowering refused, why. ``error_budget``: the predicted error of each site's own rounding,
    relative to the RMS of its output (``xframe.equivalence.bounds.predicted``), must not be above it. ``target``: the
    CPU to compile for, in the compiler's words; None for this machine's own. ``tuned``: schedules to use where a kernel
    has one; it never changes a lowering.
    """

    label: str = "auto"
    lowerings: Tuple[Tuple[ConvSite, str], ...] = ()
    fallback: Tuple[Tuple[ConvSite, str], ...] = ()
    error_budget: float = ERROR_BUDGET
    target: Optional[str] = None
    tuned: Tuple[Tuned, ...] = ()

    def __getitem__(self, site: ConvSite) -> Optional[str]:
        return dict(self.lowerings).get(site)

    def to_json(self) -> Dict[str, Any]:
        return {
            "label": self.label,
            "lowerings": {s.key: low for s, low in self.lowerings},
            "fallback": {s.key: why for s, why in self.fallback},
            "error_budget": self.error_budget,
            "target": self.target,
            "tuned": [asdict(t) for t in self.tuned],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Plan":
        low = tuple((ConvSite.parse(k), v) for k, v in data["lowerings"].items())
        fallback = tuple((ConvSite.parse(k), v) for k, v in data.get("fallback", {}).items())
        budget = float(data.get("error_budget", ERROR_BUDGET))
        tuned = tuple(Tuned(**{**t, "tile": tuple(t["tile"])}) for t in data.get("tuned", ()))
        return Plan(data["label"], low, fallback, budget, data.get("target"), tuned)


@dataclass(frozen=True)
class Rounding:
    """How an implementation of one site rounds, for the error bound (see ``xframe.equivalence.bounds``).

    ``length``: terms accumulated one after another into one output. ``growth``: factor by which the algorithm's
    transforms enlarge the error of a plain sum. ``reach``: (rows, columns) of output pixels around an element whose
    data share its rounding errors (tiled transforms), 0 for a plain sum. ``operands``: largest relative error of
    rounding each operand of a product before they are multiplied, 0 where they stay float32; ``floor``: the absolute
    one, of what is too small for a normal number. Sums of rounded operands are those of tensor cores.
    """

    length: int
    growth: float = 1.0
    reach: Tuple[int, int] = (0, 0)
    operands: float = 0.0
    floor: float = 0.0


@dataclass(frozen=True)
class SiteRecord:
    """What a backend did at one site. ``requested``: by the plan; ``selected``: what it says it compiled; ``detail``:
    tile or variant, e.g. ``F(4,3)``; ``schedule``: where the schedule of its product is from, in words."""

    site: ConvSite
    name: str
    requested: Optional[str]
    selected: Optional[str]
    detail: str = ""
    rounding: Optional[Rounding] = None
    schedule: str = ""


#: What a kernel computes. ``layout``: the same values in another order or form; ``copy``: the same as they are.
KINDS = ("conv", "fc", "pool", "norm", "activation", "elementwise", "softmax", "layout", "copy")
#: Roles of kernels that only change the form of a convolution's image, for the lowering that reads it.
CONVERSIONS = frozenset({"pad", "space_to_depth"})
#: What the host does outside kernels; ``wake-up``: it waits until a thread takes up what it was given.
HOST = ("python", "dispatch", "allocation", "copy", "wake-up")


@dataclass(frozen=True)
class Kernel:
    """One kernel seen in a profiled pass: seconds from the pass's start; ``site`` when it belongs to a convolution.

    ``role``: of its stage in the lowering (``pad``, ``product``, ...), where there is one. ``kind``: one of
    :data:`KINDS`, empty if nobody can tell. ``layer``: the name of the spec's layer, in a backend of the ONNX node.
    ``algorithm``: of a convolution, in its runner's own words (``brgconv:avx512_core``).
    """

    name: str
    start: float
    end: float
    site: Optional[ConvSite] = None
    role: str = ""
    kind: str = ""
    layer: str = ""
    algorithm: str = ""


@dataclass(frozen=True)
class Span:
    """What the host did for a time, of a kind in :data:`HOST`; seconds from the pass's start. Spans may nest."""

    name: str
    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class Profile:
    """One profiled pass of ``wall`` seconds, from before its step until it was done.

    Kernels of one thread do not overlap. ``cost``: seconds that the profiler itself added, by a calibration that does
    not know this pass. ``note``: what is to be known of its times, in words.
    """

    wall: float
    kernels: Tuple[Kernel, ...]
    host: Tuple[Span, ...] = ()
    cost: float = 0.0
    note: str = ""


class Outcome(str, Enum):
    """How a case ended. All but OK carry a reason. OK if and only if outputs were verified before and after timing."""

    OK = "OK"
    UNSUPPORTED = "UNSUPPORTED"  # can't be done by design: the combination, the shape, the dtype
    UNAVAILABLE = "UNAVAILABLE"  # a package or a device is missing here
    NOT_HONOURED = "NOT_HONOURED"  # something else than what was asked for would have run
    MISMATCH = "MISMATCH"  # outputs beyond the error bound, or not finite
    FAILED = "FAILED"  # an error or a crash
    TIMEOUT = "TIMEOUT"  # stopped at its time limit


@dataclass(frozen=True)
class Case:
    """One thing to measure. ``runner``: ``native`` or a backend; ``framework``: None for a user's ONNX file.

    ``options``: the switches of its plugin that are not at their default, by name.
    """

    model: str
    framework: Optional[str]
    runner: str
    plan: Plan
    device: str
    batch: int
    threads: int
    artifact: Optional[Artifact] = None
    cache: str = "hot"
    direction: str = "forward"
    options: Tuple[Tuple[str, str], ...] = ()
