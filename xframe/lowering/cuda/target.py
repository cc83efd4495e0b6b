"""What a schedule needs to know of the NVIDIA GPU it is for: read off a device, or a name such as ``sm_90``."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import tvm

from xframe.errors import Unavailable, UsageError
from xframe.lowering import tvm_runtime

#: Multiprocessors of the usual GPU of an architecture, for code that is made where there is none.
MULTIPROCESSORS = {"sm_75": 40, "sm_80": 108, "sm_86": 82, "sm_89": 128, "sm_90": 132, "sm_100": 148, "sm_120": 170}
#: Bytes of the level-2 cache: what current data-centre GPUs have at least.
SHARED_CACHE = 40 << 20
#: Threads of a block that hide each other's latencies without leaving a thread too few registers.
BLOCK = 256
#: Of a multiprocessor: multiply-adds of float32 that it begins at a time.
LANES = 128
#: Extents of a block's tile of a product, rows and columns.
TILES = (16, 32, 64, 128)
#: Registers that a thread can have, and those of them that hold addresses, counters and what is on its way.
MOST_REGISTERS, SPARE = 255, 24


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU. ``arch``: ``sm_90``; ``shared``: bytes of shared memory that a block has without asking for more.

    Straight-line kernels have one lane: neighbouring channels are neighbouring threads, which read side by side as the
    lanes of a vector do.
    """

    kind: ClassVar[str] = "cuda"
    lanes: ClassVar[int] = 1
    arch: str
    multiprocessors: int
    shared: int = 48 << 10
    registers: int = 64 << 10
    warp: int = 32
    most_threads: int = 1024

    @staticmethod
    def named(text: str) -> "Gpu":
        """Of ``sm_90`` or ``cuda -arch=sm_90``: the usual GPU of that architecture. Raises UsageError on other text."""
        found = re.fullmatch(r"(?:cuda\s+-arch=)?(sm_\d+)", text.strip())
        if found is None or found[1] not in MULTIPROCESSORS:
            raise UsageError(
                f"--target {text!r} is not the target of a GPU: it reads like 'cuda -arch=sm_90', with an"
                f" architecture of {', '.join(MULTIPROCESSORS)}"
            )
        return Gpu(found[1], MULTIPROCESSORS[found[1]])

    @staticmethod
    def of_device(index: int = 0) -> "Gpu":
        """The GPU ``index`` of this machine. Raises Unavailable where there is none that TVM can use."""
        tvm_runtime.load(cuda=True)
        device = tvm.cuda(index)
        if not device.exist:
            raise Unavailable(
                f"device cuda:{index} was asked for, and TVM finds no such GPU here: choose another;"
                " '--target sm_90' compiles for one elsewhere"
            )
        gpu = Gpu("sm_" + device.compute_version.replace(".", ""), device.multi_processor_count)
        return replace(gpu, warp=device.warp_size, most_threads=device.max_threads_per_block)

    @property
    def text(self) -> str:
        return f"cuda -arch={self.arch}"

    @property
    def threads(self) -> int:
        """What parallel parts of a kernel are shared by: multiprocessors."""
        return self.multiprocessors

    @cached_property
    def tvm(self) -> tvm.target.Target:
        return tvm.target.Target(
            {
                "kind": "cuda",
                "arch": self.arch,
                "max_num_threads": self.most_threads,
                "max_threads_per_block": self.most_threads,
                "max_shared_memory_per_block": self.shared,
                "registers_per_block": self.registers,
                "thread_warp_size": self.warp,
                "host": {"kind": "llvm"},
            }
        )

    def room(self, threads: int) -> int:
        """Values that each of so many threads of a block can hold in registers: beyond, some would be in memory."""
        warps = -(-threads // self.warp)
        return min(MOST_REGISTERS, self.registers // (warps * self.warp) // 8 * 8) - SPARE

    def cache(self, level: int) -> int:
        """Bytes of a block's shared memory at ``level`` 1, beyond that of the cache that all blocks share."""
        return self.shared if level == 1 else SHARED_CACHE

    def tiles(self, rows: int, columns: int, parts: int = 1, batch: int = 1) -> list[tuple[int, int]]:
        """Tiles of a block for ``batch`` products of ``rows`` x ``columns``, best use of the machine first.

        ``parts``: values of an accumulator, 2 for complex products. Judged by the turns that the multiprocessors take,
        two blocks at a time, what the last, partly filled tiles waste, the multiply-adds and reads of a tile, and
        whether it has threads for all lanes of a multiprocessor, at most 8 rows of 4 columns each; a warp at least.
        """

        def threads(r, c):
            return c // 4 * max(1, r // 8)

        def cost(tile):
            r, c = tile
            turns = -(-batch * -(-rows // r) * -(-columns // c) // (2 * self.multiprocessors))
            idle = max(1, LANES / threads(r, c))
            return turns * (r * c * idle + 16 * (r + c)), r * c, abs(r - c)

        largest = 128 * 128 // parts
        possible = ((r, c) for r in (1, 2, 4, 8, *TILES) for c in TILES if r >= TILES[0] or rows <= r)
        return sorted(((r, c) for r, c in possible if r * c <= largest and threads(r, c) >= self.warp), key=cost)

    def cost(self, flop: float, memory_bytes: float, cache_bytes: float) -> float:
        """Estimated time of an algorithm's stages, in units of one float32 operation at the peak of the GPU.

        For choosing between tile sizes, so only ratios count. Weights and temporaries go through memory: some 16
        float32 operations in the time of a byte on data-centre GPUs.
        """
        return flop + 16 * (memory_bytes + cache_bytes)
