"""What oneDNN says it ran: its verbose lines, from whichever framework holds it, as records.

PyTorch and TensorFlow each have a oneDNN of their own inside. Told to be verbose, it prints one line for each primitive
that it executes, with the implementation it chose, the shapes and the milliseconds::

    onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512_core,forward_inference,src:f32::blocked:acdb::f0
    wei:f32::blocked:Acdb16a::f0 dst:f32::blocked:acdb::f0,attr-scratchpad:user,alg:convolution_direct,
    mb1_ic64oc192_ih27oh27kh5sh1dh0ph2_iw27ow27kw5sw1dw0pw2,1.93

(one line there). :func:`captured` takes what a block prints, :func:`parse` makes records of it.
"""

import contextlib
import ctypes
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from xframe.types import ConvSite

#: ``src:f32:a:blocked:acdb::f0`` (version 3) and ``src_f32::blocked:acdb:f0`` (version 2): name, type, layout.
_MEMORY = re.compile(r"([a-z]+\d*)[:_]([a-z]+\d+):[a-z]*:[a-z]*:([^:\s]*)")
_NUMBERS = re.compile(r"([a-z]+)(\d+)")


class Primitive(NamedTuple):
    """One primitive that was executed.

    Parameters
    ----------
    kind
        oneDNN's word for what it computes: ``convolution``, ``reorder``, ``inner_product``, ``matmul``, ``pooling``...
    implementation
        oneDNN's word for how: ``brgconv:avx512_core``, ``jit_uni_dw:avx512_core``, ``gemm:jit``, ...
    problem
        The shapes as printed: ``mb1_ic64oc192_ih27...`` of a convolution, ``64x64x55x55`` of a reorder.
    memory
        (name, dtype, tag of the layout) of each tensor: ``("src", "f32", "acdb")``.
    details
        Attributes and algorithm as printed: ``attr-scratchpad:user alg:convolution_direct``.
    seconds
        How long it ran, by oneDNN's own clock.
    started
        Seconds by oneDNN's own clock when it began (``ONEDNN_VERBOSE_TIMESTAMP=1``); None where that is not printed.
    """

    kind: str
    implementation: str
    problem: str
    memory: tuple[tuple[str, str, str], ...]
    details: str
    seconds: float
    started: float | None = None

    def computes(self, site: ConvSite) -> bool:
        """Whether this is a convolution of that very problem. Padding at the bottom and right shows in the output size;
        a framework that pads beforehand has run another problem than the site."""
        if self.kind != "convolution":
            return False
        got = {"g": 1, **{name: int(value) for name, value in _NUMBERS.findall(self.problem)}}
        want = {"g": site.groups, "mb": site.batch, "ic": site.in_channels, "oc": site.out_channels}
        for axis, i in (("h", 0), ("w", 1)):
            want |= {
                f"i{axis}": site.in_hw[i], f"o{axis}": site.out_hw[i], f"k{axis}": site.kernel[i],
                f"s{axis}": site.stride[i], f"d{axis}": site.dilation[i] - 1, f"p{axis}": site.pads[i],
            }  # fmt: skip
        return all(got.get(name) == value for name, value in want.items())


def parse(text: str) -> list[Primitive]:
    """The primitives that ``text`` says were executed, in order.

    Lines of other kinds (version, creation of primitives, what else was printed meanwhile) are passed over, and so is
    a line that was cut.
    """
    return [found for line in text.splitlines() if (found := _primitive(line)) is not None]


def _primitive(line: str) -> Primitive | None:
    fields = [x.strip() for x in line.strip().split(",")]
    if not fields[0].endswith(("onednn_verbose", "dnnl_verbose")) or "exec" not in fields:
        return None
    at = fields.index("exec")
    # engine, kind, implementation, propagation, tensors, attributes, algorithm, problem, milliseconds
    rest = fields[at + 1 :]
    if len(rest) < 7:
        return None
    try:
        seconds = float(rest[-1]) * 1e-3
    except ValueError:
        return None
    memory = tuple(match.groups() for match in _MEMORY.finditer(rest[4]))
    details = " ".join(x for x in rest[5:-2] if x)
    started = next((float(x) * 1e-3 for x in fields[1:at] if re.fullmatch(r"\d+\.\d+", x)), None)
    return Primitive(rest[1], rest[2], rest[-2], memory, details, seconds, started)  # type: ignore[arg-type]


class Captured:
    """What was printed to file descriptor 1; ``text`` is complete once the block of :func:`captured` has ended."""

    text = ""


@contextlib.contextmanager
def captured() -> Iterator[Captured]:
    """Within the block, what native code prints to file descriptor 1 is kept instead of shown."""
    libc, result = ctypes.CDLL(None), Captured()
    libc.fflush(None)
    before = os.dup(1)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 1)
            try:
                yield result
            finally:
                libc.fflush(None)
                os.dup2(before, 1)
                file.seek(0)
                result.text = file.read().decode(errors="replace")
    finally:
        os.close(before)


_MARKED = "xframe_mark,"


def mark(name: str) -> None:
    """Print a line, to the same place as oneDNN, after which what it prints is of ``name``."""
    ctypes.CDLL(None).fflush(None)
    os.write(1, f"{_MARKED}{name}\n".encode())


def parse_marked(text: str) -> dict[str, list[Primitive]]:
    """The primitives of ``text`` by the last :func:`mark` before them; those before any mark are left out."""
    found: dict[str, list[Primitive]] = {}
    for part in text.split(_MARKED)[1:]:
        name, _, rest = part.partition("\n")
        found.setdefault(name, []).extend(parse(rest))
    return found


def typical(steps: Sequence[Sequence[Primitive]]) -> list[Primitive]:
    """The primitives of the first step, each with its median time over all; a step that ran others does not count."""
    alike = [ran for ran in steps if [p.problem for p in ran] == [p.problem for p in steps[0]]]
    return [same[0]._replace(seconds=median(p.seconds for p in same)) for same in zip(*alike, strict=True)]
