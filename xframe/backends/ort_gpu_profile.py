"""Profiled passes of an ONNX Runtime session on a GPU, in a process of their own.

ONNX Runtime tells which node the host was at, and CUPTI which kernels ran and when the host launched them: a kernel is
of the node that the launching thread was at. A process in which CUPTI was used can stay slower afterwards, so the one
that is timed never loads it. A build of ONNX Runtime that records kernels itself does so by CUPTI, too; then its
records are read and there are no others.

``python -m xframe.backends.ort_gpu_profile FOLDER`` is that process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from xframe import errors
from xframe.backends import ort_profile, ort_profiler_cost, profiler_cost
from xframe.backends.cupti_activity import Recorder
from xframe.backends.ort_session import FATAL, Settings
from xframe.errors import XframeError
from xframe.types import Artifact, Profile
from xframe.worker import wire

#: Seconds for a session to be made, and for a pass: less than a worker has by default, so that what hangs costs no more
#: than a profile.
_OPENS, _PASSES = 60, 30
_JOB, _FEEDS, _RESULT, _LOG = "job.json", "feeds.npz", "result.json", "log"


def profiles(settings: Settings, artifact: Artifact, feeds: Sequence[np.ndarray], passes: int) -> list[Profile]:
    """So many profiled passes of one session, each after a step that is not looked at.

    The session is made anew: where cuDNN's algorithms are searched for, the search may end otherwise than that of the
    session which is timed.

    Raises
    ------
    NotHonoured
        A node ran on the CPU.
    Unavailable
        CUPTI is missing here, or refuses.
    XframeError
        The process ended early or not in time, or CUPTI lost records.
    """
    with tempfile.TemporaryDirectory(prefix="xframe-ort-") as folder:
        place = Path(folder)
        job = {"settings": asdict(settings), "artifact": wire.plain(artifact), "passes": passes}
        (place / _JOB).write_text(json.dumps(job), encoding="utf-8")
        wire.save_arrays(str(place / _FEEDS), feeds)
        limit = _OPENS + _PASSES * passes
        with open(place / _LOG, "wb") as log:
            command = [sys.executable, "-m", __spec__.name, folder]
            try:
                code = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=limit)
            except subprocess.TimeoutExpired:
                raise XframeError(
                    f"the process that takes {passes} profiled passes had not ended after {limit} s and was stopped:"
                    " ask for fewer at a time"
                ) from None
        if not (place / _RESULT).exists():
            last = (place / _LOG).read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise XframeError(f"the process that profiles ended with code {code}: {last[:300] or 'it said nothing'}")
        reply = json.loads((place / _RESULT).read_text(encoding="utf-8"))
    if "kind" in reply:
        raise errors.by_kind(reply["kind"], reply["reason"])
    return list(wire.profiles_of(reply["profiles"]))


def main(folder: str) -> None:
    """Do the job that lies in ``folder``, and leave its result there."""
    place = Path(folder)
    job = json.loads((place / _JOB).read_text(encoding="utf-8"))
    ort.set_default_logger_severity(FATAL)
    try:
        artifact = wire.artifact_of(job["artifact"])
        assert artifact is not None
        found = taken(Settings(**job["settings"]), artifact, wire.load_arrays(str(place / _FEEDS)), job["passes"])
        reply: dict[str, Any] = {"profiles": wire.plain(found)}
    except XframeError as e:
        reply = {"kind": type(e).__name__, "reason": str(e)}
    (place / _RESULT).write_text(json.dumps(reply), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # CUDA and CUPTI need not be taken apart


def taken(settings: Settings, artifact: Artifact, feeds: Sequence[np.ndarray], passes: int) -> list[Profile]:
    """The profiles, taken in this process. Raises what :func:`profiles` does.

    What ONNX Runtime adds is the same for each node, and what CUPTI adds for each kernel: a chain of nodes that
    launch one kernel each tells both.
    """
    chain = ort_profiler_cost.chain(settings).open().session
    usual = profiler_cost.typical(lambda: chain.run(None, ort_profiler_cost.FEEDS))  # before CUPTI is there
    profiled, tells_kernels = _profiled(settings)
    recorded = profiled
    recorder: Recorder | None = None
    if not tells_kernels:
        recorder = Recorder()
        recorded, _ = _profiled(settings, recorder)
    found = ort_profile.taken(settings, artifact, feeds, passes, recorder)
    if recorder is not None:
        recorder.close()
    if not all(p.kernels for p in found):
        raise XframeError(f"a step on {settings.device} was profiled, and CUPTI has no kernel of it: try it with nsys")
    node, kernel = (profiled - usual) / ort_profiler_cost.NODES, (recorded - profiled) / ort_profiler_cost.NODES
    costs = (node * ort_profile.on_gpu(p) + kernel * len(p.kernels) for p in found)
    return [replace(p, cost=min(cost, idle(p))) for p, cost in zip(found, costs, strict=True)]


def _profiled(settings: Settings, recorder: Recorder | None = None) -> tuple[float, bool]:
    """Seconds of a run of the chain that is profiled, and whether this build of ONNX Runtime tells kernels itself."""
    with tempfile.TemporaryDirectory(prefix="xframe-ort-") as folder:
        session = ort_profiler_cost.chain(settings).open(str(Path(folder) / "profile")).session
        session.run(None, ort_profiler_cost.FEEDS)
        if recorder is not None:
            recorder.start(time.time_ns)
        seconds = profiler_cost.typical(lambda: session.run(None, ort_profiler_cost.FEEDS))
        if recorder is not None:
            recorder.stop()
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return seconds, any(e["cat"] == "Kernel" for e in events)


def idle(profile: Profile) -> float:
    """Seconds of a pass in which no kernel ran: what profiling costs the host beside a kernel makes no pass longer."""
    left, end = profile.wall, 0.0
    for kernel in sorted(profile.kernels, key=lambda k: k.start):
        left -= max(0.0, kernel.end - max(kernel.start, end))
        end = max(end, kernel.end)
    return left


if __name__ == "__main__":
    main(sys.argv[1])
