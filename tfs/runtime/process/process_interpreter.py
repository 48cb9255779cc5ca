"""Backend ``process``: a worker beside the server, driven by the serving loop.

The worker is forked by the zygote. A call costs two doorbells and one copy of each
tensor into shared memory. Whatever a model does affects only its worker: a crash fails
the call that crashed, and the next worker is up with all models within milliseconds.
The deadlines and cancellations of clients never end a worker; only a call that takes
impossibly long does.

Without a server, any :class:`ServingLoop` that runs on a thread will do as the loop.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import TIMEOUT_MAX, get_ident
from typing import Final, TypeVar

from tfs.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    ServingError,
    Unavailable,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask
from tfs.core.system.thread_priority import give_way
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.slab import JOINED, RULE
from tfs.runtime.guest.version_files import VersionFiles, payload_paths
from tfs.runtime.interpreter import InterpreterStats, LoadMemory
from tfs.runtime.process.lane import Lane
from tfs.runtime.process.process_model import ModelRequest, ProcessModel, VersionHealth
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.spilled_task import (
    SpilledTask,
    takes_long_to_write,
    why_not_handed_over,
)
from tfs.runtime.process.worker import Worker
from tfs.runtime.process.worker_process import OnReply, WorkerProcess, WorkerReply
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.process.zygote import Zygote
from tfs.runtime.task_outcome import closed, finish

log = logging.getLogger(__name__)

_HANDSHAKE_S: Final = 120.0  # torch's import on a loaded machine takes many seconds
_SMALL_BYTES: Final = 1 << 20  # copied before a thread has started

Send = Callable[[WorkerProcess, OnReply], None]
"""Sends a request to a ready process; the answer goes to the second argument. On the loop."""

T = TypeVar("T")


class ProcessInterpreter:
    """Runs models in a process of their own. Thread-safe.

    ``load``, ``unload``, ``close``, ``hold`` and ``exchange`` block, so the loop's
    thread must not call them. Everything else happens on the loop.

    Args:
        name: The interpreter's name in logs.
        loop: Drives the conversation; it must run on some thread while somebody waits.
        zygote: Forks the workers; shared by the interpreters of a server.
        options: Limits, timeouts and how workers are made.
        spare: Provides the first worker, if it has one ready; shared by the
            interpreters of a server that have the same options.

    Attributes:
        options: See above.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: Zygote,
        options: ProcessOptions | None = None,
        spare: SpareWorker | None = None,
    ) -> None:
        self._name = name
        self._loop = loop
        self.options = options or ProcessOptions()
        self._lane = Lane(loop, self.options)
        self._worker = Worker(name, loop, zygote, self.options, spare, self._lane)
        # Filled by any thread, emptied by the loop, one post each.
        self._inbox: deque[tuple[ProcessModel, InferenceTask]] = deque()
        # One entry for each task that is being spilled.
        self._spilling: deque[None] = deque()
        self._model_ids = itertools.count()

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run, including those on their way to the loop."""
        return self._lane.num_pending + len(self._inbox) + len(self._spilling)

    @property
    def state(self) -> WorkerState:
        """The state of the process."""
        return self._worker.state

    @property
    def is_idle(self) -> bool:
        """Whether there is no process, nothing loaded and nothing being loaded."""
        return (
            self.state in (WorkerState.ABSENT, WorkerState.CLOSED)
            and not self._worker.models
            and not self._worker.is_held
        )

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while there is none."""
        return self._worker.pid

    @property
    def staged_words(self) -> tuple[int, int] | None:
        """What the worker says of its model in stages; None while there is no worker."""
        process = self._worker.process
        try:
            words = None if process is None else process.calls.slab.words
            return None if words is None else (words[RULE], words[JOINED])
        except ValueError:  # its memory was released meanwhile
            return None

    @property
    def num_unanswered(self) -> int:
        """Requests beside calls that the worker has not answered yet."""
        process = self._worker.process
        return 0 if process is None else process.num_awaited

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the worker is gone."""
        return self._worker.num_deaths

    def stats(self) -> InterpreterStats:
        return replace(
            self._lane.stats(),
            num_models=len(self._worker.models),
            num_restarts=self._worker.num_deaths,
        )

    def start(self) -> None:
        """Starts the zygote, so that it is ready for the first load."""
        self._loop.post(lambda: self._worker.want(lambda _: None))

    # -- loading and unloading, from other threads --------------------------------------

    def load(
        self,
        source: ModelSource,
        files: VersionFiles | None = None,
        health: VersionHealth | None = None,
    ) -> ProcessModel:
        """Loads a version. Blocks; call it on a manager thread.

        Args:
            source: What to load.
            files: Its payload, if it is in memory already; descriptors are duplicated.
            health: Shared by the interpreters of the version; None if there is only
                one.

        Raises:
            ServingError: The version does not load; nothing is left of it.

        """
        who = source.id.slashed
        if self._loop.is_loop_thread:
            raise FailedPrecondition(f"{who}: load blocks the loop")
        self.hold(source)
        staged: VersionFiles | None = None
        try:
            staged = files.duplicate() if files is not None else self.stage(source)
            health = health or VersionHealth(self.options.crashes)
            model = ProcessModel(source, staged, next(self._model_ids), health, self)
            # In the background only if the interpreter serves nobody. Otherwise a thread
            # of low priority could hold the GIL without getting a core.
            background = not self._worker.models and not self.options.is_urgent()
            timeout_s = self.options.load_timeout_s
            try:
                reply = self._ask(
                    who,
                    partial(self._worker.load, model, background),
                    timeout_s,
                    Internal(f"{who}: loading took over {timeout_s:.1f} s"),
                    meanwhile="while loading it",
                )
            except Internal:
                self._loop.post(partial(self._worker.give_up_loading, model))
                raise
            _note_load(model, reply)
            self._loop.post(partial(self._worker.begin_to_serve, model))
            return model
        except BaseException:
            if staged is not None:
                staged.close()
            raise
        finally:
            self.let_go()

    def stage(self, source: ModelSource) -> VersionFiles:
        """Copies the payload into memory; a large one at the lowest priority. Blocks.

        The caller closes the result.

        Raises:
            ServingError: The payload cannot be read.

        """
        paths = [*filter(os.path.exists, payload_paths(source).values())]
        is_small = sum(map(os.path.getsize, paths)) <= _SMALL_BYTES
        if is_small or self.options.is_urgent():
            return VersionFiles.stage(source)
        # A thread of its own, because none without privileges gets its priority back.
        with ThreadPoolExecutor(1, f"load-{self._name}", give_way) as thread:
            return thread.submit(VersionFiles.stage, source).result()

    def unload(self, model: ProcessModel) -> None:
        """Frees a model after the call that is running. Blocks."""
        if self.state is WorkerState.CLOSED:
            model.unloading = True
            model.health.loaded_in.pop(self._lane, None)
            return
        self._on_loop(
            partial(self._worker.unload, model),
            self.options.call_timeout_s * 2 + _HANDSHAKE_S,
            Internal(f"{model.who}: its interpreter does not let go of it"),
        )

    def close(self, deadline_s: float | None = None) -> None:
        if self.state is WorkerState.CLOSED:
            return
        if self._loop.is_loop_thread:
            self._worker.close()
            return

        def begin(is_closed: Future[None]) -> None:
            def end() -> None:
                self._worker.close()
                with suppress(
                    InvalidStateError
                ):  # of the deadline, or of the last call
                    is_closed.set_result(None)

            self._lane.refuse(closed(self._name))
            if deadline_s is not None:
                self._loop.call_at(deadline_s, end)
            self._lane.after_calls(end)

        timeout_s = self.options.call_timeout_s + _HANDSHAKE_S
        if deadline_s is not None:
            timeout_s = max(0.0, deadline_s - self._loop.clock.now()) + 5.0
        late = Internal(f"interpreter {self._name} does not close")
        self._on_loop(begin, timeout_s, late)

    def share_calls(self, others: Sequence[ProcessInterpreter]) -> None:
        """Takes over calls that wait for one of these while it is idle itself.

        For interpreters of one loop, before the first load.
        """
        self._lane.others = tuple(each._lane for each in others if each is not self)

    def hold(self, source: ModelSource | None = None) -> None:
        """Starts the worker and keeps it, with or without models, until ``let_go``. Blocks.

        Args:
            source: A version to be loaded on it; None if there is none yet.

        Raises:
            ServingError: No worker could be started.

        """

        def begin(is_ready: Future[None]) -> None:
            def on_ready(error: ServingError | None) -> None:
                if error is None:
                    is_ready.set_result(None)
                else:
                    is_ready.set_exception(error)

            self._worker.hold(source, on_ready)

        late = Internal(f"interpreter {self._name} does not start")
        self._on_loop(begin, _HANDSHAKE_S, late)

    def let_go(self) -> None:
        """Takes a ``hold`` back."""
        if self.state is not WorkerState.CLOSED:
            self._loop.post(self._worker.let_go)

    def ask(self, request: ModelRequest) -> Mapping[str, object]:
        """Has the worker answer a request about a model; see ``ModelHost``."""
        process = self._worker.process

        def send(process: WorkerProcess, on_reply: OnReply) -> None:
            process.send(
                request.op,
                request.fields,
                request.fds,
                on_reply,
                background=request.background,
            )

        late = DeadlineExceeded(f"{request.who}: its interpreter does not answer")
        try:
            return self._ask(request.who, send, request.timeout_s, late)
        except DeadlineExceeded:
            if request.hangs:
                why = f"was ended because {request.hangs}"
                self._loop.post(lambda: self._worker.end_hanging(process, why))
            raise

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the worker's session guest answer a request. Blocks.

        Returns:
            The reply, and descriptors that the caller closes.

        Raises:
            ServingError: The error that the guest returned; or Internal if the worker
                died over the request, and with it everything that the session held.

        """

        def begin(answer: Future[tuple[bytes, list[int]]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                if reply is None:
                    text = f"the interpreter of this session {self._worker.last_end}"
                    gone = Internal(f"{text}; what it held is gone, begin anew")
                    answer.set_exception(gone)
                elif (error := reply.error()) is not None:
                    answer.set_exception(error)
                else:
                    taken, reply.fds = reply.fds, []
                    answer.set_result((reply.payload, taken))

            def when_ready(error: ServingError | None) -> None:
                if error is not None:
                    answer.set_exception(error)
                elif (process := self._worker.live) is not None:
                    fields = {"body": request}
                    process.send("session", fields, fds, on_reply, background=False)

            self._worker.want(when_ready)

        timeout_s = self.options.load_timeout_s
        late = Internal(
            f"interpreter {self._name} did not answer a session within {timeout_s:.0f} s; "
            "allow its calls more time (load_timeout_s), or begin a session anew"
        )
        return self._on_loop(begin, timeout_s, late)

    def _on_loop(
        self,
        begin: Callable[[Future[T]], None],
        timeout_s: float,
        late: ServingError,
    ) -> T:
        """Runs ``begin`` on the loop, and returns what it reports. Blocks.

        Raises:
            ServingError: The error that it reports; ``late`` if it reports nothing for
                ``timeout_s`` seconds; or the interpreter is closed, and nothing ran.

        """
        if self.state is WorkerState.CLOSED:
            raise closed(self._name)
        answer = Future[T]()
        self._loop.post(lambda: begin(answer))
        try:
            return answer.result(min(timeout_s, TIMEOUT_MAX))
        except TimeoutError:
            raise late from None

    def _ask(
        self,
        who: str,
        send: Send,
        timeout_s: float,
        late: ServingError,
        *,
        meanwhile: str = "",
    ) -> Mapping[str, object]:
        """Returns the present process's answer to a request. Blocks.

        Args:
            who: The version it is about, for messages.
            send: Sends it.
            timeout_s: How long to wait.
            late: Raised after that.
            meanwhile: What the process was doing if it dies, for messages.

        Raises:
            ServingError: As ``on_loop``; or the process's error; or there is none, or
                it died.

        """

        def begin(answer: Future[Mapping[str, object]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                if reply is None:
                    how = f"{self._worker.last_end} {meanwhile}".rstrip()
                    answer.set_exception(Internal(f"{who}: its interpreter {how}"))
                elif (error := reply.error()) is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(reply.fields)

            process = self._worker.live
            if self.state is not WorkerState.READY or process is None:
                error = Unavailable(f"{who}: its interpreter is restarting")
                answer.set_exception(error)
            else:
                send(process, on_reply)

        return self._on_loop(begin, timeout_s, late)

    # -- calls ----------------------------------------------------------------------------

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        """Starts a task, from any thread. Never blocks, never raises."""
        if get_ident() == self._loop.thread_ident:
            if takes_long_to_write(task):
                self._spill_elsewhere(model, task)
            else:
                self._lane.add(model, task)
        elif self.state is WorkerState.CLOSED:
            finish(task, closed(self._name))  # because the loop may be gone
        else:
            self._inbox.append((model, task))
            self._loop.post(self._take_from_inbox)

    def _take_from_inbox(self) -> None:
        self.enqueue(*self._inbox.popleft())

    def _spill_elsewhere(self, model: ProcessModel, task: InferenceTask) -> None:
        self._spilling.append(None)
        spill = partial(self._spill, model, task)
        try:
            self.options.executor.submit(spill)
        except RuntimeError:  # the server ends
            spill()

    def _spill(self, model: ProcessModel, task: InferenceTask) -> None:
        """Copies a task's tensors, and starts it. On a thread of the executor."""
        error = task.cancel.error
        if error is None:
            try:
                task = SpilledTask(task, partial(self.enqueue, model))
            except Exception as failure:
                error = why_not_handed_over(model.who, failure)
        self._spilling.pop()
        if error is None:
            self.enqueue(model, task)
        else:
            finish(task, error)


def _note_load(model: ProcessModel, reply: Mapping[str, object]) -> None:
    """Records what a load took and changed, as far as the worker tells."""

    def num_bytes(key: str) -> int | None:
        value = reply.get(key)
        return value if isinstance(value, int) else None

    # The worker maps weights without reading them, so imports take most of the time.
    import_s = reply.get("import_s")
    model.import_s = import_s if isinstance(import_s, float) else None
    model.process_changes = str(reply.get("changes", ""))
    model.load_memory = LoadMemory(
        num_bytes("resident_bytes"), num_bytes("load_peak_bytes")
    )
