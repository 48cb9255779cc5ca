"""Backend ``process``: a worker beside the server, driven by the serving loop.

The worker is forked by the zygote; a call costs two doorbells and one copy of each
tensor into shared memory. What a model does there stays there: a crash fails the call
that crashed, the next worker is up with all models within milliseconds, and nobody
else notices. Deadlines and cancellations of clients never touch the worker; only a call
that takes impossibly long does.

Used without a server, the loop is any :class:`ServingLoop` that runs on a thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Final

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    ServingError,
)
from tfs.core.servable import InferenceTask
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import InterpreterStats, LoadMemory
from tfs.runtime.model_source import ModelSource
from tfs.runtime.process.call import Call
from tfs.runtime.process.call_lanes import CallLanes
from tfs.runtime.process.device_shares import DeviceShares, OnLost, VersionShare
from tfs.runtime.process.lane import LaneTerms
from tfs.runtime.process.model_installation import install
from tfs.runtime.process.parked_workers import ParkedWorkers, SameCode, same_code_of
from tfs.runtime.process.payload_copy import copy_payload
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.quarantine import Quarantine
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.trial_calls import TrialCalls
from tfs.runtime.process.version_template import VersionTemplate
from tfs.runtime.process.waiter import Waiter
from tfs.runtime.process.worker_conversation import (
    OnReply,
    WorkerConversation,
    WorkerReply,
)
from tfs.runtime.process.worker_life import WorkerLife
from tfs.runtime.process.worker_link import WorkerLink
from tfs.runtime.process.worker_requests import Send, WorkerRequests
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.process.zygote_client import ZygoteClient
from tfs.runtime.task_outcome import closed, finish, unloaded

log = logging.getLogger(__name__)

_WORKED_WELL_CALLS: Final = 100
_HANDSHAKE_S: Final = 120.0  # torch's import on a loaded machine takes many seconds


class ProcessInterpreter:
    """Runs models in a process of their own. Thread-safe.

    ``load``, ``unload``, ``close``, ``hold`` and ``exchange`` block and are for other
    threads than the loop's; everything else happens on the loop.

    Args:
        name: For logs.
        loop: Drives the conversation; it must run on some thread while somebody waits.
        zygote: Forks the workers; shared by the interpreters of a server.
        options: See there.
        spare: Has a worker ready, perhaps; shared likewise, for the same options.
        shares: Has weights on devices once, shared likewise; None for copies.
        parked: Has workers whose version was unloaded, shared likewise.

    Attributes:
        trials: Calls its models before they serve.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: ZygoteClient,
        options: ProcessOptions | None = None,
        spare: SpareWorker | None = None,
        shares: DeviceShares | None = None,
        parked: ParkedWorkers | None = None,
    ) -> None:
        self._name = name
        self._shares = shares
        self._loop = loop
        self._options = options or ProcessOptions()
        self._life = WorkerLife(name, loop, zygote, self._options, spare, parked, self)
        self._lanes = CallLanes(
            LaneTerms(
                loop,
                self._options.max_queued,
                self._options.call_timeout_s,
                self._life.end,
            ),
            self._options.worker.spin_us / 1e6,
            zygote.busy_cores,
        )
        self._quarantine = Quarantine(
            loop.clock, self._lanes.refuse, self._options.on_quarantine
        )
        self._requests = WorkerRequests(name, loop, self._life)
        self.trials = TrialCalls(self._requests, self._life, loop, self._options)
        # Filled by any thread, emptied by the loop, one post each.
        self._inbox: deque[tuple[ProcessModel, InferenceTask]] = deque()
        self._models: dict[int, ProcessModel] = {}
        self._next_model_id = 0
        self._mapping: ProcessModel | None = None  # being loaded again
        self._num_calls_before = 0  # when the worker that runs was new
        self._failed: list[Call] = []  # a dead worker was in, to be answered
        self.num_unanswered = 0  # requests of sessions, written by the loop

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run, those included that are on their way to the loop."""
        return self._lanes.num_pending + len(self._inbox)

    @property
    def state(self) -> WorkerState:
        """Where the process is."""
        return self._life.state

    @property
    def is_idle(self) -> bool:
        """Whether there is no process, nothing loaded and nothing being loaded."""
        return (
            self.state in (WorkerState.ABSENT, WorkerState.CLOSED)
            and not self._models
            and not self._life.is_held
        )

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._life.pid

    @property
    def forked_by(self) -> int | None:
        """The process that the worker is a copy of, None while there is no worker."""
        link = self._life.link
        return link.zygote_pid if link is not None and link.pid > 0 else None

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the worker is gone."""
        return self._life.num_deaths

    @property
    def survives_fork(self) -> bool:
        """No: the loop, and with it the conversation, is the other process's."""
        return False

    def stats(self) -> InterpreterStats:
        return replace(
            self._lanes.stats(),
            num_models=len(self._models),
            num_restarts=self._life.num_deaths,
        )

    # -- from other threads ---------------------------------------------------------

    def start(self) -> None:
        """Has the zygote started, so that the first load finds it warm."""
        self._loop.post(lambda: self._life.want(lambda _: None))

    def load(
        self,
        source: ModelSource,
        files: VersionFiles | None = None,
        health: VersionHealth | None = None,
        share: VersionShare | None = None,
    ) -> ProcessModel:
        """Loads a version. Blocks; call it on a manager thread.

        Args:
            source: What to load.
            files: Its payload, where another interpreter has staged it already;
                descriptors are duplicated.
            health: Shared by the interpreters of the version, None if there is one.
            share: The same.

        Raises:
            ServingError: The version does not load; nothing is left of it.

        """
        if self._loop.is_loop_thread:
            raise FailedPrecondition(f"{source.id.slashed}: load blocks the loop")
        self.hold(source.platform, same_code_of(source))
        staged: VersionFiles | None = None
        try:
            staged = files.duplicate() if files is not None else self.stage(source)
            return self._load(source, staged, health, share or self.share_of(source))
        except BaseException:
            if staged is not None:
                staged.close()
            raise
        finally:
            self.let_go()

    def share_of(self, source: ModelSource) -> VersionShare | None:
        """Returns a new share in a device's weights, None if there is none to be had."""
        return self._shares.of(source) if self._shares is not None else None

    def unload(self, model: ProcessModel) -> None:
        """Frees a model behind the call that runs. Blocks."""
        if self.state is WorkerState.CLOSED:
            model.unloading = True
            return
        late = Internal(f"{model.who}: its interpreter does not let go of it")
        self._requests.ask(
            lambda waiter: self._begin_unload(model, waiter),
            self._options.call_timeout_s * 2 + _HANDSHAKE_S,
            late,
        )

    def close(self, deadline_s: float | None = None) -> None:
        if self.state is WorkerState.CLOSED:
            return
        waiter: Waiter[None] = Waiter()

        def begin() -> None:
            self._lanes.refuse(closed(self._name))
            if deadline_s is not None:
                self._loop.call_at(deadline_s, lambda: self._finish_close(waiter))
            self._lanes.after_calls(lambda: self._finish_close(waiter))

        if self._loop.is_loop_thread:
            self._finish_close(waiter)
            return
        self._loop.post(begin)
        timeout_s = self._options.call_timeout_s + _HANDSHAKE_S
        if deadline_s is not None:
            timeout_s = max(0.0, deadline_s - self._loop.clock.now()) + 5.0
        waiter.wait(timeout_s, Internal(f"interpreter {self._name} does not close"))

    def hold(self, platform: str = "", code: SameCode | None = None) -> None:
        """Starts the worker and keeps it, models or none, until ``let_go``. Blocks.

        Args:
            platform: Of what is to be loaded on it; empty where nobody knows.
            code: The same.

        Raises:
            ServingError: There is no worker to be had.

        """

        def begin(waiter: Waiter[None]) -> None:
            def on_ready(error: ServingError | None) -> None:
                if error is None:
                    waiter.set(None)
                else:
                    waiter.fail(error)

            self._life.platform = platform or self._life.platform
            life = self._life
            is_new = life.state is WorkerState.ABSENT
            life.code = code if is_new or life.code == code else None
            self._life.hold(on_ready)

        late = Internal(f"interpreter {self._name} does not start")
        self._requests.ask(begin, _HANDSHAKE_S, late)

    def use_template(self, template: VersionTemplate | None) -> None:
        """Has workers to come forked by it, while it can; None: no longer."""

        def use() -> None:
            self._life.template = template

        self._loop.post(use)

    def let_go(self) -> None:
        """Takes a ``hold`` back."""
        if self.state is not WorkerState.CLOSED:
            self._loop.post(self._life.let_go)

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the worker's session guest answer a request. Blocks.

        Returns:
            The reply, and descriptors the caller closes.

        Raises:
            ServingError: The guest's, or Internal if the worker died over it.

        """

        def begin(waiter: Waiter[tuple[bytes, list[int]]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                self.num_unanswered -= 1
                if reply is None:
                    text = f"the interpreter of this session {self._life.last_end}"
                    waiter.fail(Internal(f"{text}; what it held is gone, begin anew"))
                elif (error := reply.error()) is not None:
                    waiter.fail(error)
                else:
                    taken, reply.fds = reply.fds, []
                    waiter.set((reply.payload, taken))

            def when_ready(error: ServingError | None) -> None:
                if error is not None:
                    waiter.fail(error)
                elif self._life.conversation is not None:
                    self.num_unanswered += 1
                    self._life.conversation.send(
                        "session", {"body": request}, fds, on_reply, background=False
                    )

            self._life.want(when_ready)

        timeout_s = self._options.load_timeout_s
        late = Internal(f"no answer within {timeout_s:.0f} s")
        return self._requests.ask(begin, timeout_s, late)

    # -- loading, on a manager thread ------------------------------------------------

    def stage(self, source: ModelSource) -> VersionFiles:
        """Has the worker copy the payload into memory, at its lowest priority.

        Blocks, and only within a ``hold``. The caller closes what it gets.

        Raises:
            ServingError: The payload cannot be read, or the worker died.

        """

        def copy(fds: tuple[int, ...]) -> None:
            def send(conversation: WorkerConversation, on_reply: OnReply) -> None:
                conversation.send(
                    "copy",
                    {"source": source},
                    fds,
                    on_reply,
                    background=self._loads_in_background(),
                )

            self._await_load(source, send)

        return copy_payload(source, copy)

    def _load(
        self,
        source: ModelSource,
        files: VersionFiles,
        health: VersionHealth | None,
        share: VersionShare | None,
    ) -> ProcessModel:
        model_id = self._next_model_id
        self._next_model_id += 1
        model = ProcessModel(
            source,
            files,
            model_id,
            health or VersionHealth(self._options.crashes),
            self,
            share,
        )

        def send(conversation: WorkerConversation, on_reply: OnReply) -> None:
            def on_loaded(reply: WorkerReply | None) -> None:
                if reply is not None and reply.error() is None:
                    self._models[model.model_id] = model
                on_reply(reply)

            self._install(
                model,
                conversation,
                on_loaded,
                background=self._loads_in_background(),
            )

        try:
            reply = self._await_load(source, send)
        except ServingError as error:
            if isinstance(error, Internal):
                self._loop.post(lambda: self._give_up_loading(model))
            if share is not None:
                self._loop.post(lambda: share.leave(model, lambda: None))
            raise
        # The worker maps weights and does not read them: what it takes is importing.
        model.process_changes = str(reply.get("changes", ""))
        import_s = reply.get("import_s")
        model.import_s = import_s if isinstance(import_s, float) else None
        model.load_memory = LoadMemory(
            *(_bytes_of(reply, key) for key in ("resident_bytes", "load_peak_bytes"))
        )
        return model

    def _loads_in_background(self) -> bool:
        # Only where nobody is served: in an interpreter at work a thread of low
        # priority would hold the GIL and not run.
        return not self._models and not self._options.is_urgent()

    def _await_load(self, source: ModelSource, send: Send) -> Mapping[str, object]:
        who, timeout_s = source.id.slashed, self._options.load_timeout_s
        late = Internal(f"{who}: loading took over {timeout_s:.1f} s")
        return self._requests.answer(
            who, send, timeout_s, late, meanwhile="while loading it"
        )

    # -- calls -----------------------------------------------------------------------

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        """Starts a task, from any thread. Never blocks, never raises."""
        if get_ident() == self._loop.thread_ident:
            self._enqueue(model, task)
        elif self.state is WorkerState.CLOSED:
            finish(task, closed(self._name))  # the loop may be gone
        else:
            self._inbox.append((model, task))
            self._loop.post(self._take_from_inbox)

    def _take_from_inbox(self) -> None:
        self._enqueue(*self._inbox.popleft())

    def _enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        if self._life.state is WorkerState.CLOSED:
            finish(task, closed(self._name))
        elif model.unloading:
            finish(task, unloaded(model.source.id))
        else:
            self._lanes.add(model, task)

    # -- what becomes of the worker: told by its life, on the loop ----------------------

    @property
    def has_models(self) -> bool:
        """Whether anything is loaded."""
        return bool(self._models)

    @property
    def has_models_to_run(self) -> bool:
        """Whether a worker that died is to be followed by another for their sake."""
        return any(model.refusal() is None for model in self._models.values())

    def move_in(self, conversation: WorkerConversation) -> None:
        """Loads what the interpreter had on a new worker."""
        self._map_next(list(self._models.values()), conversation)

    def _map_next(
        self, models: list[ProcessModel], conversation: WorkerConversation
    ) -> None:
        """Loads what the interpreter had, one after the other; then it is ready."""
        while models:
            model = models.pop(0)
            if model.unloading or model.refusal() is not None:
                continue
            self._mapping = model

            def on_reply(
                reply: WorkerReply | None, model: ProcessModel = model
            ) -> None:
                if reply is None:
                    return  # it died over it; seen to elsewhere
                self._mapping = None
                error = reply.error()
                if error is not None:
                    self._quarantine.impose(
                        model, f"does not load again: {error.message}"
                    )
                self._map_next(models, conversation)

            self._install(model, conversation, on_reply, background=False)
            return
        self._life.settle()

    def _install(
        self,
        model: ProcessModel,
        conversation: WorkerConversation,
        on_reply: OnReply,
        *,
        background: bool,
    ) -> None:
        install(
            model,
            conversation,
            self._lanes,
            self._options.worker.slab_bytes,
            on_reply,
            self._on_lost(),
            background=background,
        )

    def _on_lost(self) -> OnLost:
        """Returns what replaces the worker there is now, and no later one."""
        link = self._life.link

        def end(why: str) -> None:
            if self._life.link is link:
                self._life.end(why, is_innocent=True)

        return end

    def begin_calls(self, link: WorkerLink) -> None:
        """Hands tasks to a ready worker."""
        self._num_calls_before = self._lanes.stats().num_calls
        self._lanes.open(link.calls)

    def reader_of(self, link: WorkerLink) -> Callable[[int], None]:
        """Returns what answers the calls that the worker has finished."""
        return self._lanes.reader_of(link.calls)

    def refuse(self, error: ServingError) -> None:
        """Answers what waits."""
        self._lanes.refuse(error)

    def stop_calls(self) -> None:
        """Hands no more to a worker that is gone; keeps what it was in."""
        self._failed += self._lanes.close()

    def blame(self, how: str, *, is_innocent: bool, was_killed: bool) -> None:
        """Holds a death against the model whose call or load it came in.

        Not if somebody else killed a worker that had worked well: an operator, or a
        kernel out of memory. The next one may work as well.
        """
        num_calls = self._lanes.stats().num_calls - self._num_calls_before
        if was_killed and num_calls >= _WORKED_WELL_CALLS:
            is_innocent = True
        for health in {model.health for model in self._models.values()}:
            health.note_death(how)
        mapping, self._mapping = self._mapping, None
        culprit = self._failed[-1].model if self._failed else mapping
        if culprit is not None and not is_innocent:
            self._quarantine.note_crash(culprit, how)

    def mourn(self, how: str, awaited: Sequence[OnReply]) -> None:
        """Answers the calls the worker was in, and who waited for it to answer."""
        failed, self._failed = self._failed, []
        for call in failed:
            who = call.model.source.id.slashed
            text = f"{who}: the interpreter that ran this request {how}"
            finish(call.task, Internal(text))
        for on_reply in awaited:
            on_reply(None)
        self._lanes.tell_idle()

    def take_event(self, event: WorkerReply) -> None:
        """Takes what the worker says unasked."""
        fields = event.fields
        if fields.get("event") != "weights_written":
            return
        for model in self._models.values():
            who = model.source.id.slashed
            if who != fields.get("model"):
                continue
            if model.share is not None and fields.get("num_shared_tensors"):
                model.share.give_up("it writes to its parameters while it serves")
            elif not model.told_of_writes:
                model.told_of_writes = True
                log.warning(
                    "event=weights_written servable=%s interpreter=%s num_pages=%s "
                    "hint='the model changes its weights while it serves; every "
                    "interpreter has changes of its own'",
                    who,
                    self._name,
                    fields.get("num_pages"),
                )

    # -- the end -----------------------------------------------------------------------

    def _begin_unload(self, model: ProcessModel, waiter: Waiter[None]) -> None:
        if model.unloading:
            waiter.set(None)
            return
        model.unloading = True
        self._lanes.refuse(unloaded(model.source.id), model)

        def leave(_: WorkerReply | None = None) -> None:
            if model.share is not None:
                model.share.leave(model, lambda: waiter.set(None))
            else:
                waiter.set(None)

        def when_idle() -> None:
            self._lanes.forget(model)
            self._models.pop(model.model_id, None)
            model.files.close()
            if self._life.conversation is not None and self._models:
                self._life.conversation.send(
                    "unload",
                    {"model": model.model_id},
                    (),
                    leave,
                    background=False,
                )
            else:
                self._life.retire_if_empty(model.model_id)
                leave()

        self._lanes.after_calls(when_idle, model)

    def _give_up_loading(self, model: ProcessModel) -> None:
        """Ends a worker that still loads what nobody waits for any more."""
        if (
            model.model_id not in self._models
            and self._life.conversation is not None
            and self._life.conversation.num_awaited
        ):
            self._life.end("was ended because it did not finish loading")

    def _finish_close(self, waiter: Waiter[None]) -> None:
        if self.state is WorkerState.CLOSED:
            waiter.set(None)
            return
        awaited = self._life.close()
        error = closed(self._name)
        failed, self._failed = self._failed, []
        for call in failed:
            finish(call.task, error)
        self._lanes.refuse(error)
        for on_reply in awaited:
            on_reply(None)
        for model in self._models.values():
            model.files.close()
            if model.share is not None:
                model.share.leave(model, lambda: None)
        self._models = {}
        self._lanes.tell_idle()
        waiter.set(None)


def _bytes_of(reply: Mapping[str, object], key: str) -> int | None:
    value = reply.get(key)
    return value if isinstance(value, int) else None
