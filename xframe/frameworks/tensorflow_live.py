"""A user's Keras model, ``tf.function`` or ``tf.Module``: run, differentiated, and exported through tf2onnx."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xframe.errors import Unsupported, UsageError, XframeError
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
from xframe.frameworks.tensorflow import network, tf  # it sets what TensorFlow reads at its import
from xframe.frameworks.tensorflow_export import convert
from xframe.types import ModelSpec

_ZERO = tf.UnconnectedGradients.ZERO


class Model:
    """See :class:`xframe.protocols.Live`. A Keras model runs as its call without ``training`` does: for inference."""

    def __init__(self, thing: Any):
        self.notes: Sequence[str] = ()
        self._thing = thing
        self._shapes: list[tuple[int | None, ...]] | None = None
        self._places = Places()
        self._own: Mapping[str, Any] = {}  # variables that the thing does not list itself
        if isinstance(thing, tf.keras.Model | tf.keras.Layer):
            backend = tf.keras.config.backend()
            if backend != "tensorflow":
                raise Unsupported(
                    f"the Keras model {thing.name} runs on {backend}: start with KERAS_BACKEND=tensorflow"
                )
            self.kind, called = "Keras model", thing.name
            symbolic = getattr(thing, "inputs", None) or []
            self._shapes = [tuple(x.shape) for x in symbolic] or None
            self._call: Callable[..., Any] = thing
            if symbolic:  # takes one structure; others take arrays one by one
                self._call = lambda *xs: thing(xs[0] if len(xs) == 1 else list(xs))
        else:
            self.kind, self._call, signature = _function(thing)
            called = getattr(thing, "name", None) or getattr(thing, "__name__", type(thing).__name__)
            self._shapes = signature
        self._title = f"the {self.kind} {called}"

    @classmethod
    def from_spec(cls, spec: ModelSpec, weights: Mapping[str, Any], batch: int) -> "Model":
        """Input NHWC. Raises UsageError when the weights do not fit the spec."""
        values = {
            name: tf.Variable(w, name=name, trainable=not name.endswith((".mean", ".var")))
            for name, w in common.channels_last(spec, weights).items()
        }
        shape = common.channels_last_shape((batch, *spec.input))
        # Eager: as a graph, a grouped convolution of variables is fused with its bias, which a CPU's kernels can't do.
        made = cls(lambda x: network(spec, values, x))
        made._shapes = [shape]
        made._own = values
        return made

    def shapes(self) -> list[tuple[int | None, ...]] | None:
        """None where neither a Keras model was built nor a signature given."""
        return self._shapes

    def run(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        """Raises XframeError with what the model said."""
        with self._untouched(feeds):
            return [_array(y) for y in self._outputs(self._tensors(feeds))]

    def export(self, feeds: list[np.ndarray]) -> Any:
        """Raises XframeError with what the model or tf2onnx said."""
        count = len(self.run(feeds))
        inputs = {name: x.shape for name, x in zip(input_names(len(feeds)), feeds, strict=True)}
        weights = {name: v.numpy() for name, v in self._all_weights(feeds).items()}
        model = None
        if self.kind == "Keras model":
            with contextlib.suppress(XframeError):  # an operator that wants its weights constant
                model = self._converted_with_weights_apart(feeds, inputs, output_names(count))
        if model is None:
            with self._untouched(feeds, f"the conversion by tf2onnx of {self._title}"):
                model = convert(lambda *xs: self._fresh(xs), inputs, {}, output_names(count))
        self._places = adopt(model.graph, weights)
        return model

    def place(self, constants: Mapping[str, np.ndarray]) -> None:
        """See :class:`xframe.protocols.Live`."""
        self._places = located(constants, {name: v.numpy() for name, v in self._all_weights([]).items()})

    def _converted_with_weights_apart(self, feeds: list[np.ndarray], inputs: Any, outputs: list[str]) -> Any:
        """Weights go through the conversion as inputs: tf2onnx copies constants in each of its passes."""
        variables = [*self._thing.trainable_variables, *self._thing.non_trainable_variables]
        apart = {v.path: v.numpy() for v in variables if v.dtype == "float32"}
        cut = len(self._thing.trainable_variables)

        def function(*args: Any) -> list[Any]:
            xs, ws = args[: len(feeds)], dict(zip(apart, args[len(feeds) :], strict=True))
            values = [ws.get(v.path, v.value) for v in variables]
            given = (list(xs) if len(xs) > 1 else xs[0],) if self._shapes else xs
            found, _ = self._thing.stateless_call(values[:cut], values[cut:], *given)
            return [tf.identity(y) for y in tf.nest.flatten(found)]

        with self._untouched(feeds, f"the conversion by tf2onnx of {self._title}"):
            return convert(function, inputs, apart, outputs)

    def gradients(
        self, feeds: list[np.ndarray], cotangents: list[np.ndarray]
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """By its trainable variables. Raises XframeError with what the model said."""
        with self._untouched(feeds, f"the gradients of {self._title}"):
            weights, xs = self._weights(feeds), self._tensors(feeds)

            def compute() -> list[Any]:
                with tf.GradientTape() as tape:
                    tape.watch(xs)
                    ys = self._outputs(xs)
                    total = tf.add_n(
                        [tf.reduce_sum(y * tf.cast(c, y.dtype)) for y, c in zip(ys, cotangents, strict=True)]
                    )
                return tape.gradient(total, [*xs, *weights.values()], unconnected_gradients=_ZERO)

            try:
                found = compute()
            except tf.errors.InvalidArgumentError:  # no kernel on a CPU (groups, dilation); the compiler has one
                found = tf.function(compute, jit_compile=True, autograph=False)()
            arrays = [_array(g) for g in found]
            named = dict(zip(weights, arrays[len(xs) :], strict=True))
            return arrays[: len(xs)], self._places.arranged(named)

    def _tensors(self, feeds: list[np.ndarray]) -> list[Any]:
        return [tf.constant(x) for x in feeds]

    def _fresh(self, xs: Sequence[Any]) -> list[Any]:
        return [tf.identity(y) for y in tf.nest.flatten(self._call(*xs))]

    def _outputs(self, xs: Sequence[Any]) -> list[Any]:
        ys = tf.nest.flatten(self._call(*xs))
        if not ys or not all(tf.is_tensor(y) for y in ys):
            raise UsageError(f"{self._title} gives no tensors: only models that give tensors can be compared")
        return ys

    def _variables(self, feeds: list[np.ndarray]) -> list[Any]:
        if self.kind == "Keras model":
            return [v.value for v in self._thing.variables]
        concrete = getattr(self._thing, "get_concrete_function", None)
        if concrete is not None and not hasattr(self._thing, "structured_input_signature"):
            return list(concrete(*(tf.TensorSpec(x.shape, tf.float32) for x in feeds)).variables)
        return list(getattr(self._thing, "variables", self._own.values()))

    def _all_weights(self, feeds: list[np.ndarray]) -> dict[str, Any]:
        """The float variables by name; several of one name are counted."""
        if self.kind == "Keras model":
            return {v.path: v.value for v in self._thing.variables if v.dtype == "float32"}
        found: dict[str, Any] = dict(self._own)
        for v in () if found else self._variables(feeds):
            name = v.name.removesuffix(":0")
            if v.dtype == tf.float32:
                found[name if name not in found else f"{name}_{len(found)}"] = v
        return found

    def _weights(self, feeds: list[np.ndarray]) -> dict[str, Any]:
        """Those of them that are trained."""
        if self.kind == "Keras model":
            return {v.path: v.value for v in self._thing.trainable_variables if v.dtype == "float32"}
        return {name: v for name, v in self._all_weights(feeds).items() if v.trainable}

    @contextlib.contextmanager
    def _untouched(self, feeds: list[np.ndarray], what: str = "") -> Iterator[None]:
        """Its untrained variables (moving statistics, counters) are afterwards what they were."""
        with guarded(f"{what or self._title} failed on {described(feeds)}"):
            kept = [(v, v.numpy()) for v in self._variables(feeds) if not v.trainable]
            try:
                yield
            finally:
                for v, value in kept:
                    v.assign(value)


def _function(thing: Any) -> tuple[str, Callable[..., Any], list[tuple[int | None, ...]] | None]:
    """What a thing of TensorFlow's is, how it is called, and the shapes in its signature."""
    served = getattr(thing, "signatures", None)
    if served and "serving_default" in served:
        _, call, shapes = _function(served["serving_default"])
        return "SavedModel", call, shapes
    concrete = getattr(thing, "structured_input_signature", None)
    if concrete is not None:
        positional, keywords = concrete
        specs = [*tf.nest.flatten(positional), *keywords.values()]
        if keywords and not positional:
            return "concrete function", lambda *xs: thing(**dict(zip(keywords, xs, strict=True))), _specified(specs)
        return "concrete function", thing, _specified(specs)
    if not callable(thing):
        raise UsageError(
            f"a {type(thing).__name__} can't be run: give a Keras model, a tf.function, or a callable tf.Module"
        )
    function = thing if hasattr(thing, "get_concrete_function") else getattr(thing, "__call__", None)  # noqa: B004
    kind = "tf.Module" if isinstance(thing, tf.Module) else "tf.function"
    return kind, thing, _specified(getattr(function, "input_signature", None))


def _specified(specs: Any) -> list[tuple[int | None, ...]] | None:
    flat = tf.nest.flatten(specs) if specs else []
    if not flat or not all(isinstance(s, tf.TensorSpec) and s.shape.rank is not None for s in flat):
        return None
    return [tuple(s.shape) for s in flat]


def _array(y: Any) -> np.ndarray:
    y = tf.convert_to_tensor(y)
    return (tf.cast(y, tf.float32) if y.dtype.is_floating else y).numpy()
