"""What nvcc makes of the CUDA kernels of forced plans: registers, shared memory, spills. No GPU is needed.

    python benchmarks/cuda_compile.py --model alexnet --batch 1,16 --lowering gemm,fft --arch sm_80,sm_90 --markdown

Each kernel once an architecture. Registers are a thread's, shared memory and threads a block's. Spills are bytes of
registers that went to memory, and a stack is a thread's array that is not in registers: both are slow wherever they are
used. Warps are those of a multiprocessor that threads, registers and shared memory leave room for, of 64. ``legal`` is
TVM's own ``verify_gpu_code`` on what it generates the text from. The exit code is 1 if a kernel spills or is not legal.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rows
from xframe import exports, planning, registry, zoo
from xframe.errors import Unavailable, XframeError
from xframe.types import Device

#: Bytes of shared memory: of a multiprocessor, of it for the system with each block, and of a block without asking.
SHARED, RESERVED, ASKED = {"sm_80": 164 << 10, "sm_90": 228 << 10}, 1 << 10, 48 << 10
#: Of a multiprocessor: warps and blocks at most, and registers: a warp gets them in lots, a thread in 8s.
WARPS, BLOCKS, REGISTERS, LOT, STEP = 64, 32, 64 << 10, 256, 8
WARP = 32
#: As TVM has it compiled, without fast math, and the variable that says how hard ptxas saves registers, 0 to 10.
OPTIONS = ["-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda"]
LEVEL, USUAL = "TVM_CUDA_PTXAS_REG_LEVEL", "10"
LIMITS = {
    **{"max_threads_per_block": 1024, "max_thread_x": 1024, "max_thread_y": 1024, "max_thread_z": 64},
    **{"max_shared_memory_per_block": ASKED, "max_vector_bytes": 16},
}
FALLBACK = "direct"

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'(.*?)(?=Compiling entry function|\Z)", re.S)
_BOUND = re.compile(r"__launch_bounds__\((\d+)\) (\w+)\([^)]*\) \{")


@dataclass(frozen=True)
class Kernel:
    """A kernel as compiled. ``threads`` and ``shared`` (bytes, static) are a block's, ``registers`` a thread's, and so
    are the bytes of its ``stack`` and of the stores and loads of spilled registers."""

    name: str
    arch: str
    threads: int
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int

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


def compiled(text: str, arch: str) -> list[Kernel]:
    """What nvcc makes of the kernels of a CUDA text.

    Parameters
    ----------
    text : str
        As TVM generates it.
    arch : str
        Such as ``sm_80``.

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
    if not shutil.which("nvcc"):
        raise Unavailable(
            "the kernels were to be compiled for a GPU, and nvcc is not on the PATH: install CUDA's toolkit"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cu"
        source.write_text(text, encoding="utf-8")
        ptxas = f"--ptxas-options=-v,--register-usage-level={os.environ.get(LEVEL, USUAL)}"
        command = ["nvcc", f"-arch={arch}", *OPTIONS, ptxas, "--cubin", "-o", f"{folder}/kernels.cubin", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise XframeError(f"nvcc refuses the kernels for {arch}: {done.stderr.strip()[:2000]}")
    threads = {name: int(bound) for bound, name in _BOUND.findall(text)}
    return sorted(parsed(done.stderr, threads), key=lambda k: list(threads).index(k.name))


def parsed(report: str, threads: dict[str, int]) -> list[Kernel]:
    """The kernels of ptxas' report, with their launch bounds."""

    def number(pattern: str, part: str) -> int:
        found = re.search(pattern, part)
        return int(found[1]) if found else 0

    return [
        Kernel(
            name,
            arch,
            threads.get(name, 0),
            number(r"Used (\d+) registers", part),
            number(r"(\d+) bytes smem", part),
            number(r"(\d+) bytes stack frame", part),
            number(r"(\d+) bytes spill stores", part),
            number(r"(\d+) bytes spill loads", part),
        )
        for name, arch, part in _ENTRY.findall(report)
    ]


def generated(build: Any) -> tuple[str, list[str]]:
    """The CUDA text of ``build()``, an executable, and the functions that are not legal on a GPU by TVM's own verdict.

    Looked at where the compiler has laid out the memory of a block.
    """
    import tvm

    seen: set[str] = set()
    illegal: set[str] = set()

    @tvm.instrument.pass_instrument
    class Verify:
        def run_after_pass(self, module, info):
            if str(info.name).endswith("StorageRewrite"):
                functions = {v.name_hint: f for v, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
                seen.update(functions)
                illegal.update(n for n, f in functions.items() if not tvm.s_tir.analysis.verify_gpu_code(f, LIMITS))

    with tvm.transform.PassContext(instruments=[Verify()]):
        executable = build()
    if not seen:
        raise XframeError("TVM was to judge the kernels, and no longer has the pass behind which they are looked at")
    return "\n".join(texts(executable.mod)), sorted(illegal)


def texts(module: Any) -> Iterator[str]:
    """The CUDA texts of a runtime module and of those that it imports."""
    if module.kind == "cuda":
        yield module.inspect_source()
    for part in module.imports:
        yield from texts(part)


def kernels(model: str, batch: int, lowering: str, arch: str) -> list[rows.Row]:
    """The rows of one network, each kernel once."""
    import onnx

    from xframe.lowering import pipeline
    from xframe.lowering.cuda import compiler
    from xframe.lowering.cuda.target import Gpu

    spec, gpu = zoo.spec(model), Gpu.named(arch)
    artifact, _, _ = exports.export("pytorch", spec, zoo.weights_file(spec), batch, 1)
    device = Device(arch, "cuda", arch, arch, gpu.multiprocessors)
    plan = planning.plan(lowering, (site for _, site in artifact.conv_sites), device, fallback=FALLBACK)
    text, illegal = generated(lambda: pipeline.build(onnx.load(artifact.path), plan, gpu).executable)
    with compiler.exact():
        made = compiled(text, arch)
    labels = {"model": model, "batch": batch, "lowering": lowering}
    return [
        {**labels, **asdict(k), "warps": k.warps, "legal": not any(k.name.startswith(f"{n}_kernel") for n in illegal)}
        for k in made
    ]


def table(found: list[rows.Row]) -> str:
    """A table in Markdown."""
    head = [
        "network",
        "lowering",
        "for",
        "kernel",
        "threads",
        "registers",
        "shared",
        "stack",
        "spills",
        "warps",
        "legal",
    ]
    body = [
        [
            f"{r['model']}, batch {r['batch']}",
            *(str(r[k]) for k in ("lowering", "arch", "name", "threads", "registers", "shared", "stack")),
            str(r["spill_stores"] + r["spill_loads"]),
            str(r["warps"]),
            "yes" if r["legal"] else "no",
        ]
        for r in found
    ]
    return rows.table(head, body)


def line(r: rows.Row) -> str:
    flaws = [f"spills {r['spill_stores']} + {r['spill_loads']} bytes"] if r["spill_stores"] + r["spill_loads"] else []
    flaws += [] if r["legal"] else ["not legal"]
    what = f"{r['model']:12} batch {r['batch']:<3} {r['lowering']:9} {r['arch']} {r['name'][:44]:44}"
    threads = f"{r['threads']:4} threads {r['registers']:3} registers {r['stack']:4} stack"
    return f"{what} {threads} {r['shared']:6} shared {r['warps']:2} warps {', '.join(flaws)}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description="What nvcc makes of the CUDA kernels of forced plans.")
    parser.add_argument("--model", type=rows.names, default=("alexnet",))
    parser.add_argument("--batch", type=rows.numbers, default=(1,))
    parser.add_argument("--lowering", type=rows.names, default=tuple(registry.LOWERINGS))
    parser.add_argument("--arch", type=rows.names, default=tuple(SHARED))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a kernel")
    form.add_argument("--markdown", action="store_true", help="one table")
    args = parser.parse_args()
    found: list[rows.Row] = []
    for model in args.model:
        for batch in args.batch:
            for lowering in args.lowering:
                for arch in args.arch:
                    made = kernels(model, batch, lowering, arch)
                    found += made
                    for r in [] if args.markdown else made:
                        print(json.dumps(r) if args.json else line(r), flush=True)
    if args.markdown:
        print(table(found))
    return int(any(r["spill_stores"] + r["spill_loads"] or not r["legal"] for r in found))


if __name__ == "__main__":
    sys.exit(rows.run(main))
