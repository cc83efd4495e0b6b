"""A user's ``nn.Module``: run, differentiated and exported as it is, in the mode that it was left in."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from onnx import numpy_helper
from torch import nn
from torch.utils import _pytree as pytree

from xframe.errors import UsageError
from xframe.frameworks.common_live import Places, described, guarded, located, output_names
from xframe.frameworks.pytorch import module as network
from xframe.types import ModelSpec

_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_STATISTICS = (nn.modules.batchnorm._NormBase,)


def _mode(module: nn.Module) -> tuple[str, ...]:
    """What is to be said of a module of which something is in training mode."""
    training = {name or "the module": m for name, m in module.named_modules() if m.training}
    if not training:
        return ()
    random = [name for name, m in training.items() if isinstance(m, _RANDOM) and getattr(m, "p", True)]
    batch = [name for name, m in training.items() if isinstance(m, _STATISTICS)]
    words = [f"dropout is active in {_some(random)}"] if random else []
    words += [f"normalization uses the statistics of the batch in {_some(batch)}"] if batch else []
    if not words and not module.training:
        return ()
    effect = "; ".join(words) or "none of its layers is of a type that behaves differently there"
    return (f"left in training mode, and run and exported so: {effect}; call .eval() on it for inference",)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Module:
    """See :class:`xframe.protocols.Live`. Inputs go to the device, and take the dtype, of the module's parameters."""

    kind = "torch.nn.Module"

    def __init__(self, module: nn.Module):
        if not isinstance(module, nn.Module):
            raise UsageError(f"a {type(module).__name__} is no torch.nn.Module: give the module itself")
        self._module, self._title = module, f"the torch.nn.Module {type(module).__name__}"
        self._shapes: list[tuple[int | None, ...]] | None = None
        self._like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(0))
        self._places = Places()
        self.notes: Sequence[str] = _mode(module)
        if self._like.dtype != torch.float32:
            self.notes = (*self.notes, f"its parameters are {str(self._like.dtype).removeprefix('torch.')}")

    @classmethod
    def from_spec(cls, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> "Module":
        """Raises UsageError when the weights do not fit the spec."""
        made = cls(network(spec, weights))
        made._shapes = [(batch, *spec.input)]
        return made

    def shapes(self) -> list[tuple[int | None, ...]] | None:
        """None for a user's module, which does not know them."""
        return self._shapes

    def run(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        """Raises XframeError with what the module said."""
        with self._untouched(feeds), torch.no_grad():
            return [_array(y) for y in self._outputs(self._tensors(feeds))]

    def export(self, feeds: list[np.ndarray]) -> Any:
        """Raises XframeError with what the module or the exporter said."""
        count = len(self.run(feeds))
        logger = logging.getLogger("torch.onnx")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with self._untouched(feeds, f"torch.onnx.export of {self._title}"):
                program = torch.onnx.export(
                    self._module, tuple(self._tensors(feeds)), dynamo=True, output_names=output_names(count),
                    verbose=False, optimize=False,  # which folds weights, and keeps their names
                )  # fmt: skip
                assert program is not None
                model = program.model_proto
        finally:
            logger.setLevel(level)
        for item in [*model.graph.node, *model.graph.value_info]:
            del item.metadata_props[:]  # stack traces, with the paths of this machine
        self.place({t.name: numpy_helper.to_array(t) for t in model.graph.initializer})
        return model

    def place(self, constants: Mapping[str, np.ndarray]) -> None:
        """See :class:`xframe.protocols.Live`."""
        weights = {name: _array(p) for name, p in self._module.named_parameters()}
        self._places = located(constants, weights)

    def gradients(
        self, feeds: list[np.ndarray], cotangents: list[np.ndarray]
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """By all floating-point parameters, also frozen ones. Raises XframeError with what the module said."""
        weights = {name: p for name, p in self._module.named_parameters() if p.is_floating_point()}
        frozen = [p for p in weights.values() if not p.requires_grad]
        try:
            for p in frozen:
                p.requires_grad_(True)
            with self._untouched(feeds, f"the gradients of {self._title}"), torch.enable_grad():
                xs = [x.requires_grad_() for x in self._tensors(feeds)]
                ys = self._outputs([x.clone() for x in xs])  # it may write into its input
                aimed = [
                    torch.as_tensor(c, dtype=y.dtype, device=y.device) for c, y in zip(cotangents, ys, strict=True)
                ]
                of = [*xs, *weights.values()]
                found = torch.autograd.grad(ys, of, aimed, allow_unused=True)
        finally:
            for p in frozen:
                p.requires_grad_(False)
        arrays = [_array(torch.zeros_like(x) if g is None else g) for g, x in zip(found, of, strict=True)]
        return arrays[: len(xs)], self._places.arranged(dict(zip(weights, arrays[len(xs) :], strict=True)))

    def _tensors(self, feeds: list[np.ndarray]) -> list[torch.Tensor]:
        return [torch.tensor(x, dtype=self._like.dtype, device=self._like.device) for x in feeds]

    def _outputs(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        """In the order in which an export lists them."""
        ys = [y for y in pytree.tree_leaves(self._module(*xs)) if y is not None]
        if not ys or not all(isinstance(y, torch.Tensor) for y in ys):
            kinds = ", ".join(sorted({type(y).__name__ for y in ys})) or "nothing"
            raise UsageError(f"{self._title} gives {kinds}: only models that give tensors can be compared")
        return ys

    @contextlib.contextmanager
    def _untouched(self, feeds: list[np.ndarray], what: str = "") -> Iterator[None]:
        """Its buffers and torch's random numbers are afterwards what they were: training mode moves both."""
        buffers = [(b, b.detach().clone()) for b in self._module.buffers()]
        gpus = [self._like.device] if self._like.is_cuda else []
        try:
            with guarded(f"{what or self._title} failed on {described(feeds)}"), torch.random.fork_rng(gpus):
                yield
        finally:
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)


def _array(y: torch.Tensor) -> np.ndarray:
    y = y.detach().cpu()
    return (y.float() if y.is_floating_point() else y).numpy().copy()
