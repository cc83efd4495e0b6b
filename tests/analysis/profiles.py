"""Measurements made by hand: a profile is told in words and milliseconds, or drawn by Hypothesis."""

import itertools

from hypothesis import strategies as st

from xframe.results import Measurement, Run
from xframe.types import HOST, KINDS, Case, ConvSite, Kernel, Outcome, Plan, Profile, Span

MS = 1e-3
A, B = ConvSite(1, 8, (9, 9), 8, (3, 3)), ConvSite(1, 8, (7, 7), 8, (3, 3))


def kernels(*what, start=0.0):
    """One after the other; each is (kind or site, milliseconds) or (site, milliseconds, algorithm)."""
    out, now = [], start * MS
    for kind, ms, *algorithm in what:
        site = kind if isinstance(kind, ConvSite) else None
        name = "conv" if site else kind
        out.append(Kernel(name, now, now + ms * MS, site, kind=name, algorithm=algorithm[0] if algorithm else ""))
        now += ms * MS
    return tuple(out)


def one_pass(wall, *what, start=0.0, host=(), cost=0.0):
    return Profile(wall * MS, kernels(*what, start=start), host, cost * MS)


def measured(profiles, framework="pytorch", runner="native", wall=10.0, plain=10.0, plan=None, **case):
    """``profiles``: passes, or one, which both rounds have. ``wall`` and ``plain``: milliseconds, one or several;
    ``wall`` as a list is by round."""
    profiles = (profiles,) * 2 if isinstance(profiles, Profile) else tuple(profiles)
    made = Case("m", framework, runner, plan or Plan(), "cpu", case.pop("batch", 1), case.pop("threads", 1), **case)
    rounds = tuple(tuple(x * MS for x in _several(r)) for r in (wall if isinstance(wall, list) else [wall] * 2))
    return Measurement(made, Outcome.OK, rounds=rounds, profiles=profiles, plain=tuple(x * MS for x in _several(plain)))


def _several(x):
    return x if isinstance(x, tuple) else (x,) * 3


def forced(lowering, a, b, *more, framework="pytorch", **case):
    """A row of TVM with ``lowering`` at both sites, which take ``a`` and ``b`` milliseconds."""
    plan = Plan(lowering, ((A, lowering), (B, lowering)))
    return measured(one_pass(20.0, (A, a), (B, b), *more), framework, "tvm", plan=plan, **case)


def run(*measurements, machines=None, layers=None):
    return Run(2, "now", (), {}, measurements, machines or {}, layers or {})


seconds = st.floats(0, 1e-2)


@st.composite
def _kernels(draw):
    start, end = sorted((draw(st.floats(-1e-3, 1.2e-2)), draw(st.floats(-1e-3, 1.2e-2))))
    kind = draw(st.sampled_from(("", *KINDS)))
    site = draw(st.sampled_from((None, A, B)))
    return Kernel("k", start, end, site, kind=kind, algorithm=draw(st.sampled_from(("", "gemm:jit", "jit_wino"))))


@st.composite
def _spans(draw):
    start, end = sorted((draw(seconds), draw(seconds)))
    return Span("s", start, end, draw(st.sampled_from(HOST)))


@st.composite
def profiles(draw):
    """Kernels that overlap, lie outside the pass, or are not there; a cost above the wall time."""
    host = tuple(draw(st.lists(_spans(), max_size=4)))
    return Profile(draw(seconds), tuple(draw(st.lists(_kernels(), max_size=6))), host, draw(seconds))


@st.composite
def runs(draw):
    """Some rows of one network on one device, one batch and one number of threads or two."""
    rows = []
    sites = st.sampled_from(("gemm", "winograd", "direct"))
    for framework, runner in itertools.islice(
        itertools.product(("pytorch", "jax"), ("native", "ort", "tvm")), draw(st.integers(1, 6))
    ):
        plan = Plan("mixed", ((A, draw(sites)), (B, draw(sites)))) if runner == "tvm" else Plan()
        case = Case("m", framework, runner, plan, "cpu", draw(st.sampled_from((1, 16))), 1)
        times = st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=4).map(tuple)
        rounds = draw(st.lists(times, min_size=1, max_size=3).map(tuple))
        plain = draw(st.lists(st.floats(1e-6, 1e-2), max_size=3).map(tuple))
        passes = tuple(draw(st.lists(profiles(), min_size=1, max_size=3)))
        rows.append(Measurement(case, Outcome.OK, rounds=rounds, profiles=passes, plain=plain))
    return run(*rows)
