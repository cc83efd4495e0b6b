"""What a schedule needs to know of the CPU it is for; all of it read off the TVM target."""

from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm.target import codegen


@dataclass(frozen=True)
class Cpu:
    """A CPU target. ``text`` is TVM's target in its command-line form; ``threads`` run the parallel loops."""

    text: str
    threads: int

    @staticmethod
    def host(threads: int) -> "Cpu":
        """The machine that this runs on."""
        return Cpu(f"llvm -mcpu={codegen.llvm_get_system_cpu()}", threads)

    @cached_property
    def tvm(self) -> tvm.target.Target:
        words = self.text.split()
        config: dict = {"kind": words[0], "num-cores": self.threads}
        for word in words[1:]:
            key, _, value = word.lstrip("-").partition("=")
            config[key] = value.split(",") if key == "mattr" else value
        return tvm.target.Target(config)

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

    def cost(self, flop: float, memory_bytes: float, cache_bytes: float) -> float:
        """Estimated time of an algorithm's stages, in units of one float32 operation at the peak of the CPU.

        For choosing between tile sizes, so only ratios count. Constants (weights) come from memory, temporaries go
        through the outer caches. The machine balances are round figures of current CPUs: 12 FLOP in the time of a byte
        from memory, 2 in that of a byte through the caches. Times add up: a product that streams its weights was seen
        to take the time of both.
        """
        return flop + 12 * memory_bytes + 2 * cache_bytes
