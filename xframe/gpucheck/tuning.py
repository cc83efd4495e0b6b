"""A short run of ``xframe tune``, within a step's time."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from xframe.errors import XframeError
from xframe.gpucheck import words
from xframe.gpucheck.journal import Journal
from xframe.gpucheck.settings import LOGS, TUNING, Result, Settings, Step, convolutions, site_step
from xframe.registry import LOWERINGS

#: How many schedules are tried; seconds to end in.
TRIALS, GRACE = 64, 15.0


def tuning(settings: Settings, batch: int, share: float) -> Step:
    """Its logs are as a repository keeps them, and stay when it is stopped."""
    return Step(TUNING, share, lambda place, limit: _run(settings, batch, place, limit))


def _run(settings: Settings, batch: int, place: Path, limit: float) -> Result:
    logs = place.parent / LOGS
    command = [sys.executable, "-m", "xframe.cli", "tune", "--model", settings.model, "--device", settings.device]
    command += ["--batch", str(batch), "--trials", str(TRIALS), "-o", str(logs)]
    if lowerings := _worth(settings, batch, Journal(place.parent)):
        command += ["--lowering", ",".join(lowerings)]
    facts: dict[str, Any] = {"command": command}
    with (
        open(place / "output.txt", "w", encoding="utf-8") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as running,
    ):
        try:
            code = running.wait(max(1.0, limit - GRACE))
        except subprocess.TimeoutExpired:
            code, facts["ended"] = 0, f"stopped after {limit - GRACE:.0f} s"
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.wait(GRACE / 2)
                running.kill()
    said = (place / "output.txt").read_text(encoding="utf-8", errors="replace")
    if code:
        raise XframeError(f"{' '.join(command[1:])} ended with {code}: {said.strip()[-1000:]}")
    kept = sorted(p.parent.relative_to(logs).as_posix() for p in logs.rglob("meta.json")) if logs.is_dir() else []
    return (), {**facts, "output": said[-4000:], "logs": kept}


def _worth(settings: Settings, batch: int, journal: Journal) -> list[str]:
    """The lowerings that were TVM's fastest at some convolution, which the little time is for; none: not known yet."""
    found = [journal.known(site_step(name, batch)) for name in convolutions(settings)]
    best = (words.fastest([r for r in one.rows if r["lowering"] in LOWERINGS], "tvm") for one in found if one)
    return list(dict.fromkeys(filter(None, best)))
