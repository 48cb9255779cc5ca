"""Calls of models in this process, one at a time, and how many there were."""

from __future__ import annotations

import threading
from threading import get_ident
from time import perf_counter

import torch

from tfs.core.errors import ServingError
from tfs.core.servable import Outcome, Tensors
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter import InterpreterStats


class ModelCalls:
    """Calls the models of one interpreter. Whoever calls holds ``running``.

    Attributes:
        running: Held while a model runs, by the interpreter's thread or by the loop,
            which never waits for it; guards the counters. Rank: before the lock of
            ``CallThread``. No callback runs under it.
        num_calls: Calls that ran.
        num_dropped: Tasks that were cancelled or expired before they ran.

    """

    def __init__(self) -> None:
        self.running = threading.Lock()
        self.num_calls = 0
        self.num_dropped = 0
        self._num_failed = 0
        self._busy_s = 0.0
        self._num_threads: dict[int, int] = {}  # by thread

    def stats(self) -> InterpreterStats:
        """Returns the counters. From any thread."""
        return InterpreterStats(
            num_calls=self.num_calls,
            num_dropped=self.num_dropped,
            num_failed=self._num_failed,
            busy_s=self._busy_s,
        )

    def call(
        self, model: InlineModel, signature_name: str, inputs: Tensors
    ) -> tuple[Outcome, float]:
        """Returns the outcome, and the seconds the call took."""
        begun_s = perf_counter()
        wanted = model.num_threads
        thread = get_ident()
        if wanted != self._num_threads.get(thread):
            # The number belongs to this thread (OpenMP's and MKL's are per thread);
            # it changes only where models with different settings share one.
            torch.set_num_threads(wanted)
            self._num_threads[thread] = wanted
        outcome = model.answer(signature_name, inputs)
        call_s = perf_counter() - begun_s
        model.last_call_s = call_s
        self._busy_s += call_s
        self.num_calls += 1
        if isinstance(outcome, ServingError):
            self._num_failed += 1
        return outcome, call_s
