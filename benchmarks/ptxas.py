"""CUDA text through nvcc, kernel by kernel: what ptxas says of each, kept so that none is compiled twice."""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xframe.errors import Unavailable, XframeError
from xframe.lowering.cuda import compiler

#: Bytes of shared memory: of a multiprocessor, and of it for the system with each block.
SHARED, RESERVED = {"sm_80": 164 << 10, "sm_90": 228 << 10}, 1 << 10
#: Of a multiprocessor: warps and blocks at most, and registers: a warp gets them in lots, a thread in 8s.
WARPS, BLOCKS, REGISTERS, LOT, STEP = 64, 32, 64 << 10, 256, 8
WARP = 32
#: Characters of text that are compiled at a time, and then in the journal.
PART = 1 << 19

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'(.*?)(?=Compiling entry function|\Z)", re.S)
_KERNEL = re.compile(
    r'^extern "C" __global__ void __launch_bounds__\((\d+)(?:, \d+)?\) (\w+)\([^)]*\) \{.*?^\}$', re.M | re.S
)


@dataclass(frozen=True)
class Kernel:
    """A kernel as compiled. ``threads`` and ``shared`` (bytes, static) are a block's, ``registers`` a thread's, and so
    are the bytes of its ``stack`` and of the stores and loads of spilled registers. ``code`` is the same for the same
    text, whatever the kernel's name."""

    name: str
    arch: str
    threads: int
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int
    code: str = ""

    @property
    def spills(self) -> bool:
        return self.spill_stores + self.spill_loads > 0

    @property
    def warps(self) -> int:
        """Warps of a multiprocessor at a time, as far as registers, shared memory and threads leave room."""
        of_block = -(-self.threads // WARP)
        of_warp = -(-(-(-self.registers // STEP) * STEP * WARP) // LOT) * LOT
        blocks = min(
            BLOCKS,
            WARPS // of_block,
            REGISTERS // of_warp // of_block,
            SHARED[self.arch] // (self.shared + RESERVED),
        )
        return blocks * of_block


class Journal:
    """Lines of JSON in a file, each under a key; what is there already is read first. Without a file, for as long as it
    lives."""

    def __init__(self, path: Path | None = None):
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        self._known: dict[str, Any] = {}
        for line in lines:
            try:
                self._known |= [json.loads(line)]
            except ValueError:  # the last one was cut off
                continue

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def add(self, key: str, value: Any) -> None:
        self._known[key] = value
        if self._path:
            with self._path.open("a", encoding="utf-8") as out:
                out.write(json.dumps([key, value]) + "\n")


def compiled(text: str, arch: str, journal: Journal | None = None) -> list[Kernel]:
    """What nvcc makes of the kernels of a CUDA text.

    Parameters
    ----------
    text : str
        As TVM generates it.
    arch : str
        Such as ``sm_80``.
    journal : Journal, optional
        What was compiled before, by the text and the options; gets what is compiled now.

    Returns
    -------
    list of Kernel
        In the order of the text.

    Raises
    ------
    Unavailable
        There is no nvcc on the PATH.
    XframeError
        nvcc refuses the text.
    """
    journal = Journal() if journal is None else journal
    found = list(_KERNEL.finditer(text))
    before = text[: found[0].start()].partition('extern "C"')[0] if found else ""
    made = {name: (code, body) for name, code, body in (_neutral(before, arch, k) for k in found)}
    todo = {code: body for code, body in made.values() if code not in journal}
    for part in _parts(todo):
        _journalled(before, part, arch, journal)
    return [
        replace(Kernel(**journal[made[k[2]][0]]), name=k[2], arch=arch, threads=int(k[1]), code=made[k[2]][0])
        for k in found
    ]


def _neutral(before: str, arch: str, kernel: re.Match) -> tuple[str, str, str]:
    """Name, code, and text under that name."""
    text = kernel[0].replace(f" {kernel[2]}(", " {}(", 1)
    options = " ".join(_options(arch))
    code = "k" + hashlib.sha256("\n".join((options, before, text)).encode()).hexdigest()[:16]
    return kernel[2], code, kernel[0].replace(f" {kernel[2]}(", f" {code}(", 1)


def _parts(texts: dict[str, str]) -> Iterator[list[str]]:
    part: list[str] = []
    for text in texts.values():
        part.append(text)
        if sum(map(len, part)) >= PART:
            yield part
            part = []
    if part:
        yield part


def _options(arch: str) -> Sequence[str]:
    ptxas = f"--ptxas-options=-v,--register-usage-level={compiler.REGISTER_LEVEL}"
    return (f"-arch={arch}", *compiler.OPTIONS, ptxas)


def _journalled(before: str, kernels: Iterable[str], arch: str, journal: Journal) -> None:
    if not shutil.which("nvcc"):
        raise Unavailable(
            "the kernels were to be compiled for a GPU, and nvcc is not on the PATH: install CUDA's toolkit"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cu"
        source.write_text("\n".join((before, *kernels, "")), encoding="utf-8")
        command = ["nvcc", *_options(arch), "--cubin", "-o", f"{folder}/kernels.cubin", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise XframeError(f"nvcc refuses the kernels for {arch}: {done.stderr.strip()[:2000]}")
    for kernel in parsed(done.stderr):
        journal.add(kernel.name, asdict(kernel))


def parsed(report: str) -> list[Kernel]:
    """The kernels of ptxas' report, which does not tell their threads."""

    def number(pattern: str, part: str) -> int:
        found = re.search(pattern, part)
        return int(found[1]) if found else 0

    return [
        Kernel(
            name,
            arch,
            0,
            number(r"Used (\d+) registers", part),
            number(r"(\d+) bytes smem", part),
            number(r"(\d+) bytes stack frame", part),
            number(r"(\d+) bytes spill stores", part),
            number(r"(\d+) bytes spill loads", part),
        )
        for name, arch, part in _ENTRY.findall(report)
    ]
