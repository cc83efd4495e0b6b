"""What the code that the lowerings make depends on, besides the network and the plan. Without importing TVM."""

import hashlib
import platform
from importlib import metadata
from pathlib import Path


def identity() -> str:
    """A digest of our sources, TVM's version and this machine's processor: for the keys of caches.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        TVM is not installed.
    """
    digest = hashlib.sha256("\n".join([metadata.version("apache-tvm"), _processor()]).encode())
    package = Path(__file__).parent.parent
    others = [package / "backends" / "tvm.py", package / "equivalence" / "bounds.py"]  # the latter judges variants
    for source in [*sorted((package / "lowering").rglob("*.py")), *others]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """What distinguishes this processor from another that may share the cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(sorted({x for x in lines if x.split(":")[0].strip() in ("model name", "flags", "Features")}))
    except OSError:
        return platform.processor() + platform.machine()
