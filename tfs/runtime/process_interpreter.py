"""Backend ``process``: a worker beside the server, driven by the serving loop.

The worker is forked by the zygote; a call costs two doorbells and one copy of each
tensor into shared memory. What a model does there stays there: a crash fails the call
that crashed, the next worker is up with all models within milliseconds, and nobody
else notices. Deadlines and cancellations of clients never touch the worker; only a call
that takes impossibly long does.

Everything but ``load``, ``unload``, ``close`` and ``stats`` happens on the loop. Used
without a server, the loop is any :class:`ServingLoop` that runs on a thread.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from tfs.core.errors import (
    BY_CODE,
    Code,
    FailedPrecondition,
    Internal,
    InterpreterDied,
    InvalidArgument,
    ServingError,
    Unavailable,
)
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.serving_loop import ServingLoop, Timer
from tfs.core.tensor_view import TensorView
from tfs.runtime.call_times import CallTimes
from tfs.runtime.crash_policy import CrashHistory, CrashPolicy, describe_status
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd
from tfs.runtime.guest.slab import NUM_SLOTS, REQUESTS
from tfs.runtime.guest.version_files import VersionFiles, payload_paths, unreadable
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.model_source import ModelSource
from tfs.runtime.slab_call import CorruptReply, read_reply, write_request
from tfs.runtime.task_outcome import closed, finish, queue_full, unloaded, why_not_run
from tfs.runtime.worker_link import WorkerLink
from tfs.runtime.zygote_client import Forked, ZygoteClient

log = logging.getLogger(__name__)

_STATUS_WAIT_S: Final = 0.05  # for the zygote to say how a worker died
_START_AGAIN_S: Final = 1.0  # after the zygote could not be started
_HANDSHAKE_S: Final = 120.0  # torch's import on a loaded machine takes many seconds


def _ignore_quarantine(servable: ServableId, reason: str) -> None:
    """Stands in where nobody wants to know."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Immutable.

    Attributes:
        worker: How the processes run.
        max_queued: Tasks that may wait per interpreter; one more is Unavailable.
        call_timeout_s: A call that takes longer (or 10 times what calls of its size
            took, if that is more) ends its interpreter.
        load_timeout_s: The same for loading a version.
        crashes: When a crash is one too many.
        on_quarantine: Called on the loop with the version and the reason.

    """

    worker: WorkerOptions = field(default_factory=WorkerOptions)
    max_queued: int = 256
    call_timeout_s: float = 30.0
    load_timeout_s: float = 600.0
    crashes: CrashPolicy = field(default_factory=CrashPolicy)
    on_quarantine: Callable[[ServableId, str], None] = _ignore_quarantine

    def __post_init__(self) -> None:
        if self.max_queued < 1:
            raise ValueError("max_queued must be >= 1")
        if self.call_timeout_s <= 0 or self.load_timeout_s <= 0:
            raise ValueError("timeouts must be > 0")


class WorkerState(enum.Enum):
    """Where an interpreter's process is."""

    ABSENT = "absent"  # no model wants one
    FORKING = "forking"  # asked of the zygote
    MAPPING = "mapping"  # alive, loading what its predecessor had
    READY = "ready"
    DEAD = "dead"  # gone; the next one is due now or after a pause
    CLOSED = "closed"


TRANSITIONS: Final[Mapping[WorkerState, frozenset[WorkerState]]] = {
    WorkerState.ABSENT: frozenset({WorkerState.FORKING, WorkerState.CLOSED}),
    WorkerState.FORKING: frozenset(
        {WorkerState.MAPPING, WorkerState.DEAD, WorkerState.CLOSED}
    ),
    WorkerState.MAPPING: frozenset(
        {WorkerState.READY, WorkerState.DEAD, WorkerState.CLOSED}
    ),
    WorkerState.READY: frozenset(
        {WorkerState.DEAD, WorkerState.ABSENT, WorkerState.CLOSED}
    ),
    WorkerState.DEAD: frozenset(
        {WorkerState.FORKING, WorkerState.ABSENT, WorkerState.CLOSED}
    ),
    WorkerState.CLOSED: frozenset(),
}


class ProcessModel:
    """A version on a :class:`ProcessInterpreter`. Thread-safe."""

    def __init__(
        self,
        interpreter: ProcessInterpreter,
        source: ModelSource,
        files: VersionFiles,
        model_id: int,
        policy: CrashPolicy,
    ) -> None:
        self._interpreter = interpreter
        self._source = source
        # The rest is the loop's.
        self.files = files
        self.model_id = model_id
        self.signature_indexes = {
            name: index for index, name in enumerate(source.signatures)
        }
        self.times = CallTimes()
        self.crashes = CrashHistory(policy)
        self.quarantine: str | None = None
        self.unloading = False
        self.told_of_writes = False
        self.import_s: float | None = None

    @property
    def source(self) -> ModelSource:
        return self._source

    @property
    def pid(self) -> int:
        """The worker's process, or ours while there is none."""
        return self._interpreter.pid or os.getpid()

    @property
    def num_pending(self) -> int:
        """Tasks of the interpreter that wait or run; for balancing."""
        return self._interpreter.num_pending

    def submit(self, task: InferenceTask) -> None:
        self._interpreter.enqueue(self, task)

    def unload(self) -> None:
        self._interpreter.unload(self)

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Has the worker measure it; see ``MeasurableModel``."""
        return self._interpreter.two_thread_scaling(
            self, signature_name, inputs, duration_s
        )


class _Call:
    """A task in a slot."""

    __slots__ = ("model", "sequence", "signature_index", "task")

    def __init__(
        self,
        model: ProcessModel,
        task: InferenceTask,
        signature_index: int,
        sequence: int,
    ) -> None:
        self.model = model
        self.task = task
        self.signature_index = signature_index
        self.sequence = sequence


class _Waiter:
    """A manager thread that waits for something the loop does."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: ServingError | None = None
        self.value: Mapping[str, object] = {}

    def set(self, value: Mapping[str, object]) -> None:
        self.value = value
        self._done.set()

    def fail(self, error: ServingError) -> None:
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float, late: ServingError) -> Mapping[str, object]:
        if not self._done.wait(timeout_s):
            raise late
        if self._error is not None:
            raise self._error
        return self.value


class ProcessInterpreter:
    """Runs models in a process of their own. Thread-safe.

    Args:
        name: For logs.
        loop: Drives the conversation; it must run on some thread while ``load``,
            ``unload`` or ``close`` wait.
        zygote: Forks the workers; shared by the interpreters of a server.
        options: See there.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: ZygoteClient,
        options: ProcessOptions | None = None,
    ) -> None:
        self._name = name
        self._loop = loop
        self._zygote = zygote
        self._options = options or ProcessOptions()
        self._state = WorkerState.ABSENT
        self._link: WorkerLink | None = None
        self._queue: deque[tuple[ProcessModel, InferenceTask]] = deque()
        self._calls: deque[_Call] = deque()
        self._sequence = 0  # requests written to the present worker
        self._head_begun_s = 0.0
        self._call_timer: Timer | None = None
        self._respawn_timer: Timer | None = None
        self._models: dict[int, ProcessModel] = {}
        self._next_model_id = 0
        self._num_loading = 0
        self._next_message_id = 0
        self._awaited: dict[int, Callable[[Mapping[str, object] | None], None]] = {}
        self._mapping: ProcessModel | None = None  # being loaded again
        self._when_ready: list[Callable[[ServingError | None], None]] = []
        self._when_idle: list[Callable[[], None]] = []
        self._deaths = CrashHistory(self._options.crashes)
        self._killed_for: str | None = None
        self._last_end = "ended"
        self._start_failed = False
        self._num_calls = 0
        self._num_dropped = 0
        self._num_failed = 0
        self._num_restarts = 0
        self._busy_s = 0.0

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run."""
        return len(self._queue) + len(self._calls)

    @property
    def state(self) -> WorkerState:
        """Where the process is."""
        return self._state

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        link = self._link
        return link.pid if link is not None and link.pid > 0 else None

    def stats(self) -> InterpreterStats:
        return InterpreterStats(
            num_models=len(self._models),
            num_queued=len(self._queue),
            num_calls=self._num_calls,
            num_dropped=self._num_dropped,
            num_failed=self._num_failed,
            num_restarts=self._num_restarts,
            busy_s=self._busy_s,
        )

    # -- from any thread ---------------------------------------------------------

    def start(self) -> None:
        """Asks for the process now, so that the first load finds it."""
        self._loop.post(lambda: self._want_worker(lambda _: None))

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        """Starts a task. Never blocks, never raises."""
        if self._loop.is_loop_thread:
            self._enqueue(model, task)
        elif self._state is WorkerState.CLOSED:
            finish(task, closed(self._name))  # the loop may be gone
        else:
            self._loop.post(lambda: self._enqueue(model, task))

    def load(
        self, source: ModelSource, files: VersionFiles | None = None
    ) -> ProcessModel:
        """Loads a version. Blocks; call it on a manager thread.

        Args:
            source: What to load.
            files: Its payload, where another interpreter has staged it already;
                descriptors are duplicated.

        Raises:
            ServingError: The version does not load; nothing is left of it.

        """
        who = source.id.slashed
        if self._loop.is_loop_thread:
            raise FailedPrecondition(f"{who}: load blocks; call it off the loop")
        self._ask(self._begin_load, _HANDSHAKE_S, f"{who}: no interpreter in time")
        staged: VersionFiles | None = None
        try:
            staged = files.duplicate() if files is not None else self._stage(source)
            return self._load(source, staged)
        except BaseException:
            if staged is not None:
                staged.close()
            raise
        finally:
            self._loop.post(self._end_load)

    def unload(self, model: ProcessModel) -> None:
        """Frees a model behind the call that runs. Blocks."""
        if self._state is WorkerState.CLOSED:
            model.unloading = True
            return
        self._ask(
            lambda waiter: self._begin_unload(model, waiter),
            self._options.call_timeout_s * 2 + _HANDSHAKE_S,
            f"{model.source.id.slashed}: its interpreter does not let go of it",
        )

    def close(self, deadline_s: float | None = None) -> None:
        if self._state is WorkerState.CLOSED:
            return
        waiter = _Waiter()

        def begin() -> None:
            self._refuse_queued(closed(self._name))
            self._after_calls(lambda: self._finish_close(waiter))
            if deadline_s is not None:
                self._loop.call_at(deadline_s, lambda: self._finish_close(waiter))

        if self._loop.is_loop_thread:
            self._refuse_queued(closed(self._name))
            self._finish_close(waiter)
            return
        self._loop.post(begin)
        timeout_s = self._options.call_timeout_s + _HANDSHAKE_S
        if deadline_s is not None:
            timeout_s = max(0.0, deadline_s - self._loop.clock.now()) + 5.0
        waiter.wait(timeout_s, Internal(f"interpreter {self._name} does not close"))

    def _ask(
        self, begin: Callable[[_Waiter], None], timeout_s: float, late: str
    ) -> Mapping[str, object]:
        """Runs ``begin`` on the loop and waits for what it reports."""
        waiter = _Waiter()
        if self._state is WorkerState.CLOSED:
            raise closed(self._name)
        self._loop.post(lambda: begin(waiter))
        return waiter.wait(timeout_s, Internal(late))

    # -- sessions, for the library -----------------------------------------------------

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the worker is gone."""
        return self._num_restarts

    def hold(self) -> None:
        """Starts the worker and keeps it, models or none, until ``let_go``. Blocks.

        Raises:
            ServingError: There is no worker to be had.

        """
        self._ask(
            self._begin_load, _HANDSHAKE_S, f"{self._name}: no interpreter in time"
        )

    def let_go(self) -> None:
        """Takes a ``hold`` back."""
        if self._state is not WorkerState.CLOSED:
            self._loop.post(self._end_load)

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the worker's session guest answer a request. Blocks.

        Returns:
            The reply, and descriptors the caller closes.

        Raises:
            ServingError: The guest's, or Internal if the worker died over it.

        """

        def begin(waiter: _Waiter) -> None:
            def on_reply(reply: Mapping[str, object] | None) -> None:
                if reply is None:
                    waiter.fail(
                        Internal(f"the interpreter of this session {self._last_end}")
                    )
                elif reply.get("code") != 0:
                    waiter.fail(_error_of(reply))
                else:
                    taken = list(cast("list[int]", reply["fds"]))
                    cast("list[int]", reply["fds"]).clear()
                    waiter.set({"payload": reply["payload"], "fds": taken})

            def when_ready(error: ServingError | None) -> None:
                if error is not None:
                    waiter.fail(error)
                else:
                    self._send(
                        "session", {"body": request}, fds, on_reply, background=False
                    )

            self._want_worker(when_ready)

        timeout_s = self._options.load_timeout_s
        reply = self._ask(begin, timeout_s, f"no answer within {timeout_s:.0f} s")
        return cast("bytes", reply["payload"]), cast("list[int]", reply["fds"])

    # -- measuring, on the manager thread ---------------------------------------------

    def two_thread_scaling(
        self,
        model: ProcessModel,
        signature_name: str,
        inputs: Tensors,
        duration_s: float,
    ) -> float | None:
        """Has the worker call the model from two threads. Blocks.

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
            fields = {
                "model": model.model_id,
                "signature": signature_name,
                "duration_s": duration_s,
            }

            def begin(waiter: _Waiter) -> None:
                def on_reply(reply: Mapping[str, object] | None) -> None:
                    if reply is None:
                        waiter.fail(
                            Internal(f"{who}: its interpreter {self._last_end}")
                        )
                    elif reply.get("code") != 0:
                        waiter.fail(_error_of(reply))
                    else:
                        waiter.set(reply)

                if self._state is not WorkerState.READY:
                    waiter.fail(Unavailable(f"{who}: its interpreter is restarting"))
                    return
                self._send("scale", fields, (fd,), on_reply, background=False)

            timeout_s = 8 * duration_s + self._options.call_timeout_s
            reply = self._ask(begin, timeout_s, f"{who}: measuring it took too long")
        finally:
            os.close(fd)
        scaling = reply.get("scaling")
        return scaling if isinstance(scaling, float) else None

    # -- loading, on the manager thread ---------------------------------------------

    def _stage(self, source: ModelSource) -> VersionFiles:
        """Has the worker copy the payload into memory, at its lowest priority."""
        paths = payload_paths(source)
        staged: dict[str, int] = {}
        opened: list[int] = []
        try:
            try:
                for name, path in paths.items():
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

    def _load(self, source: ModelSource, files: VersionFiles) -> ProcessModel:
        model_id = self._next_model_id
        self._next_model_id += 1
        model = ProcessModel(self, source, files, model_id, self._options.crashes)
        reply = self._converse("load", source, files.fds, model=model)
        load_s = reply.get("load_s")
        # The worker maps weights and does not read them: what it takes is importing.
        model.import_s = load_s if isinstance(load_s, float) else None
        return model

    def _converse(
        self,
        op: str,
        source: ModelSource,
        fds: tuple[int, ...],
        model: ProcessModel | None = None,
    ) -> Mapping[str, object]:
        who = source.id.slashed

        def begin(waiter: _Waiter) -> None:
            def on_reply(reply: Mapping[str, object] | None) -> None:
                if reply is None:
                    waiter.fail(
                        Internal(
                            f"{who}: its interpreter {self._last_end} while loading it"
                        )
                    )
                elif reply.get("code") != 0:
                    waiter.fail(_error_of(reply))
                else:
                    if model is not None:
                        self._models[model.model_id] = model
                    waiter.set(reply)

            if self._state is not WorkerState.READY:
                waiter.fail(Unavailable(f"{who}: its interpreter is restarting"))
                return
            extra: dict[str, object] = {"source": source}
            if model is not None:
                extra |= {"model": model.model_id, "files": list(model.files.files)}
            # In the background only where nobody is served: in an interpreter at
            # work a thread of low priority would hold the GIL and not run.
            self._send(op, extra, fds, on_reply, background=not self._models)

        timeout_s = self._options.load_timeout_s
        try:
            return self._ask(
                begin, timeout_s, f"{who}: loading took over {timeout_s:.0f} s"
            )
        except Internal:
            if model is not None:
                self._loop.post(lambda: self._give_up_loading(model))
            raise

    def _give_up_loading(self, model: ProcessModel) -> None:
        """Ends a worker that still loads what nobody waits for any more."""
        if self._state is WorkerState.READY and model.model_id not in self._models:
            link = self._link
            if link is not None and self._awaited:
                link.kill()

    # -- everything below runs on the loop ------------------------------------------

    def _move(self, state: WorkerState) -> None:
        if state not in TRANSITIONS[self._state]:
            raise AssertionError(f"{self._name}: {self._state} to {state}")
        self._state = state

    def _begin_load(self, waiter: _Waiter) -> None:
        self._num_loading += 1

        def on_ready(error: ServingError | None) -> None:
            if error is None:
                waiter.set({})
            else:
                self._num_loading -= 1
                waiter.fail(error)

        self._want_worker(on_ready)

    def _end_load(self) -> None:
        self._num_loading -= 1
        self._retire_if_empty()

    def _want_worker(self, on_ready: Callable[[ServingError | None], None]) -> None:
        """Calls ``on_ready`` once a worker is ready, or cannot be had."""
        match self._state:
            case WorkerState.READY:
                on_ready(None)
            case WorkerState.CLOSED:
                on_ready(closed(self._name))
            case WorkerState.ABSENT:
                self._when_ready.append(on_ready)
                self._zygote.acquire()
                self._fork()
            case _:
                self._when_ready.append(on_ready)

    def _fork(self) -> None:
        self._move(WorkerState.FORKING)
        try:
            link = self._link = WorkerLink(self._options.worker.slab_bytes)
        except OSError as error:
            self._cannot_start(str(error.strerror))
            return
        self._sequence = 0

        def on_forked(outcome: Forked | str) -> None:
            if link is not self._link or self._state is not WorkerState.FORKING:
                if isinstance(outcome, Forked):
                    link.attach(outcome.pid, outcome.pidfd)
                link.close()
            elif isinstance(outcome, Forked):
                link.attach(outcome.pid, outcome.pidfd)
                self._on_forked(link)
            else:
                link.close()
                self._link = None
                self._cannot_start(outcome)

        self._zygote.fork(self._options.worker, link.remote_fds, on_forked)

    def _cannot_start(self, why: str) -> None:
        """Answers whoever waits, and tries again later for the models there are."""
        self._start_failed = True
        self._move(WorkerState.DEAD)
        error = Unavailable(f"interpreter {self._name} cannot be started: {why}")
        log.error("event=interpreter_start_failed interpreter=%s %s", self._name, why)
        waiting, self._when_ready = self._when_ready, []
        for on_ready in waiting:
            on_ready(error)
        self._refuse_queued(error)
        self._respawn_after_death()

    def _on_forked(self, link: WorkerLink) -> None:
        self._move(WorkerState.MAPPING)
        self._start_failed = False
        loop = self._loop
        loop.watch(link.reply_fd, lambda _: self._on_replies())
        loop.watch(link.pidfd, lambda _: self._on_pidfd(link))
        loop.watch(link.control.fileno(), lambda _: self._on_control(link))
        self._map_next(list(self._models.values()))

    def _map_next(self, models: list[ProcessModel]) -> None:
        """Loads what the interpreter had, one after the other; then it is ready."""
        while models:
            model = models.pop(0)
            if model.quarantine is not None or model.unloading:
                continue

            def on_reply(
                reply: Mapping[str, object] | None, model: ProcessModel = model
            ) -> None:
                self._mapping = None
                if reply is None:
                    return  # it died; that is seen to elsewhere
                if reply.get("code") != 0:
                    self._put_in_quarantine(
                        model, f"does not load again: {_error_of(reply).message}"
                    )
                self._map_next(models)

            self._mapping = model
            self._send(
                "load",
                {
                    "source": model.source,
                    "model": model.model_id,
                    "files": list(model.files.files),
                },
                model.files.fds,
                on_reply,
                background=False,
            )
            return
        self._move(WorkerState.READY)
        waiting, self._when_ready = self._when_ready, []
        for on_ready in waiting:
            on_ready(None)
        self._pump()
        self._retire_if_empty()

    # -- calls ------------------------------------------------------------------------

    def _enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        if self._state is WorkerState.CLOSED:
            finish(task, closed(self._name))
        elif model.unloading:
            finish(task, unloaded(model.source.id))
        elif model.quarantine is not None:
            finish(task, _quarantined(model))
        elif len(self._queue) >= self._options.max_queued:
            finish(task, queue_full(model.source.id, self._options.max_queued))
        elif task.signature_name not in model.signature_indexes:
            finish(
                task,
                FailedPrecondition(
                    f"{model.source.id.slashed} has no signature "
                    f"{task.signature_name!r}"
                ),
            )
        else:
            self._queue.append((model, task))
            self._pump()

    def _pump(self) -> None:
        """Hands waiting tasks to the worker as long as it takes them."""
        link, calls = self._link, self._calls
        while self._queue and self._state is WorkerState.READY and link is not None:
            if calls and (len(calls) >= NUM_SLOTS or not self._head_is_short()):
                return
            model, task = self._queue.popleft()
            refused = why_not_run(task, self._loop.clock.now())
            if refused is not None:
                self._num_dropped += 1
                finish(task, refused)
                continue
            self._write(link, model, task)

    def _head_is_short(self) -> bool:
        head = self._calls[0]
        return head.model.times.is_short(head.signature_index, head.task.num_rows)

    def _write(
        self, link: WorkerLink, model: ProcessModel, task: InferenceTask
    ) -> None:
        index = model.signature_indexes[task.signature_name]
        slab = link.slab
        slot = slab.slots[self._sequence % NUM_SLOTS]
        try:
            overflow_fd = write_request(slab, slot, model.model_id, index, task)
            if overflow_fd is not None:
                try:
                    link.send_tensors(overflow_fd)
                finally:
                    os.close(overflow_fd)
        except InvalidArgument as error:
            finish(task, InvalidArgument(f"{model.source.id.slashed}: {error.message}"))
            return
        except Exception as error:
            who = model.source.id.slashed
            finish(task, Internal(f"{who}: the request cannot be handed over: {error}"))
            return
        call = _Call(model, task, index, self._sequence)
        self._sequence += 1
        slab.words[REQUESTS] = self._sequence
        self._calls.append(call)
        if len(self._calls) == 1:
            self._begin_head()
        link.ring()

    def _begin_head(self) -> None:
        """Notes that the oldest call runs now, and watches over it."""
        self._head_begun_s = self._loop.clock.now()
        if self._call_timer is None:
            self._arm_call_timer()

    def _arm_call_timer(self) -> None:
        head = self._calls[0]
        limit_s = head.model.times.limit_s(
            head.signature_index, head.task.num_rows, self._options.call_timeout_s
        )
        # One timer for many calls: it is armed anew only when it fires, and then
        # looks which call runs.
        self._call_timer = self._loop.call_at(
            self._head_begun_s + limit_s, self._check_head
        )

    def _check_head(self) -> None:
        self._call_timer = None
        if not self._calls or self._link is None:
            return
        head = self._calls[0]
        limit_s = head.model.times.limit_s(
            head.signature_index, head.task.num_rows, self._options.call_timeout_s
        )
        if self._loop.clock.now() < self._head_begun_s + limit_s:
            self._arm_call_timer()
            return
        self._killed_for = f"was ended because a call took over {limit_s:.0f} s"
        self._link.kill()

    def _on_replies(self) -> None:
        link = self._link
        if link is None:
            return
        done: list[tuple[InferenceTask, Outcome]] = []
        for _ in range(link.num_replies()):
            if not self._calls:
                break
            call = self._calls.popleft()
            try:
                outcome = self._read(link, call)
            except CorruptReply as error:
                self._killed_for = f"was ended: it corrupted its memory ({error})"
                self._calls.appendleft(call)
                link.kill()
                break
            done.append((call.task, outcome))
            if self._calls:
                self._begin_head()
        # The worker first: it computes while the answers are handed out.
        self._pump()
        for task, outcome in done:
            finish(task, outcome)
        if not self._calls and self._when_idle:
            self._tell_idle()

    def _read(self, link: WorkerLink, call: _Call) -> Outcome:
        slot = link.slab.slots[call.sequence % NUM_SLOTS]
        overflow_fd: int | None = None
        who = call.model.source.id.slashed
        try:
            if (
                link.slab.words[slot.reply_word] == 0
                and (link.slab.words[slot.reply_word + 2])
            ):
                overflow_fd = link.receive_tensors()
            outcome, call_s = read_reply(
                link.slab, slot, who, call.task.signature, overflow_fd
            )
        finally:
            if overflow_fd is not None:
                os.close(overflow_fd)
        self._num_calls += 1
        self._busy_s += call_s
        if isinstance(outcome, ServingError):
            self._num_failed += 1
        else:
            call.model.times.observe(call.signature_index, call.task.num_rows, call_s)
        return outcome

    def _refuse_queued(
        self, error: ServingError, model: ProcessModel | None = None
    ) -> None:
        kept: deque[tuple[ProcessModel, InferenceTask]] = deque()
        refused: list[InferenceTask] = []
        for item in self._queue:
            if model is None or item[0] is model:
                refused.append(item[1])
            else:
                kept.append(item)
        self._queue = kept
        for task in refused:
            finish(task, error)

    # -- death ------------------------------------------------------------------------

    def _on_pidfd(self, link: WorkerLink) -> None:
        """The process is gone; the zygote says how, or has a moment to do so."""
        self._loop.unwatch(link.pidfd)
        if link is not self._link:
            return
        if self._killed_for is not None:
            self._on_death(link, None)
            return
        timer: list[Timer] = []

        def on_status(status: int | None) -> None:
            timer[0].cancel()
            self._zygote.unwatch_death(link.pid)
            if link is self._link:
                self._on_death(link, status)

        now_s = self._loop.clock.now()
        timer.append(
            self._loop.call_at(now_s + _STATUS_WAIT_S, lambda: on_status(None))
        )
        self._zygote.watch_death(link.pid, on_status)

    def _on_death(self, link: WorkerLink, status: int | None) -> None:
        self._on_replies()  # what it had finished is good
        if link is not self._link:
            return
        how = self._last_end = self._killed_for or describe_status(status)
        self._killed_for = None
        now_s = self._loop.clock.now()
        begun = link.num_started()
        mapping, self._mapping = self._mapping, None
        self._drop_link()
        self._move(WorkerState.DEAD)
        self._num_restarts += 1
        self._deaths.add(now_s)
        log.error(
            "event=interpreter_died interpreter=%s pid=%d how=%r calls=%d",
            self._name,
            link.pid,
            how,
            len(self._calls),
        )
        failed: list[_Call] = []
        spared: list[_Call] = []
        for call in self._calls:
            # Calls run in order: the first may have been running whatever the word
            # says, the second only if it says so.
            if not failed or call.sequence < begun:
                failed.append(call)
            else:
                spared.append(call)
        self._calls.clear()
        for call in reversed(spared):
            self._queue.appendleft((call.model, call.task))
        culprit = failed[-1].model if failed else mapping
        if culprit is not None:
            self._blame(culprit, how, now_s)
        awaited, self._awaited = self._awaited, {}
        self._respawn_after_death()
        for call in failed:
            finish(
                call.task,
                InterpreterDied(
                    f"{call.model.source.id.slashed}: the interpreter that ran this "
                    f"request {how}"
                ),
            )
        for on_reply in awaited.values():
            on_reply(None)
        if self._when_idle:
            self._tell_idle()

    def _blame(self, model: ProcessModel, how: str, now_s: float) -> None:
        model.crashes.add(now_s)
        if model.crashes.is_too_many(now_s):
            num = model.crashes.num_recent(now_s)
            window_s = self._options.crashes.window_s
            self._put_in_quarantine(
                model,
                f"crashed {num} times within {window_s:.0f} s; "
                f"the last time its interpreter {how}",
            )

    def _put_in_quarantine(self, model: ProcessModel, reason: str) -> None:
        model.quarantine = reason
        log.error(
            "event=quarantined servable=%s reason=%r", model.source.id.slashed, reason
        )
        self._refuse_queued(_quarantined(model), model)
        try:
            self._options.on_quarantine(model.source.id, reason)
        except Exception:
            log.exception("event=on_quarantine_failed")

    def _respawn_after_death(self) -> None:
        if self._state is not WorkerState.DEAD:
            return
        if not self._is_wanted():
            self._move(WorkerState.ABSENT)
            self._zygote.release()
            return
        now_s = self._loop.clock.now()
        delay_s = self._deaths.respawn_delay_s(now_s)
        if self._start_failed:
            delay_s = max(delay_s, _START_AGAIN_S)
        if delay_s == 0.0:
            self._fork()
        else:
            self._respawn_timer = self._loop.call_at(now_s + delay_s, self._respawn)

    def _respawn(self) -> None:
        self._respawn_timer = None
        if self._state is WorkerState.DEAD:
            if self._is_wanted():
                self._fork()
            else:
                self._move(WorkerState.ABSENT)
                self._zygote.release()

    def _is_wanted(self) -> bool:
        return bool(
            self._num_loading
            or self._when_ready
            or any(model.quarantine is None for model in self._models.values())
        )

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        for fd in (link.reply_fd, link.pidfd, link.control.fileno()):
            self._loop.unwatch(fd)
        if self._call_timer is not None:
            self._call_timer.cancel()
            self._call_timer = None
        link.close()

    # -- control ------------------------------------------------------------------------

    def _send(
        self,
        op: str,
        fields: Mapping[str, object],
        fds: tuple[int, ...],
        on_reply: Callable[[Mapping[str, object] | None], None],
        *,
        background: bool,
    ) -> None:
        """Asks the worker's control thread; ``on_reply(None)`` if it dies first."""
        message_id = self._next_message_id
        self._next_message_id += 1
        message = {"id": message_id, "op": op, "background": background, **fields}
        assert self._link is not None
        self._awaited[message_id] = on_reply
        try:
            control_channel.send(self._link.control, pickle.dumps(message), fds)
        except OSError as error:
            log.warning(
                "event=control_send_failed interpreter=%s %s", self._name, error
            )
            self._link.kill()  # its death answers the message

    def _on_control(self, link: WorkerLink) -> None:
        while link is self._link:
            try:
                message = control_channel.receive(link.control)
            except BlockingIOError:
                return
            except OSError:
                message = None
            if message is None:
                self._loop.unwatch(link.control.fileno())
                link.kill()  # a worker that closed its channel is of no use
                return
            body, fds = message
            line, _, payload = body.partition(b"\n")
            try:
                reply = json.loads(line)
                if not isinstance(reply, dict):
                    raise ValueError("not an object")
            except ValueError:
                self._killed_for = "was ended: it sent nonsense"
                control_channel.close_all(fds)
                link.kill()
                return
            reply["payload"], reply["fds"] = payload, fds
            if "event" in reply:
                self._on_event(reply)
                control_channel.close_all(fds)
                continue
            on_reply = self._awaited.pop(int(str(reply.get("id", -1))), None)
            if on_reply is not None:
                on_reply(reply)
            control_channel.close_all(fds)  # what a session wants, it has taken out

    def _on_event(self, event: Mapping[str, object]) -> None:
        if event.get("event") != "weights_written":
            return
        for model in self._models.values():
            if model.source.id.slashed == event.get("model"):
                if not model.told_of_writes:
                    model.told_of_writes = True
                    log.warning(
                        "event=weights_written servable=%s interpreter=%s num_pages=%s "
                        "hint='the model changes its weights while it serves; every "
                        "interpreter has changes of its own'",
                        model.source.id.slashed,
                        self._name,
                        event.get("num_pages"),
                    )
                return

    # -- the end ----------------------------------------------------------------------

    def _begin_unload(self, model: ProcessModel, waiter: _Waiter) -> None:
        if model.unloading:
            waiter.set({})
            return
        model.unloading = True
        self._refuse_queued(unloaded(model.source.id), model)

        def when_idle() -> None:
            self._models.pop(model.model_id, None)
            model.files.close()
            if self._state is WorkerState.READY and self._models:
                self._send(
                    "unload",
                    {"model": model.model_id},
                    (),
                    lambda _: waiter.set({}),
                    background=False,
                )
            else:
                self._retire_if_empty()
                waiter.set({})

        self._after_calls(when_idle, model)

    def _after_calls(
        self, then: Callable[[], None], model: ProcessModel | None = None
    ) -> None:
        """Runs ``then`` once no call (of ``model``) is with the worker."""

        def check() -> None:
            if any(model is None or call.model is model for call in self._calls):
                self._when_idle.append(check)
            else:
                then()

        check()

    def _tell_idle(self) -> None:
        checks, self._when_idle = self._when_idle, []
        for check in checks:
            check()

    def _retire_if_empty(self) -> None:
        """Ends the process when nothing is loaded: all its memory is back at once."""
        if (
            self._state is WorkerState.READY
            and not self._models
            and not self._num_loading
            and not self._when_ready
        ):
            self._drop_link()
            self._move(WorkerState.ABSENT)
            self._zygote.release()

    def _finish_close(self, waiter: _Waiter) -> None:
        if self._state is WorkerState.CLOSED:
            waiter.set({})
            return
        if self._state is not WorkerState.ABSENT:
            self._zygote.release()
        calls, self._calls = list(self._calls), deque()
        if self._respawn_timer is not None:
            self._respawn_timer.cancel()
        forking = self._state is WorkerState.FORKING
        self._move(WorkerState.CLOSED)
        if forking:
            self._link = None  # closed when the zygote answers
        else:
            self._drop_link()
        error = closed(self._name)
        for call in calls:
            finish(call.task, error)
        self._refuse_queued(error)
        waiting, self._when_ready = self._when_ready, []
        for on_ready in waiting:
            on_ready(error)
        awaited, self._awaited = self._awaited, {}
        for on_reply in awaited.values():
            on_reply(None)
        for model in self._models.values():
            model.files.close()
        self._models = {}
        self._tell_idle()
        waiter.set({})


def _quarantined(model: ProcessModel) -> ServingError:
    return FailedPrecondition(
        f"{model.source.id.slashed} is quarantined: it {model.quarantine}; "
        "deploy another version"
    )


def _error_of(reply: Mapping[str, object]) -> ServingError:
    try:
        kind = BY_CODE[Code(int(str(reply["code"])))]
    except (KeyError, ValueError):
        kind = Internal
    return kind(str(reply.get("message", "")))
