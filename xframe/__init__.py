"""xframe: is it the framework, or the convolution kernels it picks?

``xframe.compare(xframe.Request("alexnet"))`` is what the command line does; ``Budget`` says how much to measure.
``xframe.check_equivalence(["a.onnx", "b.onnx"])`` tells whether models compute the same function, and where they part.
"""

import importlib

__version__ = "0.1.0"
__all__ = ["Budget", "Request", "check_equivalence", "compare"]

_HOME = {
    "Budget": "xframe.measure",
    "Request": "xframe.comparison",
    "check_equivalence": "xframe.check.api",
    "compare": "xframe.comparison",
}


def __getattr__(name):
    """The public names, imported on first use (Python 3.7 upwards; an older worker does not need them)."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError("module %r has no attribute %r; it has %s" % (__name__, name, ", ".join(__all__)))


def __dir__():
    return sorted([*globals(), *__all__])
