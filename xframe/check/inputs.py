"""The inputs of a check: given in any of many ways, or seeded."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xframe.check.input_files import ADVICE, Many, read
from xframe.errors import UsageError

Feed = list[np.ndarray]
Shapes = Sequence[tuple[int | None, ...]]


def feeds(
    given: Any,
    shapes: Shapes | None,
    names: Sequence[str] | None = None,
    count: int = 2,
    seed: int = 0,
    value_range: tuple[float, float] | None = None,
) -> tuple[list[Feed], str]:
    """The feeds of a model, and what they are in words.

    Parameters
    ----------
    given
        None for seeded inputs; else one feed or several: an array, a list, tuple or dict of arrays (one feed), a list
        of such, a generator or function that gives such, the path of an ``.npy``, ``.npz`` or ``.pb`` file, of a
        folder with ``input_0.pb``, or of a folder with several of those (``test_data_set_0``). Never unpickled.
    shapes
        Of the inputs, in the model's own order and layout, None for a free size. None as a whole: not known, every
        shape is accepted.
    names
        Of the inputs, by which dicts and npz files are ordered.
    count
        How many seeded feeds are made, and how many are taken of a generator at most.
    seed, value_range
        Seeded inputs are N(0, 1), or uniform in ``value_range``.

    Returns
    -------
    feeds, words
        Float32 arrays; other numbers are cast, which the words tell.

    Raises
    ------
    UsageError
        Nothing that could be inputs, a file that can't be read, a wrong number or shape of arrays, a value that is not
        finite.
    """
    if count < 1:
        raise UsageError(f"{count} inputs were asked for: at least 1 is needed")
    if given is None:
        if shapes is None:
            raise UsageError(f"the shapes of the model's inputs are not known: {ADVICE}")
        return _seeded(shapes, names, count, seed, value_range)
    if value_range is not None:
        raise UsageError("a value range is for seeded inputs, but inputs are given: leave one of the two out")
    casts: dict[str, None] = {}
    known = len(shapes) if shapes is not None else len(names) if names is not None else None
    found = [_feed(item, shapes, names, casts) for item in _items(settled(given, count), known)]
    words = f"{len(found)} given input{'s' * (len(found) != 1)}{_origin(given)}"
    return found, "; ".join([words, *casts])


def settled(given: Any, count: int = 2) -> Any:
    """``given`` with files read and generators run, at most ``count`` steps: it can be given to :func:`feeds` again.

    Raises
    ------
    UsageError
        A file that can't be read, a generator that fails or gives nothing.
    """
    if isinstance(given, str | Path):
        return read(Path(given))
    if isinstance(given, Mapping | Many) or _array_like(given):
        return given
    if isinstance(given, list | tuple):
        return [settled(x) if isinstance(x, str | Path) else x for x in given]
    try:
        if callable(given):
            return settled(given(), count)
        if isinstance(given, Iterable):
            found = list(itertools.islice(given, count))
            return Many(found if found else _nothing())
    except UsageError:
        raise
    except Exception as e:  # somebody else's code
        raise UsageError(f"what makes the inputs failed: {type(e).__name__}: {e}") from e
    raise UsageError(f"a {type(given).__name__} can't be inputs: {ADVICE}")


def _nothing() -> list[Any]:
    raise UsageError("the generator of inputs gave nothing: at least one input is needed")


def _origin(given: Any) -> str:
    if isinstance(given, str | Path):
        return f" of {given}"
    return " of a generator" if callable(given) or isinstance(given, Iterator) else ""


def _seeded(
    shapes: Shapes, names: Sequence[str] | None, count: int, seed: int, value_range: tuple[float, float] | None
) -> tuple[list[Feed], str]:
    fixed = [tuple(n for n in shape if n is not None) for shape in shapes]
    for i, (shape, sizes) in enumerate(zip(shapes, fixed, strict=True)):
        if len(sizes) < len(shape):
            raise UsageError(f"input {_name(i, names)} is {_words(shape)}: give inputs, or the sizes that are free")
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
    if value_range is None:
        law = "of N(0, 1)"
        draw = lambda rng, shape: rng.standard_normal(shape)  # noqa: E731
    else:
        try:
            low, high = (float(x) for x in value_range)
        except (TypeError, ValueError):
            raise UsageError(f"the value range {value_range!r} is no pair of numbers") from None
        if not (np.isfinite([low, high]).all() and low < high):
            raise UsageError(f"the value range must go from a number to a larger one, it is [{low:g}, {high:g}]")
        law = f"uniform in [{low:g}, {high:g}]"
        draw = lambda rng, shape: rng.uniform(low, high, shape)  # noqa: E731
    # One generator for each array, as those of a registered model's measurements.
    found = [
        [draw(np.random.default_rng(seed + k + count * i), s).astype(np.float32) for i, s in enumerate(fixed)]
        for k in range(count)
    ]
    return found, f"{count} seeded input{'s' * (count != 1)} {law}, seed {seed}"


def _items(given: Any, known: int | None) -> list[Any]:
    """The feeds in what was given. A list of arrays is one feed, but several where the model has one input."""
    if isinstance(given, Mapping) or _array_like(given):
        return [given]
    if isinstance(given, Many) or not all(_array_like(x) for x in given):
        items = list(itertools.chain(*(x if isinstance(x, Many) else [x] for x in given)))
    else:
        items = list(given) if known == 1 else [given]
    if not items or (isinstance(items[0], list) and not items[0]):
        raise UsageError(f"the list of inputs is empty: {ADVICE}")
    return items


def _array_like(x: Any) -> bool:
    """An array of any framework; a nested list of numbers is none."""
    return hasattr(x, "__array__")


def _feed(item: Any, shapes: Shapes | None, names: Sequence[str] | None, casts: dict[str, None]) -> Feed:
    if isinstance(item, Mapping):
        item = _ordered(item, names)
    elif _array_like(item):
        item = [item]
    elif not isinstance(item, list | tuple):
        raise UsageError(f"a {type(item).__name__} among the inputs: {ADVICE}")
    if shapes is not None and len(item) != len(shapes):
        called = f" ({', '.join(names)})" if names else ""
        raise UsageError(f"the model takes {len(shapes)} inputs{called}, and {len(item)} arrays are given")
    found = [_array(x, _name(i, names), casts) for i, x in enumerate(item)]
    for i, (x, shape) in enumerate(zip(found, shapes or (), strict=False)):
        if len(shape) != x.ndim or any(n is not None and n != m for n, m in zip(shape, x.shape, strict=True)):
            raise UsageError(f"input {_name(i, names)} must be {_words(shape)}, the given one is {_words(x.shape)}")
    return found


def _ordered(arrays: Mapping[str, Any], names: Sequence[str] | None) -> list[Any]:
    """The arrays of a dict or npz file by name; by order where no name fits and the number does."""
    if names is None or set(arrays) == set(names):
        return [arrays[n] for n in (arrays if names is None else names)]
    if not set(arrays) & set(names) and len(arrays) == len(names) and all(re.fullmatch(r"arr_\d+", n) for n in arrays):
        return [arrays[f"arr_{i}"] for i in range(len(names)) if f"arr_{i}" in arrays]
    raise UsageError(f"inputs are given for {', '.join(arrays) or 'nothing'}; the model takes {', '.join(names)}")


def _array(x: Any, name: str, casts: dict[str, None]) -> np.ndarray:
    try:
        found = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    except Exception as e:  # somebody else's class
        raise UsageError(f"input {name}: a {type(x).__name__} can't be read as an array: {e}") from e
    if found.dtype != np.float32:
        if found.dtype.kind not in "fiub" and found.dtype.name != "bfloat16":
            raise UsageError(f"input {name} holds {found.dtype}: give numbers, float32 at best")
        casts[f"cast from {found.dtype} to float32"] = None
        with np.errstate(over="ignore"):
            found = found.astype(np.float32)
    if not np.isfinite(found).all():
        bad = int(np.size(found) - np.isfinite(found).sum())
        raise UsageError(f"input {name} has {bad} values that are NaN or infinite in float32: nothing can be compared")
    return found


def _name(i: int, names: Sequence[str] | None) -> str:
    return names[i] if names and i < len(names) else str(i)


def _words(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if n is None else str(n) for n in shape)}]"
