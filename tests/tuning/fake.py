"""A runner with times that it makes up, the same for the same point, and small kernels to tune with it."""

import functools
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from xframe.lowering.stage import Epilogue
from xframe.lowering.target import Cpu
from xframe.lowering.tasks import Task
from xframe.lowering.variants import choose
from xframe.registry import LOWERINGS, load
from xframe.tuning.points import CRASHED, OK, Trial
from xframe.tuning.result import Work
from xframe.tuning.search import Spaces
from xframe.tuning.session import tune
from xframe.types import ConvSite

HOST = Cpu.host(2)
#: The spaces of a task, made once: that takes longer than a search among made-up times.
spaces = functools.cache(Spaces)
#: What MetaSchedule's database would have of any point, as far as a log looks at it.
WORKLOAD_LINE, RECORD = '["1", "bW9kdWxl"]', '[[[], []], [0.001], {"kind": "llvm"}, []]'


def task(channels=16, lowering="direct"):
    """The product of a 3x3 convolution of so many channels."""
    site = ConvSite(1, channels, (9, 9), 32, (3, 3), pads=(1, 1, 1, 1))
    variant = choose(load(LOWERINGS, lowering), site, HOST, 0.002)
    return Task.of(lowering, variant, Epilogue(None), "NHWC", HOST)


def work(*tasks, model="net", lowering="direct"):
    return Work(model, 1, lowering, tasks)


def by_hand(task):
    """Made-up seconds of the hand-written schedule: larger for more channels."""
    return 1e-6 * task.variant.site.in_channels


def speed(task, point):
    """Made-up seconds over those by hand: most points are slower, those that unroll by 2 are faster."""
    if point.trace is not None:  # a record, replayed
        return 0.8
    unroll = dict(point.knobs)["unroll"]
    return {1: 1.0, 2: 0.8, 4: 1.3}[unroll] * (1 if point.tile[0] % 2 else 1.01)


def samples(seconds, noise=0.001, count=9):
    """Around ``seconds``, a part ``noise`` of it up and down in turn."""
    return tuple(seconds * (1 + noise * (i % 3 - 1)) for i in range(count))


class FakeRunner:
    """``ratio(task, point)`` gives seconds over those by hand; or what became of the point, a pair (outcome, reason).

    ``asked``: all that was submitted. ``delay``: seconds of a trial, in a thread. ``last``: as many trials, then nobody
    can measure.
    """

    def __init__(self, ratio=speed, width=1, delay=0.0, last=None):
        self.ratio, self.width, self.delay, self.last = ratio, width, delay, last
        self.asked, self.closed, self.most, self._now = [], False, 0, 0
        self._threads = ThreadPoolExecutor(width)

    def submit(self, task, point):
        if self.last is not None and len(self.asked) >= self.last:
            raise self.error
        self.asked.append((task.name, point))
        self._now += 1
        self.most = max(self.most, self._now)
        if self.delay:
            return self._threads.submit(self._trial, task, point)
        future = Future()
        future.set_result(self._trial(task, point))
        return future

    error = KeyboardInterrupt()

    def close(self):
        self.closed = True
        self._threads.shutdown()

    def _trial(self, task, point):
        time.sleep(self.delay)
        self._now -= 1
        found = self.ratio(task, point)
        if isinstance(found, tuple):
            return Trial(point, *found, cpu_s=1.0, where="here")
        baseline = by_hand(task)
        return Trial(
            point, OK, "", samples(found * baseline), samples(baseline), 0.25, "0" * 16, WORKLOAD_LINE, RECORD, 1.0, "x"
        )  # fmt: skip


def crashes(task, point):
    return CRASHED, "killed by SIGSEGV"


def main():
    """Sessions of two kernels: one in this process, several in a fork each. Arguments: FOLDER SEEDS DELAY TRIALS."""
    folder, seeds, delay, trials = Path(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3]), int(sys.argv[4])
    children = []
    for seed in map(int, seeds):
        child = os.fork() if len(seeds) > 1 else 0
        if not child:
            runner = FakeRunner(delay=delay)
            tune([work(task(16), task(32))], runner, HOST, folder, trials=trials, strategy="replay", seed=seed)
            runner.close()
            return
        children.append(child)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
