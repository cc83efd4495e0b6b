"""Keeping frameworks out of a process that needs none."""

import contextlib
import sys

from xframe.registry import FRAMEWORKS


@contextlib.contextmanager
def without_frameworks():
    """Within the block no framework can be imported that was not imported before.

    A backend is to be measured alone, and TVM's foreign function interface would load PyTorch wherever it is installed:
    2 s and 300 MB.
    """
    hidden = {module for row in FRAMEWORKS.values() for module in row.needs} - set(sys.modules)
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: there is no such module
    try:
        yield
    finally:
        for module in hidden:
            del sys.modules[module]
