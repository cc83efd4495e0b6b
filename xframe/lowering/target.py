"""What a schedule needs to know of the CPU it is for, read off the TVM target; and which targets can run here."""

import difflib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import tvm
from tvm.target import codegen

from xframe import environment
from xframe.errors import Unsupported, UsageError
from xframe.lowering.cuda.target import Gpu

#: Bytes of a data cache, by level, where the machine's can't be read: what most current cores have at least.
CACHES = {1: 32 << 10, 2: 1 << 20, 3: 16 << 20}
#: Features, as LLVM names them, whose instructions a compiler may use wherever it likes.
INSTRUCTIONS = {
    "sse3", "ssse3", "sse4.1", "sse4.2", "sse4a", "avx", "avx2", "fma", "fma4", "xop", "f16c", "bmi", "bmi2",
    "lzcnt", "popcnt", "movbe", "gfni", "avxvnni", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
    "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16",
    "avx512fp16", "avx512vp2intersect", "avx10.1", "avx10.2", "neon", "fp-armv8", "fullfp16", "dotprod", "bf16",
    "i8mm", "lse", "sve", "sve2", "sme", "v", "m",
}  # fmt: skip


@dataclass(frozen=True)
class Cpu:
    """A CPU target. ``text`` is TVM's target in its command-line form; ``threads`` run the parallel loops."""

    kind: ClassVar[str] = "cpu"
    text: str
    threads: int

    @staticmethod
    def host(threads: int) -> "Cpu":
        """The machine that this runs on."""
        return Cpu(f"llvm -mcpu={codegen.llvm_get_system_cpu()}", threads)

    @cached_property
    def _options(self) -> dict[str, str]:
        """``{"mcpu": "core-avx2"}``: what follows the kind in ``text``. Raises UsageError on any other text."""
        kind, *words = self.text.split() or [""]
        pairs = [word.lstrip("-").partition("=") for word in words]
        if kind != "llvm" or any(key not in ("mcpu", "mattr", "mtriple") or not value for key, _, value in pairs):
            raise UsageError(
                f"--target {self.text!r} is not the target of a CPU: it reads like 'llvm -mcpu=core-avx2', and may have"
                " -mcpu=NAME, -mattr=+FEATURE,-FEATURE and -mtriple=TRIPLE"
            )
        return {key: value for key, _, value in pairs}

    @cached_property
    def tvm(self) -> tvm.target.Target:
        options: dict = {"kind": "llvm", "num-cores": self.threads, **self._options}
        if "mattr" in options:
            options["mattr"] = options["mattr"].split(",")
        return tvm.target.Target(options)

    @cached_property
    def architecture(self) -> str:
        """``x86_64``, ``aarch64``: the first part of the target's triple."""
        first = self._options.get("mtriple", codegen.llvm_get_system_triple()).split("-")[0]
        return {"arm64": "aarch64", "amd64": "x86_64"}.get(first, first)

    def check(self) -> None:
        """Whether code for this target can be made, and run on this machine.

        Raises
        ------
        UsageError
            ``text`` is malformed, or LLVM knows no such processor or feature.
        Unsupported
            The target has instructions that this machine lacks.
        """
        asked, options = f"--target {self.text!r}", self._options
        host = Cpu.host(self.threads)
        if self.architecture not in list(codegen.llvm_get_targets()):
            raise UsageError(f"{asked}: LLVM knows no architecture {self.architecture!r}; this is {host.architecture}")
        triple = options.get("mtriple", codegen.llvm_get_system_triple())
        if "mcpu" in options and not codegen.llvm_is_valid_cpu(options["mcpu"], triple):
            known = codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
            close = difflib.get_close_matches(options["mcpu"], list(map(str, known)), cutoff=0.5)
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            raise UsageError(f"{asked}: LLVM knows no {self.architecture} processor {options['mcpu']!r}{hint}")
        if self.architecture != host.architecture:
            raise Unsupported(
                f"{asked}: code for {self.architecture} does not run on this machine, which is {host.architecture}"
            )
        own, features = (set(map(str, codegen.llvm_get_cpu_features(cpu.tvm))) for cpu in (host, self))
        settings = options["mattr"].split(",") if "mattr" in options else []
        ignored = [s for s in settings if s[:1] not in ("+", "-") or (s[0] == "+") != (s[1:] in features)]
        if ignored:
            raise UsageError(f"{asked}: LLVM has no feature of {self.architecture} to set by {', '.join(ignored)}")
        lacking = sorted((features - own) & INSTRUCTIONS)
        if lacking:
            raise Unsupported(f"{asked} has instructions that this machine lacks: {', '.join(lacking)}")

    def has(self, *features: str) -> bool:
        """Whether the target (not the machine that compiles) has all these LLVM features."""
        return codegen.target_has_features(list(features), self.tvm)

    @cached_property
    def lanes(self) -> int:
        """float32 lanes of one vector register."""
        return 16 if self.has("avx512f") else 8 if self.has("avx") else 4

    @cached_property
    def registers(self) -> int:
        """Vector registers: 32 with AVX-512 and on 64-bit Arm, else 16."""
        return 32 if self.has("avx512f") or self.has("neon") else 16

    def cache(self, level: int) -> int:
        """Bytes of a core's data cache at ``level`` 1 or 2, of the common one at 3: this machine's, if the target is of
        its architecture.

        For a foreign one, or where they can't be read, :data:`CACHES`.
        """
        return self._caches[level]

    @cached_property
    def _caches(self) -> dict[int, int]:
        native = self.architecture == Cpu.host(self.threads).architecture
        return {**CACHES, **environment.cache_bytes()} if native else CACHES

    def stay_near(self, constants: float) -> bool:
        """Whether so many bytes of constants can stay in a level-2 cache beside what is computed with them."""
        return 4 * constants <= 3 * self.cache(2)

    def cost(self, flop: float, memory_bytes: float, cache_bytes: float) -> float:
        """Estimated time of an algorithm's stages, in units of one float32 operation at the peak of the CPU.

        For choosing between tile sizes, so only ratios count. Constants (weights) come from memory, temporaries go
        through the outer caches unless the constants stay near: then they can stay near, too (``lowering.fused``). The
        machine balances are round figures of current CPUs with vectors of 16 lanes: 12 FLOP in the time of a byte from
        memory, 6 in that of a byte through the outer caches; narrower vectors do fewer. Times add up: little of the
        reading was seen to be hidden where weights are used for a few rows only.
        """
        through_caches = 0.5 if self.stay_near(memory_bytes) else 6
        return flop + self.lanes / 16 * (12 * memory_bytes + through_caches * cache_bytes)


#: What code is made for.
Target = Cpu | Gpu


def named(text: str, threads: int) -> Target:
    """The target of a record: its ``text``, for so many ``threads``, which on a GPU are multiprocessors."""
    return replace(Gpu.named(text), multiprocessors=threads) if text.startswith(Gpu.kind) else Cpu(text, threads)
