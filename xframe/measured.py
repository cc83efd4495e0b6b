"""One job on its way to a measurement: its worker, and what is known of it so far."""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xframe import environment
from xframe.errors import Mismatch, NotHonoured, WorkerDied, XframeError
from xframe.jobs import Budget, Job
from xframe.results import FOREIGN, Measurement
from xframe.types import Outcome, Profile, SiteRecord, gpu_index
from xframe.worker import wire
from xframe.worker.device_clock import UNGATED
from xframe.worker.host import Worker

if TYPE_CHECKING:
    from xframe.equivalence.verdict import Verdict


@dataclass
class Row:
    """What may be done to it in turn: open, visit, verify again, profile, close."""

    job: Job
    budget: Budget
    worker: Worker | None = None
    stopped: bool = False
    rounds: list[tuple[float, ...]] = field(default_factory=list)
    device_rounds: list[tuple[float, ...]] = field(default_factory=list)
    outputs: list[list[np.ndarray]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    sites: tuple[SiteRecord, ...] = ()
    profiles: list[Profile] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    unfaithful: NotHonoured | None = None
    verdicts: "list[Verdict]" = field(default_factory=list)
    peak: int | None = None
    facts: dict[str, Any] = field(
        default_factory=lambda: {"visits": [], "warmups": [], "settled": [], "foreign_load": []}
    )
    notes: list[str] = field(default_factory=list)
    profiled: int = 0
    verified: int = 0  # rounds
    processes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, cmd: str, limit: float, **fields: Any) -> dict[str, Any]:
        assert self.worker is not None
        reply = self.worker.call(cmd, limit, **fields)
        self.peak = reply["peak_bytes"]
        return reply

    def run(self, feed: Sequence[np.ndarray]) -> list[np.ndarray]:
        assert self.worker is not None
        outputs, reply = self.worker.run(feed, self.budget.run_limit)
        self.peak = reply["peak_bytes"]
        self.seconds.setdefault("first", reply["first_s"])
        return outputs

    def open(self) -> None:
        """Start the worker, compile, run every feed once, verify. Runs in a thread of its own."""
        opening, case = self.job.opening(), self.job.case
        # What serves a GPU (its launches, the driver's threads, compilers) is not what is compared by threads.
        cpus = environment.pinned_cpus(case.threads) if case.device == "cpu" else None
        if cpus is not None and len(cpus) < case.threads:
            self.note(f"{case.threads} threads on the {len(cpus)} CPUs that this process may use")
        with self.lock:
            if self.stopped:
                raise WorkerDied("the measurement was stopped")
            self.worker = self.job.start(cpus)
        reply = self.call("open", self.budget.open_limit, **opening)
        self.seconds.update(reply["seconds"])
        self.sites = wire.sites_of(reply["sites"])
        self.processes += 1
        self.facts.update(reply["environment"], starts_at_once=self.budget.starts, processes=self.processes)
        if case.device != "cpu":
            self.facts["gpu"] = environment.gpu_device(gpu_index(case.device)).name
        for note in reply["notes"]:
            self.note(note)
        self.outputs = [self.run(feed) for feed in self.job.feeds]
        self.verify("before")

    def open_again(self) -> None:
        """As :meth:`open`, in a process that knows nothing of the one before."""
        self.close()
        self.open()

    def note(self, text: str) -> None:
        """Keep a note, once: each process of a row may have it."""
        if text not in self.notes:
            self.notes.append(text)

    def verify(self, when: str) -> None:
        """Raises Mismatch when the outputs ignore their inputs, or are not what the judge expects."""
        first, *others = self.outputs
        if self.job.inputs_matter and any(all(map(np.array_equal, first, x)) for x in others):
            raise Mismatch(f"{when} timing: the outputs are the same for different inputs")
        verdict = self.job.judge(self.outputs, self.sites)
        self.verdicts.append(verdict)
        if not verdict.ok:
            raise Mismatch(f"{when} timing: {verdict.reason}")

    def visit(self, number: int) -> None:
        """Time it once. ``number`` counts the visits over all rows."""
        b = self.budget
        fields = {k: getattr(b, k) for k in ("min_samples", "min_seconds", "max_seconds", "noise")}
        on_gpu, limit = self.job.case.device != "cpu", b.run_limit + b.max_seconds
        with contextlib.closing(environment.gpu_states(self.job.case.device)) as states:
            next(states)  # opens the driver, so that it answers at once when it is asked again
            busy, start = environment.busy_seconds(), time.monotonic()
            reply = self.call("time", limit, **fields)
            state = next(states)  # of a GPU that was busy until now: behind the gates of what follows it would be idle
        by_device = self.call("time_by_device", limit, longest=b.min_seconds) if on_gpu else {"cpu_s": 0.0}
        after, wall = environment.busy_seconds(), time.monotonic() - start
        if busy is not None and after is not None:
            used = reply["cpu_s"] + by_device["cpu_s"]
            self.facts["foreign_load"].append(round(max(0.0, after - busy - used) / wall, 3))
        self.rounds.append(tuple(reply["seconds"]))
        self.facts["visits"].append(number)
        self.facts["warmups"].append(reply["warmups"])
        self.facts["settled"].append(reply["settled"])
        if on_gpu:
            self.facts.setdefault("gpu_states", []).append(state)
            self._keep_device_times(by_device)

    def _keep_device_times(self, reply: dict[str, Any]) -> None:
        """One median is of times that were taken alike: those behind a gate, where a row has both."""
        times, clock = tuple(reply.get("device_seconds", ())), reply.get("device_clock")
        known = self.facts.get("device_clock")
        if why := reply.get("no_device_time"):
            self.note(f"no {'more ' if any(self.device_rounds) else ''}times by the device's own clock: {why}")
        if clock and known and clock["how"] != known["how"]:
            self.note(f"of some visits there are no times by the device's own clock, as those were {UNGATED}")
            if clock["how"] == UNGATED:
                times, clock = (), known
            else:
                self.device_rounds = [()] * len(self.device_rounds)
        self.device_rounds.append(times)
        if clock:
            self.facts["device_clock"] = clock

    def keep_verified(self) -> None:
        """Forget the rounds after which the outputs were not looked at any more, and say how many are left."""
        visits = ("visits", "warmups", "settled", "foreign_load", "gpu_states")
        for of_rounds in (
            self.rounds,
            self.device_rounds,
            *(self.facts[name] for name in visits if name in self.facts),
        ):
            del of_rounds[self.verified :]
        self.notes.append(f"interrupted after {self.verified} of {self.budget.rounds} rounds")

    def verify_again(self) -> None:
        """Check the outputs of the last timed step, and that the other inputs still give theirs."""
        assert self.worker is not None
        last = self.worker.fetch(self.budget.run_limit)
        self.outputs = [*(self.run(feed) for feed in self.job.feeds[:-1]), last]
        self.verify("after")
        self.verified = len(self.rounds)
        if len(self.job.feeds) > 1:
            self.run(self.job.feeds[-1])  # bound for what is timed next

    def profile(self, passes: int) -> None:
        """More profiled steps. They may fail without costing the row, unless they show other kernels than planned."""
        try:
            reply = self.call("profile", passes * self.budget.run_limit, passes=passes)
            found = wire.profiles_of(reply["profiles"])
            self.profiles += found
            self.notes += dict.fromkeys(p.note for p in found if p.note and p.note not in self.notes)
            self.plain += reply["plain"]
            taken = (len(self.rounds), len(reply["profiles"]), len(reply["plain"]))
            self.facts.setdefault("profiled", []).append(taken)  # so many passes and steps after so many rounds
            self.profiled += 1
        except NotHonoured as e:
            self.unfaithful = e
        except XframeError as e:
            self.notes.append(f"no profile: {e}")
            if self.over and len(self.rounds) < self.budget.rounds:
                self.notes.append(f"{len(self.rounds)} of {self.budget.rounds} rounds: its process died in a profile")

    @property
    def over(self) -> bool:
        """Whether nothing more can be measured: its kernels are not those that were planned, or its process is gone."""
        return self.unfaithful is not None or self.worker is None or self.worker.dead

    def result(self, error: BaseException | None = None) -> Measurement:
        """What is known of the row, closed by ``error`` or well."""
        outcome, reason = Outcome.OK, ""
        if error is not None:
            outcome = error.outcome if isinstance(error, XframeError) else Outcome.FAILED
            reason = str(error) if isinstance(error, XframeError) else f"{type(error).__name__}: {error}"
        if outcome in (Outcome.FAILED, Outcome.TIMEOUT) and self.worker is not None:
            self.facts["stderr"] = self.worker.log()
        if unsettled := self.facts["settled"].count(False):
            self.notes.append(
                f"{unsettled} of {len(self.rounds)} visits ended at their cap, before the noise was down to its target"
            )
        if (foreign := max(self.facts["foreign_load"], default=0.0)) > FOREIGN:
            self.notes.append(f"other processes used up to {foreign:.1f} CPUs while it was timed: times are too long")
        slowed = [hit for state in self.facts.get("gpu_states", ()) if (hit := environment.throttled(state))]
        if slowed:
            why = ", ".join(sorted(set().union(*slowed)))
            visits = f"{len(slowed)} of {len(self.rounds)} visits"
            self.notes.append(f"the GPU held its clocks down ({why}) after {visits}: times are too long")
        worst = max(self.verdicts, key=lambda v: v.ratio if v.ratio is not None else float("inf"), default=None)
        return Measurement(
            case=self.job.case,
            outcome=outcome,
            reason=reason,
            rounds=tuple(self.rounds),
            seconds=self.seconds,
            sites=self.sites,
            profiles=tuple(self.profiles),
            plain=tuple(self.plain),
            error=worst.error if worst else None,
            error_bound=worst.bound if worst else None,
            error_ratio=worst.ratio if worst else None,
            peak_bytes=self.peak,
            environment=self.facts,
            notes=tuple(self.notes),
            device_rounds=tuple(self.device_rounds) if any(self.device_rounds) else (),
        )

    def kill(self) -> None:
        """End the worker, or keep it from starting. Safe while another thread is in :meth:`open`."""
        with self.lock:
            self.stopped = True
        if self.worker is not None:
            self.worker.kill()

    def close(self) -> None:
        """Let the worker end, and free what it held."""
        if self.worker is not None:
            self.worker.close()
