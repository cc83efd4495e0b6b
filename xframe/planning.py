"""From what a user asks for to a plan: which lowering each convolution site must use, and by which schedules."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from xframe import registry
from xframe.errors import Unavailable, Unsupported, UsageError
from xframe.lowering.variants import refusal
from xframe.schedules import find
from xframe.schedules.device import Identity, identity
from xframe.types import ERROR_BUDGET, NARROW_BUDGET, ConvSite, Device, Plan, Tuned

AUTO, BEST, NONE = "auto", "best", "none"


def plan(
    label: str,
    sites: Iterable[ConvSite],
    device: Device,
    fallback: str | None = None,
    error_budget: float | None = None,
    target: str | None = None,
) -> Plan:
    """The plan for ``label``: ``auto``, a lowering's name, or the path of a plan's JSON file.

    That for ``best`` has no lowerings yet: ``xframe.oracle`` finds them by measuring. No plan has tuned kernels yet,
    not even that of a file which names some: they come from logs, which are checked (:class:`Schedules`).

    Parameters
    ----------
    sites : all convolutions of the network; equal ones are planned once.
    fallback : lowering for the sites that the asked one refuses; the plan records them with the reason.
    error_budget : see ``Plan``; None: that of the plan's file, or else ``ERROR_BUDGET``, or ``NARROW_BUDGET`` where a
        lowering is named whose products are not float32.
    target : see ``Plan``; None: that of the plan's file, or else this machine's.

    Raises
    ------
    Unsupported
        Sites are refused and there is no fallback, or it refuses them too. The target's code does not run here.
    UsageError
        The name is unknown, the file is no plan for these sites, or the target is none.
    Unavailable
        The compiler that the lowerings need is not installed.
    """
    sites, target = list(dict.fromkeys(sites)), _checked(target, device)
    if label == AUTO:
        return Plan(AUTO, target=target)
    if label == BEST:
        return Plan(BEST, error_budget=error_budget or ERROR_BUDGET, target=target)
    if label.endswith(".json"):
        return _from_file(label, sites, device, error_budget, target)
    name = registry.resolve(registry.LOWERINGS, label, "lowering")
    limit = error_budget or budget(name)
    chosen = registry.load(registry.LOWERINGS, name)
    refused = {s: why for s in sites if (why := refusal(chosen, s, device, limit))}
    if refused and fallback is None:
        why = "; ".join(f"{site.key}: {why}" for site, why in refused.items())
        raise Unsupported(
            f"{name} refuses {len(refused)} of {len(sites)} convolutions ({why}); "
            "name another lowering for those with --fallback"
        )
    second = registry.resolve(registry.LOWERINGS, fallback, "lowering") if refused and fallback else ""
    for site in refused:
        why = refusal(registry.load(registry.LOWERINGS, second), site, device, limit)
        if why:
            raise Unsupported(f"both {name} and its fallback {second} refuse {site.key}: {refused[site]}; {why}")
    lowerings = tuple((s, second if s in refused else name) for s in sites)
    reasons = tuple((s, f"{second}, because {name} refuses: {why}") for s, why in refused.items())
    return Plan(name, lowerings, reasons, limit, target)


def budget(*lowerings: str) -> float:
    """The error budget of a plan of these lowerings where none is asked for."""
    narrow = any(registry.LOWERINGS[name].products for name in lowerings)
    return NARROW_BUDGET if narrow else ERROR_BUDGET


def _checked(target: str | None, device: Device) -> str | None:
    """``target``, unless its code can't be made, or can't run, on ``device``."""
    if target is None:
        return None
    try:
        from xframe.lowering.target import Cpu, Gpu
    except ImportError as e:
        raise Unavailable(f"--target {target!r} needs TVM ({e}): pip install 'xframe-eval[tvm]'") from e
    if device.kind == "cpu":
        Cpu(target, 1).check()
        return target
    made, own = (int(arch.removeprefix("sm_") or 0) for arch in (Gpu.named(target).arch, device.arch))
    if own and (made // 10 != own // 10 or made > own):  # machine code is for one generation, and its later versions
        raise Unsupported(
            f"--target {target!r}: code for sm_{made} does not run on {device.name}, which is sm_{own}: leave it out,"
            " or name an architecture of that generation"
        )
    return target


def _from_file(
    path: str, sites: list[ConvSite], device: Device, error_budget: float | None, target: str | None
) -> Plan:
    try:
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
        given = Plan.from_json({"label": os.path.basename(path), "fallback": {}, **data})
    except OSError as e:
        raise UsageError(f"can't read the plan {path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(
            f"{path} is not a plan ({e}); a plan is JSON like "
            '{"label": "mine", "lowerings": {"n1c64h27w27o192k5x5s1x1p2.2.2.2d1x1g1float32": "winograd"}}'
        ) from e
    named = {s: registry.resolve(registry.LOWERINGS, low, "lowering") for s, low in given.lowerings}
    missing = [s.key for s in sites if s not in named]
    if missing:
        raise UsageError(f"the plan {path} names no lowering for {', '.join(missing)}")
    lowerings = tuple((s, named[s]) for s in sites)
    told = given.error_budget if "error_budget" in data else budget(*named.values())
    target = target or _checked(given.target, device)
    return Plan(given.label, lowerings, given.fallback, error_budget or told, target)


class Schedules:
    """Where forced plans take tuned kernels from. What was found for a plan is kept: equal rows use equal schedules.

    Plans on a GPU take what was tuned on its kind, whatever number of ``threads`` the host has.

    Parameters
    ----------
    where
        :data:`AUTO`: the logs of this device; :data:`NONE`: no logs; or the folder that holds them.
    allow_foreign
        Take records of other kinds of machines where this one has none; the notes say so.
    device
        ``cpu``, ``cuda`` or ``cuda:<number>``; or the architecture of a GPU elsewhere, such as ``sm_90``: what was
        tuned on any GPU of it, for ``threads`` multiprocessors.
    """

    def __init__(self, where: str = AUTO, allow_foreign: bool = False, device: str = "cpu"):
        self._where, self._allow_foreign, self._device = where, allow_foreign, device
        self._known: dict[tuple[Plan, int], tuple[tuple[Tuned, ...], tuple[str, ...]]] = {}

    def tuned(self, plan: Plan, threads: int) -> Plan:
        """``plan`` with a record for each of its kernels that has one; as it is where it leaves the choice to TVM."""
        return replace(plan, tuned=self._found(plan, threads)[0])

    def notes(self, plan: Plan, threads: int) -> tuple[str, ...]:
        """What there is to tell of the logs for ``plan``: which were refused and why, or why none was looked at."""
        return self._found(plan, threads)[1]

    def _found(self, plan: Plan, threads: int) -> tuple[tuple[Tuned, ...], tuple[str, ...]]:
        if self._where == NONE or not plan.lowerings:
            return (), ()
        if plan.target is not None:
            note = f"no schedule log is used with the target {plan.target!r}: logs are for this machine's own code"
            return (), (note,)
        key = replace(plan, label="", fallback=(), tuned=()), threads
        if key not in self._known:
            self._known[key] = self._read(*key)
        return self._known[key]

    def _read(self, plan: Plan, threads: int) -> tuple[tuple[Tuned, ...], tuple[str, ...]]:
        roots = None if self._where == AUTO else [Path(self._where)]
        device: Identity | str = self._device
        try:
            device = device if self._device.startswith("sm_") else identity(self._device)
        except Unavailable:  # whoever runs on it says so
            return (), ()
        every = isinstance(device, Identity) and device.kind != "cpu"
        tuned, notes = find.tuned(plan, device, None if every else threads, roots, self._allow_foreign)
        if roots and not tuned and not notes:
            notes = [f"no schedule log in {self._where} is for this machine and a kernel of this plan"]
        return tuple(tuned), tuple(notes)
