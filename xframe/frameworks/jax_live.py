"""A user's JAX function, with or without parameters, or a flax module with its variables."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xframe.errors import UsageError
from xframe.frameworks import common
from xframe.frameworks.common_live import (
    Places,
    adopt,
    described,
    guarded,
    input_names,
    located,
    output_names,
)
from xframe.frameworks.jax import network
from xframe.frameworks.jax_export import convert
from xframe.types import ModelSpec


class Function:
    """See :class:`xframe.protocols.Live`. Products are computed in full float32 (precision ``highest``).

    Parameters
    ----------
    thing
        A function of arrays; a pair ``(function, params)`` that is called ``function(params, *arrays)``; or a pair of
        something that has ``apply``, as a flax linen module, and its variables.
    """

    def __init__(self, thing: Any):
        function, self._params = thing if isinstance(thing, tuple) else (thing, ())
        self.notes: Sequence[str] = ()
        title = getattr(function, "__name__", type(function).__name__)
        if isinstance(thing, tuple) and hasattr(function, "apply"):
            self.kind, self._function = "flax module with variables", function.apply
        elif not callable(function):
            raise UsageError(f"a {type(function).__name__} is no JAX function: give a function of arrays")
        elif isinstance(thing, tuple):
            self.kind, self._function = "JAX function with parameters", function
        else:
            self.kind, self._function = "JAX function", lambda _, *xs: function(*xs)
        self._title = f"the {self.kind.split(' with')[0]} {title}"
        self._shapes: list[tuple[int | None, ...]] | None = None
        #: Leaves that are no weights to learn.
        self._still: frozenset[str] = frozenset()
        self._places = Places()

    @classmethod
    def from_spec(cls, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> "Function":
        """Input NHWC. Raises UsageError when the weights do not fit the spec."""
        values = common.channels_last(spec, weights)
        made = cls((lambda w, x: network(spec, w, x), {name: jnp.asarray(value) for name, value in values.items()}))
        made._shapes = [common.channels_last_shape((batch, *spec.input))]
        made._still = frozenset(name for name in values if name.endswith((".mean", ".var")))
        return made

    def shapes(self) -> list[tuple[int | None, ...]] | None:
        """None for a user's function, which does not know them."""
        return self._shapes

    def run(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        """Raises XframeError with what the function said."""
        with self._guard(feeds):
            return [np.asarray(y, _real(y)) for y in self._leaves(jax.jit(self._function)(self._params, *feeds))]

    def export(self, feeds: list[np.ndarray]) -> Any:
        """By a walk over the jaxpr. Raises Unsupported on a primitive that has no ONNX form there."""
        with self._guard(feeds, f"the export of {self._title}"):
            count = len(self._leaves(jax.eval_shape(self._function, self._params, *feeds)))
            inputs = {n: (x.shape, str(x.dtype)) for n, x in zip(input_names(len(feeds)), feeds, strict=True)}
            model = convert(self._function, self._params, inputs, output_names(count))
        self._places = adopt(model.graph, self._values())
        return model

    def place(self, constants: Mapping[str, np.ndarray]) -> None:
        """See :class:`xframe.protocols.Live`."""
        self._places = located(constants, self._values())

    def gradients(
        self, feeds: list[np.ndarray], cotangents: list[np.ndarray]
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """By all floating-point leaves of the parameters. Raises XframeError with what the function said."""
        paths, tree = jax.tree_util.tree_flatten_with_path(self._params)
        leaves, learned = [leaf for _, leaf in paths], self._weights()
        moving = [i for i, (path, _) in enumerate(paths) if _name(path) in learned]

        def function(weights: list[Any], *xs: Any) -> list[Any]:
            whole = list(leaves)
            for i, w in zip(moving, weights, strict=True):
                whole[i] = w
            return self._leaves(self._function(jax.tree.unflatten(tree, whole), *xs))

        with self._guard(feeds, f"the gradients of {self._title}"):
            ys, pull = jax.vjp(jax.jit(function), [jnp.asarray(leaves[i]) for i in moving], *map(jnp.asarray, feeds))
            by_weights, *by_inputs = pull([jnp.asarray(c, y.dtype) for c, y in zip(cotangents, ys, strict=True)])
            found = {n: np.asarray(g, np.float32) for n, g in zip(self._weights(), by_weights, strict=True)}
            return [np.asarray(g) for g in by_inputs], self._places.arranged(found)

    def _weights(self) -> dict[str, Any]:
        """The floating-point leaves of the parameters, by their paths: the names that the export gives them."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self._params)
        return {
            _name(path): leaf
            for path, leaf in leaves
            if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and _name(path) not in self._still
        }

    def _values(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(w) for name, w in self._weights().items()}

    def _leaves(self, result: Any) -> list[Any]:
        leaves = jax.tree.leaves(result)
        if not leaves or not all(hasattr(y, "shape") for y in leaves):
            raise UsageError(f"{self._title} gives no arrays: only functions that give arrays can be compared")
        return leaves

    def _guard(self, feeds: list[np.ndarray], what: str = "") -> Any:
        return _guarded(f"{what or self._title} failed on {described(feeds)}")


@contextlib.contextmanager
def _guarded(what: str) -> Iterator[None]:
    with guarded(what), jax.default_matmul_precision("highest"):
        yield


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "weight"


def _real(y: Any) -> Any:
    return np.float32 if jnp.issubdtype(y.dtype, jnp.floating) else y.dtype
