"""What a record depends on besides the device: the version of TVM, and the pass list that kernels go through.

Told without importing TVM, so that a log can be read where it is not needed, or not installed.
"""

import ast
import functools
import hashlib
from importlib import metadata
from pathlib import Path

import xframe


@functools.cache
def tvm_version() -> str | None:
    """The version of TVM that is installed; None where there is none."""
    try:
        return metadata.version("apache-tvm")
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def passes() -> str:
    """A short hash of the passes and their arguments, as they stand in ``xframe.lowering.pipeline``."""
    return _hash((Path(xframe.__file__).parent / "lowering" / "pipeline.py").read_text(encoding="utf-8"))


def _hash(source: str) -> str:
    """That of the list of passes in a source text; spelling and comments do not count."""
    (function,) = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == "passes")
    calls = (n for n in ast.walk(function) if isinstance(n, ast.Call))
    (listed,) = (c.args[0] for c in calls if ast.unparse(c.func).endswith("Sequential"))
    assert isinstance(listed, ast.List)
    return hashlib.sha256("\n".join(map(ast.unparse, listed.elts)).encode()).hexdigest()[:12]
