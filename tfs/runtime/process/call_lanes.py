"""All calls of one interpreter: its common lane, and the lanes of single models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.lane import Lane, LaneTerms
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.worker_call import WorkerCall
from tfs.runtime.spread_model import summed


class CallLanes:
    """Knows which lane a model's calls take. Loop-confined, unless a method says otherwise.

    Args:
        terms: What all lanes have in common.

    """

    def __init__(self, terms: LaneTerms) -> None:
        self._terms = terms
        self._common = Lane(terms)
        # The lanes of models that take several calls at once, by the model's number.
        self._own: dict[int, Lane] = {}
        self._past = InterpreterStats()  # sums of models' own lanes that are gone

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run. Thread-safe."""
        num = self._common.num_pending
        if self._own:
            num += sum(lane.num_pending for lane in list(self._own.values()))
        return num

    def stats(self) -> InterpreterStats:
        """Returns the counters of calls. Thread-safe."""
        return summed([self._past, *(lane.stats() for lane in self._all())])

    def open(self, channel: CallChannel) -> None:
        """Starts handing tasks to a new worker."""
        self._common.open(channel)

    def open_own(self, model: ProcessModel, channel: CallChannel) -> None:
        """Starts handing a model's tasks to a new worker, over a channel of their own."""
        lane = self._own.get(model.model_id)
        if lane is None:
            lane = Lane(self._terms, model.source.concurrency)
            self._own[model.model_id] = lane
        lane.open(channel)

    def share(self, others: Sequence[CallLanes]) -> None:
        """Takes over tasks that wait in these when the worker is idle."""
        self._common.others = tuple(each._common for each in others)

    def note_loaded(self, model: ProcessModel) -> None:
        """Notes that the worker has a model, and so may take over its tasks."""
        if not model.unloading:
            model.health.loaded_in[self._common] = model
            self._common.pump()

    def note_unloading(self, model: ProcessModel) -> None:
        """Notes that the worker is to take no more tasks of a model."""
        model.health.loaded_in.pop(self._common, None)

    def add(self, model: ProcessModel, task: InferenceTask) -> None:
        """Queues a task, or answers it at once."""
        lane = self._own.get(model.model_id) if self._own else None
        if lane is not None:
            lane.add(model, task)
        else:
            self._common.add(model, task)

    def close(self) -> list[WorkerCall]:
        """Stops handing out tasks: the worker is gone. Calls that it had not begun wait.

        Returns:
            The calls that it was in; the caller answers them.

        """
        failed = self._common.close()
        for lane in self._own.values():
            failed += lane.close()
        return failed

    def refuse(self, error: ServingError, model: ProcessModel | None = None) -> None:
        """Answers all tasks that wait (for ``model``, if given) with ``error``."""
        self._common.refuse(error, model)
        for model_id, lane in list(self._own.items()):
            if model is None or model.model_id == model_id:
                lane.refuse(error)

    def after_calls(
        self, then: Callable[[], None], model: ProcessModel | None = None
    ) -> None:
        """Runs ``then`` once the worker has no call (of ``model``, if given) any more."""
        if model is not None:
            lane = self._own.get(model.model_id)
            if lane is not None:
                lane.after_calls(then)
            else:
                self._common.after_calls(then, model)
            return
        for lane in self._own.values():
            then = _after(lane, then)
        self._common.after_calls(then)

    def tell_idle(self) -> None:
        """Runs what ``after_calls`` was given, if the calls it waits for are gone."""
        for lane in self._all():
            lane.tell_idle()

    def forget(self, model: ProcessModel) -> None:
        """Closes a model's own lane, if it has one; keeps its counters."""
        lane = self._own.pop(model.model_id, None)
        if lane is None:
            return
        lane.close()
        self._past = replace(summed([self._past, lane.stats()]), num_queued=0)

    def _all(self) -> list[Lane]:
        return [self._common, *list(self._own.values())]


def _after(lane: Lane, then: Callable[[], None]) -> Callable[[], None]:
    return lambda: lane.after_calls(then)
