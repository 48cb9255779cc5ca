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
import os
import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Final, TypeVar

from tfs.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    ServingError,
    Unavailable,
)
from tfs.core.servable import InferenceTask, Tensors
from tfs.core.serving_loop import ServingLoop
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd
from tfs.runtime.guest.version_files import VersionFiles, payload_paths, unreadable
from tfs.runtime.interpreter import InterpreterStats, LoadMemory
from tfs.runtime.model_source import ModelSource
from tfs.runtime.process.call import Call
from tfs.runtime.process.call_lanes import CallLanes
from tfs.runtime.process.device_shares import DeviceShares, OnLost, VersionShare
from tfs.runtime.process.model_installation import install
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.version_template import VersionTemplate
from tfs.runtime.process.waiter import Waiter
from tfs.runtime.process.worker_conversation import (
    OnReply,
    WorkerConversation,
    WorkerReply,
)
from tfs.runtime.process.worker_life import WorkerLife
from tfs.runtime.process.worker_link import WorkerLink
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.process.zygote_client import ZygoteClient
from tfs.runtime.task_outcome import closed, finish, unloaded

log = logging.getLogger(__name__)

_WORKED_WELL_CALLS: Final = 100
_SCALE_PATIENCE_S: Final = 5.0  # for two threads' calls, beside what they should take
_HANDSHAKE_S: Final = 120.0  # torch's import on a loaded machine takes many seconds

T = TypeVar("T")


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

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: ZygoteClient,
        options: ProcessOptions | None = None,
        spare: SpareWorker | None = None,
        shares: DeviceShares | None = None,
    ) -> None:
        self._name = name
        self._shares = shares
        self._loop = loop
        self._options = options or ProcessOptions()
        self._life = WorkerLife(name, loop, zygote, self._options, spare, self)
        self._lanes = CallLanes(
            loop,
            self._options.max_queued,
            self._options.call_timeout_s,
            self._life.end,
            self._options.worker.spin_us / 1e6,
            zygote.busy_cores,
        )
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
        self.hold(source.platform)
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
        self._ask(
            lambda waiter: self._begin_unload(model, waiter),
            self._options.call_timeout_s * 2 + _HANDSHAKE_S,
            f"{model.source.id.slashed}: its interpreter does not let go of it",
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

    def hold(self, platform: str = "") -> None:
        """Starts the worker and keeps it, models or none, until ``let_go``. Blocks.

        Args:
            platform: Of what is to be loaded on it; empty where nobody knows.

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
            self._life.hold(on_ready)

        self._ask(begin, _HANDSHAKE_S, f"interpreter {self._name} does not start")

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
        return self._ask(begin, timeout_s, f"no answer within {timeout_s:.0f} s")

    def two_thread_scaling(
        self,
        model: ProcessModel,
        signature_name: str,
        inputs: Tensors,
        duration_s: float,
    ) -> float | None:
        """Has the worker call the model from two threads. Blocks.

        A worker that does not come back from it is replaced, and nothing is known.

        Raises:
            ServingError: The worker died over it.

        """
        fields: dict[str, object] = {"duration_s": duration_s}
        patience_s = self._options.call_timeout_s
        if model.last_call_s is not None:
            patience_s = min(patience_s, 10 * model.last_call_s + _SCALE_PATIENCE_S)
        link = self._life.link
        try:
            reply = self._try(
                "scale",
                model,
                signature_name,
                inputs,
                fields,
                8 * duration_s + patience_s,
                background=False,
            )
        except DeadlineExceeded:
            log.warning("event=two_threads_hang servable=%s", model.who)
            self._end_hanging(link, "two calls of its model at once hang")
            return None
        scaling = reply.get("scaling")
        return scaling if isinstance(scaling, float) else None

    def rehearse(
        self,
        model: ProcessModel,
        signature_name: str,
        inputs: Tensors,
        timeout_s: float,
    ) -> None:
        """Has the worker call the model once, at its lowest priority. Blocks.

        What goes wrong shows when the model is called again; a worker that does not
        come back from it is replaced.
        """
        link = self._life.link
        try:
            self._try(
                "rehearse",
                model,
                signature_name,
                inputs,
                {},
                timeout_s,
                background=not self._options.is_urgent(),
            )
        except DeadlineExceeded:
            self._end_hanging(link, "a call before it served hangs")
        except ServingError:
            pass

    def _end_hanging(self, link: WorkerLink | None, why: str) -> None:
        """Replaces a worker, if it is the present one yet."""

        def end() -> None:
            if link is not None and self._life.link is link:
                self._life.end(f"was ended because {why}")

        self._loop.post(end)

    def _try(
        self,
        op: str,
        model: ProcessModel,
        signature_name: str,
        inputs: Tensors,
        fields: Mapping[str, object],
        timeout_s: float,
        *,
        background: bool,
    ) -> Mapping[str, object]:
        """Has the worker call a model that serves nobody yet. Blocks.

        Raises:
            ServingError: The worker died over it, or does not answer.

        """
        who = model.source.id.slashed
        views = {
            name: TensorView(
                view.dtype,
                view.shape,
                view.data if isinstance(view.data, tuple) else bytes(view.data),
            )
            for name, view in inputs.items()
        }
        # Through a memfd written here: the loop must not copy a large batch.
        fd = new_memfd("probe")
        try:
            with open(fd, "wb", closefd=False) as file:
                pickle.dump(views, file)
            message = {
                **fields,
                "model": model.model_id,
                "signature": signature_name,
            }

            def begin(waiter: Waiter[Mapping[str, object]]) -> None:
                def on_reply(reply: WorkerReply | None) -> None:
                    if reply is None:
                        text = f"{who}: its interpreter {self._life.last_end}"
                        waiter.fail(Internal(text))
                    elif (error := reply.error()) is not None:
                        waiter.fail(error)
                    else:
                        waiter.set(reply.fields)

                conversation = self._life.conversation
                if self.state is not WorkerState.READY or conversation is None:
                    waiter.fail(Unavailable(f"{who}: its interpreter is restarting"))
                    return
                conversation.send(op, message, (fd,), on_reply, background=background)

            late = DeadlineExceeded(f"{who}: a call before it served took too long")
            return self._ask(begin, timeout_s, late)
        finally:
            os.close(fd)

    def _ask(
        self,
        begin: Callable[[Waiter[T]], None],
        timeout_s: float,
        late: str | ServingError,
    ) -> T:
        """Runs ``begin`` on the loop and waits for what it reports."""
        waiter: Waiter[T] = Waiter()
        if self.state is WorkerState.CLOSED:
            raise closed(self._name)
        self._loop.post(lambda: begin(waiter))
        return waiter.wait(
            timeout_s, late if isinstance(late, ServingError) else Internal(late)
        )

    # -- loading, on a manager thread ------------------------------------------------

    def stage(self, source: ModelSource) -> VersionFiles:
        """Has the worker copy the payload into memory, at its lowest priority.

        Blocks, and only within a ``hold``. The caller closes what it gets.

        Raises:
            ServingError: The payload cannot be read, or the worker died.

        """
        opened: list[int] = []
        staged: dict[str, int] = {}
        try:
            try:
                for name, path in payload_paths(source).items():
                    opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                    staged[name] = new_memfd(name)
                pairs = zip(opened, staged.values(), strict=True)
                fds = tuple(fd for pair in pairs for fd in pair)
                self._converse("copy", source, fds)
                files = {name: SealedFile.seal(fd) for name, fd in staged.items()}
            except OSError as error:
                raise unreadable(source, error) from error
        except BaseException:
            control_channel.close_all(list(staged.values()))
            raise
        finally:
            control_channel.close_all(opened)
        return VersionFiles(files)

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
        try:
            reply = self._converse("load", source, files.fds, model)
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

    def _converse(
        self,
        op: str,
        source: ModelSource,
        fds: tuple[int, ...],
        model: ProcessModel | None = None,
    ) -> Mapping[str, object]:
        who = source.id.slashed

        def begin(waiter: Waiter[Mapping[str, object]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                if reply is None:
                    waiter.fail(
                        Internal(
                            f"{who}: its interpreter {self._life.last_end} while loading it"
                        )
                    )
                elif (error := reply.error()) is not None:
                    waiter.fail(error)
                else:
                    if model is not None:
                        self._models[model.model_id] = model
                    waiter.set(reply.fields)

            conversation = self._life.conversation
            if self.state is not WorkerState.READY or conversation is None:
                waiter.fail(Unavailable(f"{who}: its interpreter is restarting"))
                return
            # In the background only where nobody is served: in an interpreter at
            # work a thread of low priority would hold the GIL and not run.
            background = not self._models and not self._options.is_urgent()
            if model is not None:
                install(
                    model,
                    conversation,
                    self._lanes,
                    self._options.worker.slab_bytes,
                    on_reply,
                    self._on_lost(),
                    background=background,
                )
            else:
                fields = {"source": source}
                conversation.send(op, fields, fds, on_reply, background=background)

        timeout_s = self._options.load_timeout_s
        late = f"{who}: loading took over {timeout_s:.1f} s"
        return self._ask(begin, timeout_s, late)

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
                    self._quarantine(model, f"does not load again: {error.message}")
                self._map_next(models, conversation)

            install(
                model,
                conversation,
                self._lanes,
                self._options.worker.slab_bytes,
                on_reply,
                self._on_lost(),
                background=False,
            )
            return
        self._life.settle()

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
            self._blame(culprit, how, self._loop.clock.now())

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

    def _blame(self, model: ProcessModel, how: str, now_s: float) -> None:
        crashes = model.health.crashes
        crashes.add(now_s)
        if crashes.is_too_many(now_s):
            num, window_s = crashes.num_recent(now_s), self._options.crashes.window_s
            self._quarantine(
                model,
                f"crashed {num} times within {window_s:.0f} s; "
                f"the last time its interpreter {how}",
            )

    def _quarantine(self, model: ProcessModel, reason: str) -> None:
        if model.health.quarantine is not None:
            return
        model.health.quarantine = reason
        who = model.source.id
        log.error("event=quarantined servable=%s reason=%r", who.slashed, reason)
        refusal = model.refusal()
        assert refusal is not None
        self._lanes.refuse(refusal, model)
        try:
            self._options.on_quarantine(who, reason)
        except Exception:
            log.exception("event=on_quarantine_failed servable=%s", who.slashed)

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
                self._life.retire_if_empty()
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
