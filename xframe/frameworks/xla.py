"""What XLA compiled, from its HLO text, and what of it ran, from a trace: for JAX, and TensorFlow with ``jit_compile``.

XLA's runtimes run "thunks", each named after an instruction of the optimised module: on a CPU a thunk is a kernel, on a
GPU it launches some, whose records in the trace have its name. The metadata of instructions hold the scopes they are
from, and with them the layer; a fusion is what it holds.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from xframe import zoo
from xframe.frameworks import cupti
from xframe.frameworks.traces import Event
from xframe.types import ConvSite, Kernel, ModelSpec

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{\s*$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_LIBRARY = re.compile(r'"kind":"__(\w+?)_fusion"')
_LAYOUT = re.compile(r"\{([\d,]*)")
#: What the name of an instruction may have and that of its kernel has not.
_NO_SYMBOL = re.compile(r"[^A-Za-z0-9_$]")

#: Of an event: what tells its work, where several programs have instructions of its name.
WORK = "xframe.work"

#: Instructions that run others; their own time is the runtime's.
CALLERS = ("call", "while", "conditional", "async-start", "async-done")
#: Those that take no time of their own.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "broadcast", "iota", "after-all",
         "optimization-barrier", "add-dependency")  # fmt: skip
_MOVES = (
    "copy",
    "pad",
    "slice",
    "concatenate",
    "reverse",
    "dynamic-slice",
    "dynamic-update-slice",
    "gather",
    "scatter",
)
#: Those that compute each element of their result by itself, or of some of their operand's.
_ELEMENTWISE = frozenset((
    "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare", "complex", "convert",
    "cosine", "count-leading-zeros", "divide", "erf", "exponential", "exponential-minus-one", "floor", "imag",
    "is-finite", "log", "log-plus-one", "logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or",
    "popcnt", "power", "real", "reduce", "reduce-precision", "reduce-window", "remainder", "round-nearest-afz",
    "round-nearest-even", "rsqrt", "select", "select-and-scatter", "shift-left", "shift-right-arithmetic",
    "shift-right-logical", "sign", "sine", "sqrt", "stochastic-convert", "subtract", "tan", "tanh", "xor",
))  # fmt: skip
#: A layer's op -> the kind of what computes it and is neither a product nor a move.
_KINDS = {
    "batchnorm": "norm", "lrn": "norm", "relu": "activation", "relu6": "activation", "maxpool": "pool",
    "avgpool": "pool", "softmax": "softmax",
}  # fmt: skip
#: What a fusion is when it holds several kinds: the first of these.
_RANK = ("conv", "fc", "softmax", "norm", "pool", "activation", "elementwise", "layout", "copy")

#: Those that do not outweigh what is unknown beside them.
_MINOR = ("elementwise", "layout", "copy")

#: Dimensions in an order that XLA hands to Eigen: images channels-last, weights HWIO.
_EIGEN = re.compile(r"dim_labels=b(\d*)f_\1io->b\1f")


class Work(NamedTuple):
    """What an instruction computes: fields of :class:`xframe.types.Kernel`; no ``kind`` where no table here has its
    opcode, and its layer does not tell either. ``calls``: it runs others; ``several``: the
    layers of its convolutions where there is more than one, and none is its ``layer``."""

    kind: str = ""
    layer: str = ""
    site: ConvSite | None = None
    algorithm: str = ""
    calls: bool = False
    several: tuple[str, ...] = ()


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    rest: str

    def find(self, pattern: re.Pattern[str]) -> str:
        found = pattern.search(self.rest)
        return found.group(1) if found else ""


def program(text: str, spec: ModelSpec, batch: int, layer_of: Callable[[str], str]) -> dict[str, Work]:
    """Instruction -> what it computes, for all of an optimised HLO module.

    Parameters
    ----------
    text
        The module, with metadata.
    layer_of
        The layer that an ``op_name`` of the metadata is from; ``""`` for none.
    """
    computations: dict[str, list[_Instruction]] = {}
    current: list[_Instruction] = []
    for line in text.splitlines():
        if found := _INSTRUCTION.match(line):
            current.append(_Instruction(*found.groups()))
        elif not line.startswith((" ", "HloModule", "}")) and (found := _COMPUTATION.match(line)):
            current = computations[found.group(1)] = []
    layers = {x.name: x.op for x in spec.layers}
    sites = zoo.sites(spec, batch)
    shapes = {i.name: i.shape for body in computations.values() for i in body}

    def users(read: _Instruction) -> Iterable[_Instruction]:
        """What reads an instruction, be it through parts of tuples and views: libraries give tuples."""
        name = re.compile(rf"[(, %]{re.escape(read.name)}[,)]")
        for user in (i for body in computations.values() if read in body for i in body if name.search("(" + i.rest)):
            yield user
            if _is_free(user.opcode):
                yield from users(user)

    def held(instruction: _Instruction) -> Iterable[_Instruction]:
        if instruction.opcode != "fusion":
            yield instruction
            return
        for inner in computations.get(instruction.find(_CALLED), ()):
            yield from held(inner)

    def of_user(product: _Instruction, kind: str) -> str:
        """The layer of what reads an instruction without metadata, as XLA's rewriting leaves some. Of a product, it is
        the one in which it gets its bias."""
        if _is_free(product.opcode):
            return ""
        found = [layer_of(inner.find(_OP_NAME)) for user in users(product) for inner in held(user)]
        return next((x for x in found if x and (kind not in ("conv", "fc") or layers.get(x) == kind)), "")

    def work(instruction: _Instruction) -> Work:
        if instruction.opcode in CALLERS:
            return Work(calls=True)
        best, known = Work(), True
        for inner in held(instruction):
            layer = layer_of(inner.find(_OP_NAME))
            kind = _kind(inner, layers.get(layer, ""), shapes)
            known = known and kind is not None
            if kind and (not best.kind or _RANK.index(kind) <= _RANK.index(best.kind)):
                # of several layers, one that has a name, and the last
                best = Work(kind, layer or (best.layer if kind == best.kind else ""))
        layer = best.layer or layer_of(instruction.find(_OP_NAME)) or of_user(instruction, best.kind)
        told = best.kind or "copy"  # of views alone
        best = best._replace(kind=told if known or told not in _MINOR else "", layer=layer)
        if best.kind != "conv":
            return best
        best = best._replace(site=sites.get(best.layer), algorithm=_algorithm(instruction, held(instruction)))
        products = [i for i in held(instruction) if _kind(i, "conv", shapes) == "conv"]
        several = tuple(dict.fromkeys(layer_of(i.find(_OP_NAME)) for i in products))
        # A library may take a whole stack of layers at once; what each took of it, nobody knows.
        return best._replace(layer="", site=None, several=several) if len(several) > 1 else best

    return {i.name: work(i) for body in computations.values() for i in body}


def _is_free(opcode: str) -> bool:
    return opcode in _FREE or opcode.endswith("-done")


def _kind(instruction: _Instruction, op: str, shapes: Mapping[str, str]) -> str | None:
    """Empty for one that takes no time, None for one that nobody knows. ``op``: of its layer."""
    opcode = instruction.opcode
    target = instruction.find(_TARGET).lower()
    if opcode == "convolution" or "conv" in target:
        return "conv"
    if opcode == "dot" or "matmul" in target or "dot" in target or "gemm" in target:
        return "conv" if op == "conv" else "fc"
    if _is_free(opcode):
        return ""
    if opcode == "transpose":
        return "layout"
    if opcode.removesuffix("-start") in _MOVES:
        source = re.match(r"(?:\S+ )?%?([\w.\-]+)", instruction.rest)
        before = _LAYOUT.search(shapes.get(source.group(1), "")) if source else None
        after = _LAYOUT.search(instruction.shape)
        other = before and after and before.group(1) != after.group(1)
        return "layout" if opcode == "copy" and other else "copy"
    return _KINDS.get(op) or ("elementwise" if opcode in _ELEMENTWISE else None)


def _algorithm(instruction: _Instruction, held: Iterable[_Instruction]) -> str:
    if library := instruction.find(_LIBRARY):
        return {"ynn": "ynnpack", "xnn": "xnnpack"}.get(library, library)
    if instruction.opcode == "custom-call":
        return instruction.find(_TARGET).strip("_").partition("$")[0]
    if instruction.opcode == "dot" or any(i.opcode == "dot" for i in held):
        return "matmul (xla dot)"
    return (
        "eigen convolution" if instruction.opcode == "convolution" and instruction.find(_EIGEN) else "xla naive loops"
    )


def _work(event: Event) -> str:
    return event.stats.get(WORK, event.stats.get("hlo_op", ""))


def kernels(events: Iterable[Event], works: Mapping[str, Work]) -> tuple[list[Kernel], list[Event]]:
    """The kernels among the events of a trace, and the other events.

    A thunk's event ends when it has been started; another event, which names the first as its origin, marks its end.
    ``works``: by the event's :data:`WORK`, where it has one, else by its ``hlo_op``.
    """
    ends: dict[object, Event] = {}
    thunks: list[Event] = []
    others: list[Event] = []
    for event in events:
        if event.name.startswith("end: "):
            ends[event.stats.get("_c"), event.name.removeprefix("end: ")] = event
        elif (key := _work(event)) in works and not works[key].calls:
            thunks.append(event)
        else:
            others.append(event)
    found = []
    for event in thunks:
        name, work = event.stats["hlo_op"], works[_work(event)]
        done = ends.get((event.stats.get("_p"), name))
        title = f"{name} ({', '.join(work.several)})" if work.several else name
        end = done.start if done else event.end
        found.append(Kernel(title, event.start, end, work.site, "", work.kind, work.layer, work.algorithm))
    return found, others


def on_device(events: Iterable[Event], works: Mapping[str, Work]) -> list[Kernel]:
    """The kernels that a GPU ran, each with its own name, from what ran there. ``works``: as of :func:`kernels`.

    What ran in a CUDA graph may have no instruction in the trace, or that of the whole graph. XLA calls the kernels
    that it writes after their instructions, but uses one for all that are alike: a name that was seen once is that of
    one instruction. Of any other, nobody knows the layer or the kind.
    """
    events = list(events)
    named: dict[str, list[Work]] = {}
    for key, work in works.items():
        named.setdefault(_NO_SYMBOL.sub("_", key.rpartition("/")[2]), []).append(work)
    seen = Counter(event.name for event in events)
    found = []
    for event in events:
        written = named.get(event.name, [])
        work = works.get(_work(event), Work(calls=True))
        if work.calls:
            work = written[0] if len(written) == 1 == seen[event.name] else Work()
        # Its own kernels compute what the module says; a library's name may tell more.
        kind = work.kind if written else cupti.kind(event.name, work.kind)
        title = f"{event.name} ({', '.join(work.several)})" if work.several else event.name
        conv = kind == "conv"
        site, words = (work.site, event.name) if conv else (None, "")
        found.append(Kernel(title, event.start, event.end, site, "", kind, work.layer, words))
    return found
