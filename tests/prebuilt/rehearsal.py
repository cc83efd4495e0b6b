"""The whole way of a compiled network to a bare machine with a GPU, which the CPU plays: build, pack, unpack, run.

    python -m tests.prebuilt.rehearsal FOLDER

The network is a small one, as every access of a kernel is checked.
``xframe build`` finds a compiler named nvcc, which is g++ with the shim's headers (``tests/cuda_on_cpu``); what it made
travels as it would, with TVM's runtime; where it is run there is nothing of this checkout, nor of its environment, but
the Python that this one was made of, or ``--python PATH``, which may be of another version; the driver and CUDA's
runtime library are the shim's.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.cuda_on_cpu import build
from xframe.errors import XframeError
from xframe.lowering.cuda import compiler
from xframe.lowering.cuda.target import Gpu
from xframe.prebuilt import roofs
from xframe.prebuilt.roofs import Work

ROOT = Path(__file__).parents[2]
#: As TVM calls it: to say its version, or to make a file of a text. What it makes begins as the shim's driver reads it,
#: and has what machine code begins with.
NVCC = """#!{python}
import os, sys
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V13.0.0")
    sys.exit()
sys.path.insert(0, {root!r})
from tests.cuda_on_cpu import build
source = next(a for a in sys.argv[1:] if a.endswith(".cu"))
made = build.kernels(open(source).read())
with open(sys.argv[sys.argv.index("-o") + 1], "wb") as f:
    f.write(b"CUDA-ON-CPU:" + os.fsencode(made) + bytes(1) + b"\\x50\\xed\\x55\\xba")
"""

#: A network that is there in a moment.
MODEL = """from xframe.types import ModelSpec, layer

SPEC = ModelSpec(
    name="rehearsed",
    input=(3, 15, 15),
    layers=(
        layer("conv1", "conv", out=8, kernel=3, pads=1),
        layer("relu1", "relu"),
        layer("pool1", "maxpool", kernel=3, stride=2),
        layer("conv2", "conv", out=12, kernel=3, pads=1),
        layer("relu2", "relu"),
        layer("flatten", "flatten"),
        layer("fc3", "fc", out=10),
    ),
)
"""


def environment(folder: Path) -> dict[str, str]:
    """Of a process that finds the shim's compiler, and the network; both are put into the folder."""
    tools, models = folder / "tools", folder / "models"
    for place in (tools, models):
        place.mkdir(parents=True, exist_ok=True)
    (models / "rehearsed.py").write_text(MODEL)
    nvcc = tools / "nvcc"
    nvcc.write_text(NVCC.format(python=sys.executable, root=str(ROOT)))
    nvcc.chmod(0o755)
    cache = {"CUDA_ON_CPU_CACHE": str(build.cache())}
    cache["XFRAME_MODELS"] = str(models)
    return {**os.environ, **cache, "PATH": f"{tools}:{os.environ['PATH']}", "TVM_CUDA_COMPILE_MODE": "nvcc"}


def bare(home: Path) -> dict[str, str]:
    """Of a process on a machine with a GPU and little else: nothing of this one's environment."""
    preloaded = " ".join(map(str, build.libraries()))
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "LD_PRELOAD": preloaded, "PYTHONNOUSERSITE": "1"}


def built(folder: Path, *options: str) -> Path:
    """What ``xframe build`` made for the GPU that the shim plays."""
    command = [sys.executable, "-m", "xframe.cli", "build", "--target", "sm_80", "-o", str(folder / "built"), *options]
    subprocess.run(command, check=True, env=environment(folder), cwd=ROOT)
    return folder / "built"


def roofs_of(folder: Path, work: Work) -> tuple[dict[str, float], str]:
    """Where there is a device: what is measured there, and what is said when the work is said to be another."""
    compiler.check = lambda: None  # the device of the tests needs neither nvcc nor NVRTC
    library = roofs.write(Gpu.named("sm_80"), folder, work)
    found, claims = roofs.here(library, "cuda", 0.0, 0.0), library.with_suffix(".json")
    claims.write_text(json.dumps({**vars(work), "depth": work.depth + 1}))
    try:
        roofs.here(library, "cuda", 0.0, 0.0)
    except XframeError as e:
        return found, str(e)
    return found, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lowering", default="gemm,winograd")
    parser.add_argument("--python", default=sys._base_executable)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    made = built(args.folder, "--model", "rehearsed", "--batch", "1,2", "--lowering", args.lowering)
    (made / roofs.LIBRARY).unlink()  # it keeps a whole GPU busy
    pieces = args.folder / "pieces"
    asked = [args.python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    command = [sys.executable, "scripts/gpu_check.py", "--prebuilt", str(made), "--pack", str(pieces)]
    subprocess.run([*command, "--python", version], check=True, env=environment(args.folder), cwd=ROOT)
    command = ["sh", str(pieces / "gpu_check.sh"), "--minutes", "10", "-o", "found"]
    there = {**bare(args.folder), "PYTHON": args.python}
    return subprocess.run(command, env=there, cwd=args.folder).returncode


if __name__ == "__main__":
    sys.exit(main())
