"""The calls of a worker whose model is computed in stages, all on one thread."""

from __future__ import annotations

import time

from tfs.runtime.guest.own_process import FORKS
from tfs.runtime.guest.slab import JOINED, REQUESTS, RULE
from tfs.runtime.guest.staged_model import Outputs, StagedModel
from tfs.runtime.guest.worker.call_slots import CallAnswerer, CallSlots, TakenCall


class StagedCalls:
    """Hands the calls in a slab to the staged model of this worker. On one thread.

    What comes while the model computes is seen between two stages by a word in the slab.

    Args:
        slots: Where calls come from.
        answerer: Reads and answers them.

    """

    def __init__(self, slots: CallSlots, answerer: CallAnswerer) -> None:
        self._slots = slots
        self._answerer = answerer
        self._guest: StagedModel | None = None
        self._looked_s = 0.0

    def run(self) -> None:
        """Answers calls until the process ends."""
        words, depth = self._slots.slab.words, FORKS.depth
        while True:
            guest = self._guest
            is_idle = guest is None or not guest.waiting
            self._look(is_idle=is_idle)
            if guest is None or is_idle:
                continue
            try:
                guest.serve(self._look)
            finally:
                FORKS.end_copy(depth)
            status = guest.status
            if status is not None:
                words[JOINED] = status.num_joined
                words[RULE] = status.as_word

    def _look(self, *, is_idle: bool = False) -> None:
        """Takes the calls that came; if there is nothing else to do, waits for one."""
        slots, num = self._slots, 0
        # The doorbell orders the accesses to memory, and is about to ring.
        if is_idle or slots.slab.words[REQUESTS] > slots.num_taken:
            num = slots.wait()
        now_s = time.monotonic()
        # What came since the last look came in the middle of that, on average.
        arrived_s = now_s if is_idle else (self._looked_s + now_s) / 2
        self._looked_s = now_s
        for _ in range(num):
            self._take_one(slots.take(), arrived_s)

    def _take_one(self, taken: TakenCall, arrived_s: float) -> None:
        slots, answerer = self._slots, self._answerer

        def end(outcome: Outputs | BaseException) -> None:
            overflow_fd = None
            try:
                if isinstance(outcome, BaseException):
                    raise outcome
                overflow_fd = answerer.reply(taken, outcome)
            except BaseException as error:  # also of outputs that cannot be read
                answerer.fail(taken, error)
            slots.give(taken, overflow_fd)

        try:
            guest, inputs, num_rows = answerer.read(taken)
            assert isinstance(guest, StagedModel)  # a worker has one version
            self._guest = guest
        except BaseException as error:
            end(error)
            return
        name, deadline_s = taken.name, taken.deadline_s
        guest.add(name, inputs, num_rows, arrived_s, deadline_s, taken, end)
