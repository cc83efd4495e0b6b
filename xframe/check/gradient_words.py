"""What is wrong with a gradient, in words: its sign, its scale, what is missing of it, and where that begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from xframe.equivalence.graph import Graph
from xframe.equivalence.reference import Judged

#: A gradient is called zero in parts when so much of it is.
SOME = 0.05


@dataclass(frozen=True)
class Fault:
    """``kind`` is the same for faults that one cause explains; ``text`` follows on "the gradient of w in b"."""

    kind: str
    text: str


def fault(got: np.ndarray, want: Judged) -> Fault:
    """How a gradient that is beyond its bound differs from the exact one."""
    exact, bound = want.value, want.bound
    if got.shape != exact.shape:
        return Fault("shape", f"has shape {got.shape}, the weight has {exact.shape}")
    for what, bad in (("is not finite", ~np.isfinite(got)), ("can't be judged", ~np.isfinite(exact + bound))):
        if bad.any():
            at = tuple(map(int, np.argwhere(bad)[0]))
            return Fault(what, f"{what} at {list(at)}: {got[at]:.6g}, expected {exact[at]:.6g}")
    seen = np.abs(exact) > bound  # what can be told from zero
    if not got.any() and seen.any():
        return Fault("is zero", "is zero: is it cut off from the loss (detach, stop_gradient)?")
    off = np.abs(got - exact)
    factor = float(np.vdot(got, exact) / np.vdot(exact, exact)) if exact.any() else 0.0
    if seen.any() and factor and (np.abs(got - factor * exact) <= 2 * max(1.0, abs(factor)) * bound).all():
        if abs(factor + 1) < 1e-3:
            return Fault("has the wrong sign", "has the wrong sign")
        kind = f"is {factor:.3g} times the exact one"
        return Fault(kind, kind)
    missing = (got == 0) & seen
    if missing.sum() > SOME * got.size and (off <= bound)[~missing].all():
        text = f"is zero in {missing.sum()} of {got.size} elements, where it should not be: is a part of it cut off?"
        return Fault("is zero in parts", text)
    at = tuple(map(int, np.unravel_index(np.argmax(off / bound), off.shape)))
    text = (
        f"is wrong: {got[at]:.6g} at {list(at)}, expected {exact[at]:.6g} +- {bound[at]:.2g}; "
        f"{(off > bound).sum()} of {got.size} elements are beyond their bounds"
    )
    return Fault("is wrong", text)


def origin(graph: Graph, wrong: Sequence[str], right: Collection[str]) -> str:
    """Where gradients go wrong on their way back: between the last wrong one and the next right ones.

    Parameters
    ----------
    wrong, right
        Inputs and weights of ``graph``; the wrong ones from its outputs on.
    """
    nodes = graph.needed()
    start = next((n for name in wrong for n in reversed(nodes) if name in n.inputs), None)
    if start is None:
        return ""
    passed, ends, reached = [start.name], [], set(start.outputs)
    for node in nodes:
        if node is not start and reached.intersection(node.inputs):
            if any(name in right for name in node.inputs):
                ends.append(node.name)
            else:
                passed.append(node.name)
                reached.update(node.outputs)
    after = f"up to {_listed(ends)} it is right" if ends else "from the outputs on"
    return f" (on the way back {after}; look at {_listed(passed)})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
