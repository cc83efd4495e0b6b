"""One convolution in cuDNN's graph interface, by the fastest of its engines that are of a kind.

The operation graph has the convolution alone. cuDNN has no measurement of its own for engines: those of the kind are
measured here, on the tensors of the network. The plan that is taken stays.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from xframe.backends import cudnn_rounding
from xframe.backends.cudnn_convolution import Choice, Problem
from xframe.backends.cudnn_device import Dims, Gpu, channels_last, contiguous
from xframe.backends.cudnn_engines import BY_KNOBS, FASTEST, Engine, listed, refusals
from xframe.backends.cudnn_graph import Descriptor, made
from xframe.backends.cudnn_library import CROSS_CORRELATION, FLOAT, NOT_SUPPORTED, CallFailed
from xframe.errors import Unavailable
from xframe.nvidia import load

#: At most so many engines with their knobs are measured at a convolution, each by the shortest of so many runs: others
#: may be at work on the device. One run is enough where it takes so many seconds, and so many times the fastest's.
MOST, RUNS, LONG, SLOW = 64, 5, 0.02, 3.0
#: Once one runs, no more are begun after so many seconds: some are compiled when they are planned.
WITHIN = 10.0
STRIDES = {"NCHW": contiguous, "NHWC": channels_last}
#: Tensors begin on a multiple of this many bytes; ``cudaMalloc`` gives more.
_ALIGNMENT = 16
#: What a variant pack calls the image, the weights and the output.
_X, _W, _Y = 1, 2, 3


class NoEngine(CallFailed):
    """No engine of a kind can do a convolution: what cuDNN said of each, those of which it said the same together."""

    def __init__(self, kind: str, engines: Sequence[Engine]):
        said: dict[str, dict[str, None]] = {}  # in their order
        for engine in (e for e in engines if e.number is not None):
            why = engine.refused or f"of another kind, {engine.kind}"
            knobs = () if engine.source == BY_KNOBS else engine.knobs
            said.setdefault(why, {})[" ".join((str(engine.number), *knobs))] = None
        told = "; ".join(f"{', '.join(numbers)}: {why}" for why, numbers in said.items())
        count = len({e.number for e in engines if e.number is not None})
        brief = f"none of its {count} engines is {kind} and can do it"
        super().__init__("cudnnBackendExecute", NOT_SUPPORTED, f"{brief} ({told})")
        self.brief = brief


class GraphConvolution:
    """The operation graph of a problem, and its engines. ``layout``: of image, weights and output.

    Raises CallFailed where cuDNN takes no such graph.
    """

    def __init__(self, gpu: Gpu, problem: Problem, layout: str = "NCHW"):
        self._gpu, self._strides = gpu, STRIDES[layout]
        with contextlib.suppress(Unavailable):  # engines that are compiled at run time look for it among what is loaded
            load("nvrtc")
        convolution = self._made(
            "CONVOLUTION", CONVOLUTION_SPATIAL_DIMS=2, CONVOLUTION_COMP_TYPE=FLOAT,
            CONVOLUTION_CONV_MODE=CROSS_CORRELATION, CONVOLUTION_FILTER_STRIDES=problem.stride,
            CONVOLUTION_DILATIONS=problem.dilation, CONVOLUTION_PRE_PADDINGS=problem.pads,
            CONVOLUTION_POST_PADDINGS=problem.pads,
        )  # fmt: skip
        operation = self._made(
            "OPERATION_CONVOLUTION_FORWARD", OPERATION_CONVOLUTION_FORWARD_ALPHA=1.0,
            OPERATION_CONVOLUTION_FORWARD_BETA=0.0, OPERATION_CONVOLUTION_FORWARD_CONV_DESC=convolution,
            OPERATION_CONVOLUTION_FORWARD_X=self._tensor(_X, problem.image),
            OPERATION_CONVOLUTION_FORWARD_W=self._tensor(_W, problem.filters),
            OPERATION_CONVOLUTION_FORWARD_Y=self._tensor(_Y, problem.out),
        )  # fmt: skip
        self._graph = self._made("OPERATIONGRAPH", OPERATIONGRAPH_HANDLE=gpu.cudnn, OPERATIONGRAPH_OPS=operation)
        self._listed = listed(gpu, self._graph)
        for engine in self.engines:
            engine.layout = layout
        self._plans: dict[str, tuple[Engine, Descriptor]] = {}

    def forced(self, algorithm: str, x: int, w: int, y: int) -> Choice:
        """The fastest engine of the kind ``algorithm``, measured at these addresses unless it was before.

        Raises
        ------
        CallFailed
            There is none: a refusal, which says what cuDNN said of each.
        """
        if algorithm not in self._plans:
            self._plans[algorithm] = self._fastest(algorithm, x, w, y)
        engine, plan = self._plans[algorithm]
        assert engine.notes is not None
        assert engine.workspace is not None
        words = engine.words + (f" ({', '.join(engine.knobs)})" if engine.knobs else "")
        run = partial(self._call, plan, self._gpu.until)
        return Choice(engine.kind, words, engine.workspace, run, partial(cudnn_rounding.of_notes, engine.notes))

    @property
    def engines(self) -> list[Engine]:
        """All that cuDNN listed, with what came of them."""
        return [engine for engine, _ in self._listed]

    def _made(self, kind: str, **attributes: Any) -> Descriptor:
        return made(self._gpu.api, kind, self._gpu.until, **attributes)

    def _tensor(self, uid: int, dims: Dims) -> Descriptor:
        return self._made(
            "TENSOR", TENSOR_DATA_TYPE=FLOAT, TENSOR_DIMENSIONS=dims, TENSOR_STRIDES=self._strides(dims),
            TENSOR_UNIQUE_ID=uid, TENSOR_BYTE_ALIGNMENT=_ALIGNMENT,
        )  # fmt: skip

    def _fastest(self, kind: str, x: int, w: int, y: int) -> tuple[Engine, Descriptor]:
        best: tuple[float, Engine, Descriptor] | None = None
        gpu, measured, began = self._gpu, 0, time.monotonic()
        with contextlib.ExitStack() as kept:
            for engine, config in self._listed:
                if config is None or engine.refused or kind not in (FASTEST, engine.kind):
                    continue
                spent = best is not None and time.monotonic() - began > WITHIN
                engine.refused = self._left_out(engine, measured, spent)
                if engine.refused:
                    continue
                with refusals(gpu, engine), contextlib.ExitStack() as until:
                    plan = self._planned(engine, config, until)
                    seconds = self._seconds(engine, plan, best[0] if best else math.inf, (x, w, y))
                    measured += 1
                    if best is None or seconds < best[0]:
                        kept.pop_all().close()
                        kept.push(until.pop_all())
                        best = seconds, engine, plan
            if best is None:
                raise NoEngine(kind, self.engines)
            gpu.until.push(kept.pop_all())
        return best[1:]

    def _left_out(self, engine: Engine, measured: int, spent: bool) -> str:
        most = f"left out: {MOST} others were measured" if measured == MOST else ""
        late = f"left out: {WITHIN:.0f} s went into the {measured} before" if spent else ""
        return engine.barred(self._gpu.tf32) or most or late

    def _planned(self, engine: Engine, config: Descriptor, until: contextlib.ExitStack) -> Descriptor:
        gpu = self._gpu
        plan = made(
            gpu.api, "EXECUTION_PLAN", until, EXECUTION_PLAN_HANDLE=gpu.cudnn, EXECUTION_PLAN_ENGINE_CONFIG=config
        )
        engine.workspace = plan.number("EXECUTION_PLAN_WORKSPACE_SIZE")
        return plan

    def _seconds(self, engine: Engine, plan: Descriptor, fastest: float, place: tuple[int, int, int]) -> float:
        """Of a run behind a busy device, after one that shows whether it runs at all."""
        gpu, (x, w, y) = self._gpu, place
        assert engine.workspace is not None
        with gpu.lent(engine.workspace) as room, contextlib.ExitStack() as packs:
            run = self._call(plan, packs, x, w, room, y)
            run()
            gpu.sync()
            found = [gpu.timeline([run], gated=True)]
            if found[0].times[-1] < max(LONG, SLOW * fastest):
                found.append(gpu.timeline([run] * (RUNS - 1), gated=True))
        engine.seconds = min(b - a for one in found for a, b in pairwise(one.times))
        engine.gated = all(one.gated for one in found)
        return engine.seconds

    def _call(
        self, plan: Descriptor, until: contextlib.ExitStack, x: int, w: int, workspace: int, y: int
    ) -> Callable[[], None]:
        pack = made(
            self._gpu.api, "VARIANT_PACK", until, VARIANT_PACK_UNIQUE_IDS=(_X, _W, _Y),
            VARIANT_PACK_DATA_POINTERS=(x, w, y), VARIANT_PACK_WORKSPACE=workspace,
        )  # fmt: skip
        return partial(self._gpu.api.cudnnBackendExecute, self._gpu.cudnn, plan.address, pack.address)
