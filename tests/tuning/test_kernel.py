"""One kernel from its hand-written schedule to the decision: what is asked for, in which order, and what is kept."""

from dataclasses import replace

import pytest

from tests.tuning.fake import FakeRunner, crashes, samples, task
from xframe.tuning.kernel import ATTEMPTS, FINALISTS, MOST_REPEATS, REPEATS, Kernel, beyond_noise, gain
from xframe.tuning.points import OK, Point, Trial

HAND, *OTHERS = [Point((6, 2), (("unroll", u), ("rows", n))) for n in range(7) for u in (1, 2, 4)]


class Listed:
    """Proposes points in order."""

    def __init__(self, points):
        self.points, self.learned = list(points), []

    def propose(self, n):
        found, self.points = self.points[:n], self.points[n:]
        return found

    def learn(self, trials):
        self.learned += trials


def finished(ratio, share=20, points=(HAND, *OTHERS), known=(), width=1, runner=FakeRunner):
    """A kernel that was measured to its end by a runner with these times, and what was asked for."""
    runner, search = runner(ratio), Listed(points)
    kernel, asked, waiting = Kernel(task(), lambda: search), [], []
    for trial, confirms in known:
        kernel.take(trial, confirms)
    while True:
        if kernel.by_hand is not None:
            kernel.share = share
        while len(waiting) < width and (found := kernel.next()) is not None:
            waiting.append(found)
        if not waiting:
            return kernel, asked, search
        point, confirms = waiting.pop(0)
        asked.append((point, confirms))
        kernel.ended(runner.submit(kernel.task, point).result(), confirms)


def table(**by_rows):
    """Seconds over those by hand, by the knob ``rows``, of points that unroll by 2; others take as long as by hand."""

    def ratio(task, point):
        knobs = dict(point.knobs)
        return by_rows.get(f"r{knobs['rows']}", 1.0) if knobs["unroll"] == 2 else 1.0

    return ratio


def test_by_hand_first_then_the_share_then_the_best_again_in_turn():
    kernel, asked, search = finished(table(r1=0.9, r2=0.7, r3=0.8, r4=0.95), share=16)
    searched = [p for p, confirms in asked if not confirms]
    again = [dict(p.knobs)["rows"] for p, confirms in asked if confirms]
    assert searched == [HAND, *OTHERS[:15]]
    assert again == [2, 3, 1] * REPEATS
    assert len(set(again)) == FINALISTS
    assert kernel.decision.best.point == OTHERS[6]
    assert dict(kernel.decision.best.point.knobs) == {"unroll": 2, "rows": 2}
    assert len(kernel.decision.best.seconds) == REPEATS * 9
    assert [t.point for t in search.learned][:1] == [HAND]


@pytest.mark.parametrize("width", [2, 5, 30])
def test_several_at_a_time_lead_to_the_same_decision(width):
    kernel, asked, _ = finished(table(r1=0.9, r2=0.7), width=width)
    assert kernel.decision.best.point == OTHERS[6]
    assert len([p for p, confirms in asked if not confirms]) == 20
    assert asked[0] == (HAND, False)


def test_no_point_is_tried_twice_and_an_exhausted_space_is_no_error():
    points = [HAND, OTHERS[0], OTHERS[0], HAND, OTHERS[1]]
    kernel, asked, _ = finished(table(), share=50, points=points)
    assert [p for p, _ in asked] == [HAND, OTHERS[0], OTHERS[1]]
    assert kernel.decision.best is None
    assert kernel.decision.reason == "none of 3 schedules was faster"


def test_what_is_within_noise_stays_out():
    noisy = replace(Trial(HAND, OK), seconds=samples(0.95, 0.02), baseline=samples(1.0, 0.02)[::-1])
    quiet = replace(noisy, seconds=samples(0.95), baseline=samples(1.0))
    assert beyond_noise(quiet)
    assert not beyond_noise(noisy)
    assert beyond_noise(replace(noisy, seconds=noisy.seconds * 9, baseline=noisy.baseline * 9))  # known well enough
    assert not beyond_noise(replace(quiet, seconds=samples(0.99)))  # known, and worth nothing
    assert not beyond_noise(replace(quiet, seconds=quiet.baseline))
    assert not beyond_noise(replace(quiet, seconds=quiet.baseline, baseline=quiet.seconds))


@pytest.mark.parametrize(("faster", "times"), [(0.8, REPEATS), (0.93, 3), (0.95, MOST_REPEATS)])
def test_what_noise_leaves_open_is_measured_more_often(faster, times):
    class Noisy(FakeRunner):
        def _trial(self, task, point):
            trial = super()._trial(task, point)
            middle = trial.seconds[1]
            return replace(trial, seconds=samples(middle, 0.03), baseline=samples(trial.baseline[1], 0.03)[::-1])

    kernel, asked, _ = finished(table(r2=faster), runner=Noisy)
    again = [p for p, confirms in asked if confirms and p == OTHERS[6]]
    assert len(again) == times
    assert (kernel.decision.best is not None) == (times < MOST_REPEATS)


def test_load_that_comes_and_goes_is_no_gain():
    """A ratio of medians would see one of 10."""
    load = (1.0,) * 4 + (10.0,) * 6
    calm = (1.0,) * 6 + (10.0,) * 4
    trial = Trial(HAND, OK, seconds=calm, baseline=load)
    assert gain(trial) == 1.0
    assert not beyond_noise(trial)


def test_what_was_fast_only_once_stays_out():
    seen = set()

    def once(task, point):
        first, _ = point not in seen, seen.add(point)
        return 0.5 if first and point != HAND else 1.0

    kernel, _, _ = finished(once)
    assert kernel.decision.best is None
    assert kernel.decision.reason == "measured again, the best has 1.000x, which is not beyond noise"


def test_one_that_fails_when_it_is_measured_again_loses_to_the_next():
    seen = set()

    def ratio(task, point):
        first, _ = point not in seen, seen.add(point)
        if point == OTHERS[0] and not first:
            return "WRONG", "1.7 times the bound"
        return {OTHERS[0]: 0.5, OTHERS[3]: 0.9}.get(point, 1.0)

    kernel, _, _ = finished(ratio)
    assert kernel.decision.best.point == OTHERS[3]
    seen.clear()
    kernel, _, _ = finished(ratio, points=(HAND, OTHERS[0]))
    assert kernel.decision.reason == "measured again, the best did not end well: WRONG, 1.7 times the bound"


def test_a_kernel_that_fails_by_hand_is_given_up():
    kernel, asked, _ = finished(crashes)
    assert asked == [(HAND, False)] * ATTEMPTS
    assert kernel.decision.reason == "its hand-written schedule was not measured: CRASHED, killed by SIGSEGV"
    assert kernel.failures == {"CRASHED": ATTEMPTS}


def test_failing_once_by_hand_is_forgiven():
    first = iter([crashes(None, None)])
    kernel, _, _ = finished(lambda task, point: next(first, None) or table(r2=0.7)(task, point))
    assert kernel.decision.best is not None


def test_one_whose_other_schedules_all_fail_keeps_its_template():
    kernel, _, _ = finished(lambda task, point: 1.0 if point == HAND else crashes(task, point), share=9)
    assert kernel.decision.reason == "no other schedule ran: CRASHED, killed by SIGSEGV"
    assert kernel.failures == {"CRASHED": 8}


@pytest.mark.parametrize("count", range(0, 27))
def test_after_any_number_of_known_trials_it_ends_as_if_never_stopped(count):
    ratio = table(r1=0.9, r2=0.7, r3=0.8)
    _, asked, _ = finished(ratio)
    runner = FakeRunner(ratio)
    known = [(runner.submit(task(), point).result(), confirms) for point, confirms in asked[:count]]
    kernel, rest, _ = finished(ratio, known=known)
    assert [*asked[:count], *rest] == asked
    assert kernel.decision.best.point == OTHERS[6]


def test_the_hand_written_schedule_does_not_beat_itself():
    kernel, asked, _ = finished(lambda task, point: 0.9 if point == HAND else 1.0)
    assert kernel.decision.best is None
    assert not any(confirms for _, confirms in asked)
