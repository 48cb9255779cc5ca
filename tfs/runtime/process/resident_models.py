"""The models on an interpreter's worker, and what its start and end mean for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tfs.core.errors import Internal, ServingError
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.process.call_lanes import CallLanes
from tfs.runtime.process.crash_policy import WorkerEnd
from tfs.runtime.process.lane import LaneTerms
from tfs.runtime.process.model_installation import install
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.quarantine import Quarantine
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.worker import (
    OnReply,
    Worker,
    WorkerReply,
)
from tfs.runtime.process.worker_call import WorkerCall
from tfs.runtime.process.worker_life import WorkerLife
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.process.zygote import Zygote
from tfs.runtime.task_outcome import closed, finish, unloaded

log = logging.getLogger(__name__)


class ResidentModels:
    """Loads the models on each new worker. Loop-confined, unless a method says otherwise.

    Implements :class:`~tfs.runtime.process.worker_life.WorkerUser`.

    Args:
        name: The interpreter's, for logs.
        loop: Drives everything.
        zygote: Forks the workers.
        options: Limits, timeouts and how workers are made.
        spare: Provides the first worker, if it has one ready.

    Attributes:
        life: The life of the worker.
        lanes: Take the models' calls to the worker.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: Zygote,
        options: ProcessOptions,
        spare: SpareWorker | None = None,
    ) -> None:
        self._name = name
        self._options = options
        self.life = WorkerLife(name, loop, zygote, options, spare, self)
        self.lanes = CallLanes(
            LaneTerms(
                loop,
                options.max_queued,
                options.call_timeout_s,
                self.life.end,
                self.life.show_stacks,
                options.executor,
                options.worker.spin_us / 1e6,
            )
        )
        self._quarantine = Quarantine(
            loop.clock, self.lanes.refuse, options.on_quarantine
        )
        self._models: dict[int, ProcessModel] = {}
        self._mapping: ProcessModel | None = None  # the model being loaded again
        self._num_calls_before = 0  # calls when the present worker began
        self._failed: list[
            WorkerCall
        ] = []  # calls that a dead worker was computing, which have to be answered

    @property
    def num_models(self) -> int:
        """How many are loaded. Thread-safe."""
        return len(self._models)

    # -- from load to unload ---------------------------------------------------------

    def load(
        self,
        model: ProcessModel,
        worker: Worker,
        on_reply: OnReply,
        *,
        background: bool,
    ) -> None:
        """Has the worker load a model. Every later worker loads it too, until ``unload``.

        Args:
            model: The model that is loaded.
            worker: The present worker.
            on_reply: Takes the worker's answer; after an error the model is not here.
            background: Whether the load gives way to everything else.

        """

        def on_loaded(reply: WorkerReply | None) -> None:
            if reply is not None and reply.error() is None:
                self._models[model.model_id] = model
            on_reply(reply)

        self._install(model, worker, on_loaded, background=background, again=False)

    def give_up_loading(self, model: ProcessModel) -> None:
        """Ends a worker that is still loading a model that nobody waits for any more."""
        worker = self.life.live
        is_loading = worker is not None and worker.is_answering
        if is_loading and model.model_id not in self._models:
            self.life.end("was ended because it did not finish loading")

    def unload(self, model: ProcessModel, on_gone: Callable[[], None]) -> None:
        """Frees a model after its calls, then calls ``on_gone``; may be repeated."""
        if model.unloading:
            on_gone()
            return
        model.unloading = True
        self.lanes.refuse(unloaded(model.source.id), model)

        def when_idle() -> None:
            self.lanes.forget(model)
            self._models.pop(model.model_id, None)
            model.files.close()
            if (worker := self.life.live) is not None and self._models:
                fields = {"model": model.model_id}
                worker.send("unload", fields, (), lambda _: on_gone(), background=False)
            else:
                self.life.retire_if_empty()
                on_gone()

        self.lanes.after_calls(when_idle, model)

    def close(self) -> None:
        """Ends the worker, and answers everybody who waits; may be repeated."""
        if self.life.state is WorkerState.CLOSED:
            return
        awaited = self.life.close()
        error = closed(self._name)
        failed, self._failed = self._failed, []
        for call in failed:
            finish(call.task, error)
        self.lanes.refuse(error)
        for on_reply in awaited:
            on_reply(None)
        for model in self._models.values():
            model.files.close()
        self._models = {}
        self.lanes.tell_idle()

    def _install(
        self,
        model: ProcessModel,
        worker: Worker,
        on_reply: OnReply,
        *,
        background: bool,
        again: bool,
    ) -> None:
        install(
            model,
            worker,
            self.lanes,
            self._options.worker.slab_bytes,
            on_reply,
            background=background,
            again=again,
        )

    # -- what becomes of the worker: told by its life ----------------------------------

    @property
    def has_models(self) -> bool:
        return bool(self._models)

    @property
    def served(self) -> str:
        return ",".join(each.source.id.slashed for each in self._models.values())

    @property
    def has_models_to_run(self) -> bool:
        return any(model.refusal() is None for model in self._models.values())

    def move_in(self, worker: Worker) -> None:
        self._load_next(list(self._models.values()), worker)

    def _load_next(self, models: list[ProcessModel], worker: Worker) -> None:
        """Loads the last worker's models one after the other; then this worker is ready."""
        while models:
            model = models.pop(0)
            if model.unloading or model.refusal() is not None:
                continue
            self._mapping = model

            def on_reply(
                reply: WorkerReply | None, model: ProcessModel = model
            ) -> None:
                if reply is None:
                    return  # the worker died, which is noticed elsewhere
                self._mapping = None
                error = reply.error()
                if error is not None:
                    self._quarantine.impose(
                        model, f"does not load again: {error.message}"
                    )
                self._load_next(models, worker)

            self._install(model, worker, on_reply, background=False, again=True)
            return
        self.life.settle()

    def begin_calls(self, worker: Worker) -> None:
        self._num_calls_before = self.lanes.stats().num_calls
        self.lanes.open(worker.calls)

    def refuse(self, error: ServingError) -> None:
        self.lanes.refuse(error)

    def stop_calls(self) -> None:
        self._failed += self.lanes.close()

    def blame(self, end: WorkerEnd, *, is_innocent: bool) -> bool:
        """Blames a death on the model during whose call or load it happened.

        It blames nobody if somebody else (an operator, or a kernel out of memory)
        killed a worker of a version that had worked well, on this worker or earlier
        ones, or a worker that was idle: the next one may well work. If this worker had
        answered, the next one is started without a pause, because a system that kills
        whatever is started would have done so before it answered.

        For want of memory a kernel ends whatever is largest, and what was asked for is
        often at fault: one request that takes all memory ends every worker that gets
        it, and may end other programs of the machine. So there, what the version
        answered since the last such end counts: who leaks for hours goes on, and who
        is ended again and again does not.
        """
        num_calls = self.lanes.stats().num_calls - self._num_calls_before
        self._num_calls_before += num_calls  # the next may die before it is ready
        for health in {model.health for model in self._models.values()}:
            health.note_death(end, num_calls)
        was_idle = self._mapping is None and not self._failed
        mapping, self._mapping = self._mapping, None
        culprit = self._failed[-1].model if self._failed else mapping
        has_worked_well = culprit is not None and (
            culprit.health.has_worked_between
            if end.for_memory
            else culprit.health.has_worked_well
        )
        was_chosen = end.was_killed and (was_idle or has_worked_well)
        if culprit is not None and not (is_innocent or was_chosen):
            self._quarantine.note_crash(culprit, end.how)
        return not (was_chosen and num_calls)

    def answer_interrupted(self, how: str, awaited: Sequence[OnReply]) -> None:
        failed, self._failed = self._failed, []
        for call in failed:
            who = call.model.source.id.slashed
            text = f"{who}: the interpreter that ran this request {how}"
            finish(call.task, Internal(text))
        for on_reply in awaited:
            on_reply(None)
        self.lanes.tell_idle()

    def take_event(self, event: WorkerReply) -> None:
        fields = event.fields
        if fields.get("event") != "weights_written":
            return
        for model in self._models.values():
            who = model.source.id.slashed
            if who != fields.get("model"):
                continue
            if not model.told_of_writes:
                model.told_of_writes = True
                log.warning(
                    "event=weights_written servable=%s interpreter=%s num_pages=%s "
                    "hint='the model changes its weights while it serves; every "
                    "interpreter has changes of its own'",
                    who,
                    self._name,
                    fields.get("num_pages"),
                )
