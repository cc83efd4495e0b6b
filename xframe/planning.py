"""From what a user asks for to a plan: which lowering each convolution site must use."""

import json
import os
from collections.abc import Iterable

from xframe import registry
from xframe.errors import Unsupported, UsageError
from xframe.types import ConvSite, Device, Plan

AUTO = "auto"


def plan(label: str, sites: Iterable[ConvSite], device: Device, fallback: str | None = None) -> Plan:
    """The plan for ``label``: ``auto``, a lowering's name, or the path of a plan's JSON file.

    Parameters
    ----------
    sites : all convolutions of the network; equal ones are planned once.
    fallback : lowering for the sites that the asked one refuses; the plan records them with the reason.

    Raises
    ------
    Unsupported
        Sites are refused and there is no fallback, or it refuses them too.
    UsageError
        The name is unknown, or the file is no plan for these sites.
    Unavailable
        The compiler that the lowerings need is not installed.
    """
    sites = list(dict.fromkeys(sites))
    if label == AUTO:
        return Plan(AUTO)
    if label.endswith(".json"):
        return _from_file(label, sites)
    name = registry.resolve(registry.LOWERINGS, label, "lowering")
    chosen = registry.load(registry.LOWERINGS, name)
    refused = {s: why for s in sites if (why := chosen.refuses(s, device))}
    if refused and fallback is None:
        reasons = "; ".join(f"{site.key}: {why}" for site, why in refused.items())
        raise Unsupported(
            f"{name} refuses {len(refused)} of {len(sites)} convolutions ({reasons}); "
            "name another lowering for those with --fallback"
        )
    second = registry.resolve(registry.LOWERINGS, fallback, "lowering") if refused and fallback else ""
    for site in refused:
        why = registry.load(registry.LOWERINGS, second).refuses(site, device)
        if why:
            raise Unsupported(f"both {name} and its fallback {second} refuse {site.key}: {refused[site]}; {why}")
    lowerings = tuple((s, second if s in refused else name) for s in sites)
    return Plan(name, lowerings, tuple((s, f"{second}, because {name} refuses: {why}") for s, why in refused.items()))


def _from_file(path: str, sites: list[ConvSite]) -> Plan:
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
    return Plan(given.label, tuple((s, named[s]) for s in sites), given.fallback)
