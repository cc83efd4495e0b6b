"""What nvcc makes of the CUDA kernels of forced plans: registers, shared memory, spills. No GPU is needed.

    python benchmarks/cuda_compile.py --model alexnet --batch 1,16 --lowering gemm,fft --arch sm_80,sm_90
    python benchmarks/cuda_compile.py --journal kernels.jsonl --markdown

Registers are a thread's, shared memory and threads a block's. Spills are bytes of registers that went to memory, and a
stack is a thread's array that is not in registers: both are slow wherever they are used. Warps are those of a
multiprocessor that threads, registers and shared memory leave room for, of 64. ``legal`` is TVM's own
``verify_gpu_code`` on what it generates the text from. With a journal, a run that was cut off goes on where it was,
and what equals a kernel that is in it is not compiled again; ``--markdown`` alone prints what it holds of these
sources. The exit code is 1 if a kernel spills or is not legal.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import cuda_table, ptxas, rows
from benchmarks.ptxas import Journal
from xframe import exports, planning, zoo
from xframe.errors import XframeError
from xframe.lowering.identity import identity
from xframe.types import Device

#: Of a block, without asking for more, by which TVM judges.
LIMITS = {
    **{"max_threads_per_block": 1024, "max_thread_x": 1024, "max_thread_y": 1024, "max_thread_z": 64},
    **{"max_shared_memory_per_block": 48 << 10, "max_vector_bytes": 16},
}
LOWERINGS = ("gemm", "direct", "winograd", "fft")
FALLBACK = "direct"


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


def kernels(model: str, batch: int, lowering: str, arch: str, journal: Journal) -> list[rows.Row]:
    """The rows of one network, each kernel once."""
    key = " ".join((model, str(batch), lowering, arch, identity()))
    if key not in journal:
        journal.add(key, _made(model, batch, lowering, arch, journal))
    return journal[key]


def _made(model: str, batch: int, lowering: str, arch: str, journal: Journal) -> list[rows.Row]:
    import onnx

    from xframe.lowering import pipeline
    from xframe.lowering.cuda.target import Gpu

    spec, gpu = zoo.spec(model), Gpu.named(arch)
    artifact, _, _ = exports.export("pytorch", spec, zoo.weights_file(spec), batch, 1)
    device = Device(arch, "cuda", arch, arch, gpu.multiprocessors)
    plan = planning.plan(lowering, (site for _, site in artifact.conv_sites), device, fallback=FALLBACK)
    text, illegal = generated(lambda: pipeline.build(onnx.load(artifact.path), plan, gpu).executable)
    labels = {"model": model, "batch": batch, "lowering": lowering}
    return [
        {**labels, **asdict(k), "warps": k.warps, "legal": not any(k.name.startswith(f"{n}_kernel") for n in illegal)}
        for k in ptxas.compiled(text, arch, journal)
    ]


def kept(journal: Journal) -> list[rows.Row]:
    """The rows of all networks in a journal that are of these sources."""
    return [r for key in journal if key.endswith(" " + identity()) for r in journal[key]]


def line(r: rows.Row) -> str:
    flaws = [f"spills {r['spill_stores']} + {r['spill_loads']} bytes"] if cuda_table.spills(r) else []
    flaws += [] if r["legal"] else ["not legal"]
    what = f"{r['model']:12} batch {r['batch']:<3} {r['lowering']:9} {r['arch']} {r['name'][:44]:44}"
    threads = f"{r['threads']:4} threads {r['registers']:3} registers {r['stack']:4} stack"
    return f"{what} {threads} {r['shared']:6} shared {r['warps']:2} warps {', '.join(flaws)}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description="What nvcc makes of the CUDA kernels of forced plans.")
    parser.add_argument("--model", type=rows.names, default=())
    parser.add_argument("--batch", type=rows.numbers, default=(1,))
    parser.add_argument("--lowering", type=rows.names, default=LOWERINGS)
    parser.add_argument("--arch", type=rows.names, default=tuple(ptxas.SHARED))
    parser.add_argument("--journal", type=Path, help="file that keeps what was compiled")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a kernel")
    form.add_argument("--markdown", action="store_true", help="tables, at the end")
    args = parser.parse_args()
    if not args.model and not (args.journal and args.markdown):
        parser.error("--model names what to compile; without, --journal FILE --markdown prints what is in FILE")
    journal, found = Journal(args.journal), []
    for what in _each(args):
        made = kernels(*what, journal)
        found += made
        for r in [] if args.markdown else made:
            print(json.dumps(r) if args.json else line(r), flush=True)
    found = found if args.model else kept(journal)
    if args.markdown:
        print(cuda_table.text(found))
    return int(any(cuda_table.spills(r) or not r["legal"] for r in found))


def _each(args: argparse.Namespace) -> Iterable[tuple[str, int, str, str]]:
    for model in args.model:
        for batch in args.batch:
            for lowering in args.lowering:
                for arch in args.arch:
                    yield model, batch, lowering, arch


if __name__ == "__main__":
    sys.exit(rows.run(main))
