"""A candidate on TVM's own RPC server, which knows nothing of xframe: kernels called from here, timed there.

Each sample is of one call after another that warms its image; then weights and output are flushed from the caches, by
TVM, as far as its processor can do that. That is close to what our server measures, but not the same.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import rpc

from xframe.fleet.session import Upload
from xframe.tuning.build import Chain
from xframe.tuning.judge import Arguments
from xframe.tuning.timer import Samples, Subject, alternate

#: TVM's function that flushes all arguments but the first one before a timed call.
_FLUSH = "cache_flush_cpu_non_first_arg"


class Loaded:
    """The library of ``upload``, a file in the session's folder, loaded there; its hand-written kernel was run once."""

    def __init__(self, session: rpc.RPCSession, library: str, upload: Upload, threads: int):
        session.get_function("runtime.config_threadpool")(1, threads)
        self._device, self._module = session.cpu(), session.load_module(library)
        self._candidate, self._by_hand = (
            _Run(self._module, self._device, chain, upload.arguments[chain.tile])
            for chain in (upload.candidate, upload.by_hand)
        )
        self._by_hand.output()

    def output(self) -> np.ndarray:
        """That of the candidate."""
        return self._candidate.output()

    def samples(self) -> Samples:
        """The candidate's and the hand-written kernel's, in turn."""
        clock = _Clock()
        return alternate(self._candidate.subject(clock), self._by_hand.subject(clock), clock)


class _Clock:
    """Nanoseconds that kernels took, as their machine has told: no time passes in between."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class _Run:
    """A chain with all its tensors there."""

    def __init__(self, module, device, chain: Chain, arguments: Arguments):
        def there(array):
            return tvm.runtime.tensor(np.ascontiguousarray(array), device)

        self._module, self._device, self._chain = module, device, chain
        self._outputs = [there(np.zeros(step.output, np.float32)) for step in chain.steps]
        images = [there(arguments.image), *self._outputs]
        residual = [] if arguments.residual is None else [there(arguments.residual)]
        last = len(chain.steps) - 1
        self._arguments = [
            [
                images[i]._create_view(step.inputs[0]),
                *map(there, arguments.constants[i]),
                *(residual if i == last else ()),
                self._outputs[i],
            ]
            for i, step in enumerate(chain.steps)
        ]

    def output(self) -> np.ndarray:
        """Of the whole chain; nothing of an earlier run is left in it."""
        for out in self._outputs[self._chain.product :]:
            out.copyfrom(np.full(out.shape, np.nan, np.float32))
        for step, arguments in zip(self._chain.steps, self._arguments, strict=True):
            self._module[step.function](*arguments)
        return self._outputs[-1].numpy()

    def subject(self, clock: _Clock) -> Subject:
        """Its product; each call of it moves the clock on."""
        product = self._chain.product
        name, arguments = self._chain.steps[product].function, self._arguments[product]
        timed = self._module.time_evaluator(name, self._device, number=1, repeat=1, f_preproc=_FLUSH)

        def call() -> None:
            clock.now += max(1, round(float(timed(*arguments).results[0]) * 1e9))

        return Subject(lambda: None, call)
