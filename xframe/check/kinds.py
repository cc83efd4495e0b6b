"""Which framework a thing is of that somebody hands over as a model."""

from __future__ import annotations

from typing import Any

from xframe.errors import UsageError

ADVICE = (
    "give the path of an ONNX file, a registered model (alexnet, alexnet@tensorflow), an onnx.ModelProto, a "
    "torch.nn.Module, a Keras model, a tf.function or tf.Module, a JAX function, or a pair (JAX function, params) or "
    "(flax module, variables)"
)
#: Where a class of the model's, or one that it is derived from, is defined -> the framework that it is of.
_HOMES = {
    "torch.nn.modules.module": "pytorch",
    "torch.fx.graph_module": "pytorch",
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
}
#: Things that are near a model -> what to give in their place.
_NEAR = {
    "torch.export.exported_program": "its .module()",
    "onnxruntime": "the path of the ONNX file that the session runs",
    "onnx": "an onnx.ModelProto",
    "torch": "a torch.nn.Module",
}


def framework_of(thing: Any) -> str:
    """A key of :data:`xframe.registry.LIVE`, told by where the thing's classes are defined: nothing is imported for it.

    Raises
    ------
    UsageError
        It is no model; the message says what can be given in its place.
    """
    if isinstance(thing, type):
        raise UsageError(f"{thing.__qualname__} is a class: give a model made of it")
    places = [c.__module__ for c in type(thing).__mro__]
    for home, framework in _HOMES.items():
        if any(p == home or p.startswith(home + ".") for p in places):
            return framework
    for near, instead in _NEAR.items():
        if any(p == near or p.startswith(near + ".") for p in places):
            raise UsageError(f"a {type(thing).__qualname__} can't be checked: give {instead}")
    if isinstance(thing, tuple):
        if len(thing) == 2 and (callable(thing[0]) or hasattr(thing[0], "apply")):
            return "jax"
    elif callable(thing):
        return "jax"
    raise UsageError(f"a {type(thing).__qualname__} can't be checked: {ADVICE}")
