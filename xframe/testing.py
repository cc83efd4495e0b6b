"""For test suites: a port of a model is guarded by one line.

::

    from xframe.testing import assert_equivalent

    def test_the_port_computes_what_the_original_does():
        assert_equivalent(original(), "exports/port.onnx")
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from xframe.equivalence.result import Check, Comparison, State
from xframe.report import check_words as words

#: Differences of a subject that a message shows.
SHOWN = 5


def assert_equivalent(a: Any, b: Any, *more: Any, allow_unchecked: bool = False, **options: Any) -> Check:
    """Pass if ``b`` (and ``more``) compute the same function as ``a``, as far as a check can tell.

    Parameters
    ----------
    a, b, more
        Anything that :func:`xframe.check_equivalence` takes: live models of PyTorch, TensorFlow and JAX, paths of ONNX
        files, registered models ("alexnet@tensorflow").
    allow_unchecked
        Whether a check that can't tell passes too. By default it fails: unchecked is not passed.
    options
        Those of :func:`xframe.check_equivalence`: ``inputs``, ``levels``, ``runners``, ``layouts``, ...

    Returns
    -------
    Check
        The whole result, to look at more closely.

    Raises
    ------
    AssertionError
        They differ, or nobody can tell. The message holds the verdict, the first layer that differs, the differences in
        words, and the command that shows the rest and shrinks it.
    XframeError
        A model or an option can't be used.

    Examples
    --------
    In a suite of pytest, with every optimisation of ONNX Runtime as a candidate too::

        @pytest.mark.parametrize("runner", ["ort:disabled", "ort:all"])
        def test_port(runner):
            assert_equivalent("model.onnx", build_port(), runners=(runner,), count=3)
    """
    __tracebackhide__ = True  # pytest shows the line of the test, not this one
    from xframe.check.api import check_equivalence

    check = check_equivalence([a, b, *more], **options)
    if check.state is State.EQUIVALENT or (allow_unchecked and check.state is State.UNCHECKED):
        return check
    raise AssertionError("\n".join([*message(check), *_again((a, b, *more), options)]))


def message(check: Check) -> Iterator[str]:
    """What went wrong, line by line."""
    first = check.subjects[0].name if check.subjects else ""
    yield words.headline(check)
    for comparison in check.comparisons:
        yield from _comparison(comparison, first)
    for run in check.runs:
        if run.state is not State.EQUIVALENT:
            yield f"  - {words.conclusion(run, first)}"


def _comparison(comparison: Comparison, first: str) -> Iterator[str]:
    for verdict in comparison.levels:
        if verdict.state is not State.EQUIVALENT:
            start = f"  {comparison.name}: {verdict.level.value} {words.STATES[verdict.state]}: "
            yield words.clean(start + words.why(verdict, comparison))
    row = comparison.first_divergence
    if row is not None:
        yield f"  first that differs: {words.layer(row, comparison.name)}"
        yield f"    {next(words.deviation(row, first, comparison.name))}"
    telling = [d for d in words.sentences(comparison) if not d.harmless]
    for difference in telling[:SHOWN]:
        yield f"  - {words.clean(difference.text)}"
    if telling[SHOWN:]:
        yield f"  - and {len(telling) - SHOWN} more"


#: Option of the library -> flags of the command. Those that a command line can't hold are not in it.
_FLAGS: dict[str, Callable[[Any], list[str]]] = {
    "count": lambda v: ["--count", str(v)],
    "seed": lambda v: ["--seed", str(v)],
    "value_range": lambda v: [] if v is None else ["--range", f"{v[0]!r},{v[1]!r}"],
    "levels": lambda v: ["--level", ",".join(str(getattr(x, "value", x)).replace(" ", "-") for x in v)],
    "runners": lambda v: ["--runner", ",".join(v) or "none"],
    "names": lambda v: _pairs("--map", v),
    "sizes": lambda v: _pairs("--size", v),
    "fold_batchnorm": lambda v: [] if v else ["--keep-batchnorm"],
    "inputs": lambda v: [] if v is None else ["--inputs", os.fspath(v)],
}

#: Options that do not change the verdict.
_MUTE = ("reduce", "folder", "progress", "engines")


def _pairs(flag: str, given: Mapping[str, Any]) -> list[str]:
    return [flag, ",".join(f"{k}={v}" for k, v in given.items())] if given else []


def _again(things: Sequence[Any], options: Mapping[str, Any]) -> list[str]:
    """How to see the rest: a command where all that was given can be written in one, else the option."""
    try:
        subjects = [os.fspath(thing) for thing in things]
        flags = [word for name, value in options.items() if name not in _MUTE for word in _FLAGS[name](value)]
    except (TypeError, KeyError):  # live models, arrays, a generator of inputs
        return ["to shrink it: the same call with reduce=Path('out/')"]
    return [f"to see all of it and shrink it: {shlex.join(['xframe', 'check', *subjects, *flags, '--reduce', 'out/'])}"]
