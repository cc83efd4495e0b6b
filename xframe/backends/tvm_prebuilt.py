"""What TVM compiled for a named target, in a folder of its own; and the backend that runs it without a compiler."""

import importlib.metadata
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from xframe import files
from xframe.backends import tvm, tvm_driverless, tvm_memory
from xframe.protocols import DEFAULTS
from xframe.types import Artifact, Plan, SiteRecord
from xframe.worker import wire

#: The graph of a compiled network, without its weights: what it is called there, and what its layers are.
GRAPH = "graph.onnx"


def arch(target: str) -> str:
    """``sm_90`` of ``cuda -arch=sm_90`` or ``sm_90``; empty for a CPU's target."""
    found = re.fullmatch(r"(?:cuda\s+-arch=)?(sm_\d+)", target.strip())
    return found[1] if found else ""


def write(artifact: Artifact, plan: Plan, target: str, folder: Path, name: str) -> Sequence[SiteRecord]:
    """Compile ``artifact`` under ``plan`` into ``folder/name``, its weights into ``folder/parameters``.

    :data:`GRAPH` is there, too.

    Raises
    ------
    Unsupported, Unavailable, NotHonoured
        As the backend ``tvm`` does.
    UsageError
        The target is none.
    """
    import onnx

    from xframe.lowering import pipeline
    from xframe.lowering.cuda import compiler
    from xframe.lowering.target import Cpu, Gpu

    if arch(target):
        compiler.check()
        tvm_driverless.ready()
    built = pipeline.build(onnx.load(artifact.path), plan, Gpu.named(target) if arch(target) else Cpu(target, 1))
    shutil.rmtree(folder / name, ignore_errors=True)  # of an earlier run
    # the weights of what is run there are looked for there
    with files.home_at(folder), tvm.whole_folder(folder / name) as part:
        built.executable.export_library(str(part / tvm.LIBRARY))
        if arch(target):
            tvm_driverless.check(part / tvm.LIBRARY)
        table = [{"shape": a.shape, "file": tvm._stored(a)} for a in built.parameters]
        meta = {"target": target, "parameters": table, "sites": wire.plain(built.sites), "notes": list(built.notes)}
        (part / tvm.META).write_text(json.dumps(meta), encoding="utf-8")
        graph = onnx.load(artifact.path)
        del graph.graph.initializer[:]
        (part / GRAPH).write_bytes(graph.SerializeToString())
    return built.sites


class Prebuilt:
    """Runs what :func:`write` made; the path of its artifact is that of the graph there."""

    def __init__(self) -> None:
        self.version = importlib.metadata.version("apache-tvm")

    def compile(
        self, artifact: Artifact, plan: Plan, device: str, threads: int, options: Mapping[str, str] = DEFAULTS
    ) -> tvm.TvmExecutable:
        """Nothing is compiled. Raises Unavailable where there is no such device, or no runtime for it."""
        folder, memory = Path(artifact.path).parent, tvm_memory.of(device)
        return tvm.TvmExecutable(folder, self.version, threads, plan, artifact, memory)
