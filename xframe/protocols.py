"""The contracts that plugins fulfil. They never time themselves, never print, and never import each other.

Arrays cross these contracts as float32 numpy arrays; images are NCHW on the framework side ("canonical") and in the
artifact's own declared layout on the backend side (the worker converts, outside any timed region).
"""

from types import MappingProxyType
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from xframe.types import Artifact, ConvSite, Device, ModelSpec, Plan, Profile, SiteRecord

try:
    from typing import Protocol
except ImportError:  # Python 3.6 and 3.7 in the environment of an old framework
    Protocol = object  # type: ignore[assignment]


#: No switch of a plugin is turned.
DEFAULTS = MappingProxyType({})  # type: Mapping[str, str]


class Executable(Protocol):
    """A compiled network. All copies happen in ``bind`` and ``fetch``; ``step`` runs the network and nothing else."""

    sites: Sequence[SiteRecord]  # what was selected per convolution site; empty when it can't be asked
    seconds: Mapping[str, float]  # one-off times of making it: "compile", "load", ...
    environment: Mapping[str, Any]  # versions, threads and flags that matter for comparing
    notes: Sequence[str]

    def bind(self, feeds: List[Any]) -> None:
        """Put the inputs where ``step`` reads them."""

    def step(self) -> None:
        """One forward pass; may return before it is done."""

    def sync(self) -> None:
        """Wait until ``step`` is done."""

    def fetch(self) -> List[Any]:
        """The outputs of the last step, as numpy arrays."""

    def profile(self, passes: int) -> List[Profile]:
        """So many steps with per-kernel times, each after one that is not profiled; empty when the runner can't tell.
        Never used for timing the whole."""

    def close(self) -> None:
        """Free what it holds."""


class Asks(Protocol):
    """An executable on a GPU whose ``step`` waits for the device."""

    def ask(self) -> None:
        """As ``step``, without waiting: for a clock that is the device's own."""


class Framework(Protocol):
    layout: str  # layout of the exported graph's input: "NCHW" or "NHWC"
    version: str

    def build(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Any],
        device: str,
        batch: int,
        threads: int,
        options: Mapping[str, str] = DEFAULTS,
    ) -> Executable:
        """The network built natively, inputs and outputs canonical. ``options``: the switches of its registry row that
        are not at their default; one that can't be had on ``device`` raises Unsupported."""

    def export(self, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> Any:
        """The network as an ``onnx.ModelProto`` with a fixed batch, made by the framework's own export route.

        Where there is no ``onnx`` beside the framework: a ``xframe.neutral.Graph``, or the bytes of the ONNX file that
        it writes itself, which the host makes a model of today of.
        """


class Trains(Protocol):
    """What a framework of an isolated environment may have besides the methods of :class:`Framework`."""

    def gradients(
        self, spec: ModelSpec, weights: Mapping[str, Any], batch: int, feeds: List[Any], cotangents: List[Any]
    ) -> Dict[str, Any]:
        """Gradients of sum(cotangent * output) by the weights, under the spec's names and in its layouts, and by the
        input under ``input``. What the framework does not learn (a mean, a variance) may be missing. Raises
        Unsupported."""


class Converts(Protocol):
    """A framework whose users have models in files of its own."""

    def convert(self, files: List[str], batch: Optional[int]) -> Any:
        """The model in these files as :meth:`Framework.export` gives one, at another batch than the files say where one
        is given. Raises ModelError for files that can't be used, Unsupported by name for what has no ONNX form."""


class Live(Protocol):
    """A model that lives in this process, given by the user or made of a spec. Its feeds are lists of float32 arrays in
    the model's own order and layout, and so are its outputs. It runs in the mode it was left in.

    ``kind`` says what it is ("torch.nn.Module"); ``notes`` what a reader of a result should know about it. A class that
    is registered in ``xframe.registry.LIVE`` has a classmethod ``from_spec(spec, weights, batch)`` too: the registered
    network, with inputs and weights as the framework's own export has them.
    """

    kind: str
    notes: Sequence[str]

    def shapes(self) -> Optional[List[Tuple[Optional[int], ...]]]:
        """Shapes of the inputs, None for a free dimension; None when only its author knows."""

    def export(self, feeds: List[Any]) -> Any:
        """An ``onnx.ModelProto`` for inputs of the shapes of ``feeds``, in the same mode."""

    def place(self, constants: Mapping[str, Any]) -> None:
        """Find its weights among the constants of an export that is not from ``export``: one made elsewhere."""

    def run(self, feeds: List[Any]) -> List[Any]:
        """The outputs as numpy arrays. Leaves the model as it was: no statistics move."""

    def gradients(self, feeds: List[Any], cotangents: List[Any]) -> Tuple[List[Any], Dict[str, Any]]:
        """Gradients of sum(cotangent * output) by the inputs (None where there is none), and by the weights under the
        names, and in the layouts, of the initializers of the export; one that is not there as it is has a name that is
        not there."""


class Backend(Protocol):
    version: str

    def compile(
        self, artifact: Artifact, plan: Plan, device: str, threads: int, options: Mapping[str, str] = DEFAULTS
    ) -> Executable:
        """``options`` as in :meth:`Framework.build`. Raises Unsupported, Unavailable, NotHonoured or XframeError, each
        with a reason."""


class Lowering(Protocol):
    """One convolution algorithm. ``cpu`` is a ``xframe.lowering.target.Cpu``: the vectors and caches to write for.
    A ``variant`` is a ``xframe.lowering.variants.Variant``: a site and, say, a tile size, with its rounding and work.

    ``parts``: roles of stages and names of blocks that tell its kernels from those of the other algorithms; the proof
    that a plan was honoured looks for them.
    """

    name: str
    parts: FrozenSet[str]

    def refuses(self, site: ConvSite, device: Optional[Device]) -> Optional[str]:
        """Why this algorithm can't do ``site`` on ``device``, in words; None when it can."""

    def variants(self, site: ConvSite) -> Sequence[Any]:
        """The ways it can do a ``site`` that it does not refuse, at least one."""

    def define(self, variant: Any, weight: Any, epilogue: Any, layout: str, cpu: Any) -> List[Any]:
        """Its ``xframe.lowering.stage.Stage``s, from an image in ``layout`` and an OIHW weight to an NHWC image.

        ``epilogue``: a ``xframe.lowering.stage.Epilogue``, what the last stage does with the sums.
        """
