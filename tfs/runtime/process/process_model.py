"""A version in its processes, as whoever loads, calls and measures it sees it."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

from tfs.core.errors import DeadlineExceeded, Internal, ServingError, Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, Tensors
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.guest.memory_files import VersionFiles, new_memfd
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.slab import JOINED, RULE
from tfs.runtime.interpreter import (
    OnAnotherThread,
    closed,
    finish,
    unloaded,
)
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_version import ProcessVersion
from tfs.runtime.process.worker import Worker, WorkerState
from tfs.runtime.process.worker_process import WorkerReply
from tfs.runtime.process.zygote import Zygote

log = logging.getLogger(__name__)

# Added to the time that calls before it serves should take.
_PATIENCE_S: Final = 5.0
_LET_GO_S: Final = 120.0  # for the end of calls that end late

T = TypeVar("T")


def on_loop(
    loop: ServingLoop,
    begin: Callable[[Future[T]], None],
    timeout_s: float,
    late: ServingError,
) -> T:
    """Runs ``begin`` on the loop, and returns what it reports. Blocks.

    Raises:
        ServingError: The error that it reports; ``late`` if it reports nothing for
            ``timeout_s`` seconds.

    """
    answer = Future[T]()
    loop.post(lambda: begin(answer))
    try:
        return answer.result(min(timeout_s, threading.TIMEOUT_MAX))
    except TimeoutError:
        raise late from None


class ProcessModel(OnAnotherThread):
    """A version in one or more processes of its own. Thread-safe.

    ``start``, ``unload``, ``close`` and what measures it block, so the loop's thread must
    not call them. Everything else happens on the loop. Implements
    :class:`~tfs.runtime.interpreter.InterpreterModel`; it begins tasks in the order of
    their submission, in whichever process takes one first.

    Args:
        name: For logs.
        loop: Drives the conversations; it must run on some thread while somebody waits.
        zygote: Forks the workers.
        options: Limits, timeouts and how workers are made.
        source: The version.
        files: Its bytes, closed with this.
        num_workers: How many processes it gets.
        may_grow: If given, it gets one at first, and the others, one by one, when a task
            has to wait and this returns True.

    Attributes:
        source: See above.
        is_closed: Whether its processes have been ended for good.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: Zygote,
        options: ProcessOptions,
        source: ModelSource,
        files: VersionFiles,
        num_workers: int,
        may_grow: Callable[[], bool] | None,
    ) -> None:
        self.source = source
        self._name = name
        self._loop = loop
        self._options = options
        self._files = files
        self._may_grow = may_grow
        self._is_growing = False
        clock = loop.clock
        self._version = ProcessVersion(source, files, options, clock, num_workers)
        self._workers = [
            Worker(f"{name}.{index}", loop, zygote, options, self._version)
            for index in range(num_workers)
        ]
        self._changes: str | None = None  # in calls, once measured
        self.is_closed = False

    @property
    def pids(self) -> Sequence[int]:
        """The processes that there are now."""
        return [pid for each in self._workers if (pid := each.pid) is not None]

    @property
    def pid(self) -> int:
        """The first process, or this one while there is none."""
        return self._workers[0].pid or os.getpid()

    @property
    def states(self) -> Sequence[WorkerState]:
        """The state of each worker."""
        return [each.state for each in self._workers]

    @property
    def num_deaths(self) -> int:
        """How often one of its processes died, whoever was at fault."""
        return self._version.num_deaths

    @property
    def last_death(self) -> str:
        """How the last one died; "" before the first death."""
        return self._version.last_death

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run."""
        return self._version.num_waiting + self._version.num_running

    # -- calls ----------------------------------------------------------------------------

    def submit(self, task: InferenceTask) -> None:
        """Starts a task, from any thread. Never blocks, never raises."""
        if threading.get_ident() == self._loop.thread_ident:
            self._version.add(task)
        elif self.is_closed:
            finish(task, unloaded(self.source.id))  # because the loop may be gone
        else:
            self._loop.post(partial(self._version.add, task))

    # -- from its load to its end ----------------------------------------------------------

    def start(self) -> None:
        """Loads it in one process, then from the same bytes in all others at once.

        So a version that crashes while it is loaded does so only once. But a version
        that imports for seconds should not take twice as long, so the others begin when
        the first has taken ``slow_load_s``. Blocks until it is loaded in all processes;
        if it is not, the caller closes it.

        Raises:
            ServingError: It does not load.

        """
        first, *others = self._workers
        timeout_s = min(self._options.load_timeout_s, threading.TIMEOUT_MAX)
        loads = [first.ready()]
        if self._may_grow is None and others:
            wait(loads, self._options.slow_load_s)
            # If the first has failed already, the others need not try.
            if not loads[0].done() or loads[0].exception() is None:
                loads += [each.ready() for each in others]
        ended, _ = wait(loads, timeout_s)
        for load in loads:
            if load not in ended:
                who = self.source.id.slashed
                raise Internal(f"{who}: loading took over {timeout_s:.1f} s")
            load.result()
        if self._may_grow is not None and others:
            self._version.on_wait = self._grow

    def _grow(self) -> None:
        """Begins to load in one more process, unless that has begun. On the loop."""
        if self._is_growing or self._may_grow is None or not self._may_grow():
            return
        self._is_growing = True
        self._version.on_wait = lambda: None
        self._add_next(iter(self._workers[1:]))

    def _add_next(self, workers: Iterator[Worker]) -> None:
        worker = next(workers, None)
        if worker is None or self._version.refusal is not None:
            return

        def on_ready(error: ServingError | None) -> None:
            if error is None:
                log.info(
                    "event=interpreter_added servable=%s interpreter=%s",
                    self._version.who,
                    worker.name,
                )
                self._add_next(workers)
            elif self._version.refusal is None:
                log.warning(
                    "event=no_interpreter_added servable=%s error=%s",
                    self._version.who,
                    error,
                )

        worker.want(on_ready)

    def unload(self) -> None:
        """Ends its processes after the calls that run; may be repeated. Blocks."""
        self._end(
            unloaded(self.source.id),
            None,
            self._options.call_timeout_s * 2 + _LET_GO_S,
            f"{self.source.id.slashed}: its interpreter does not let go of it",
        )

    def close(self, deadline_s: float | None = None) -> None:
        """Ends its processes by ``deadline_s``, which answers the calls that run. Blocks."""
        if self._loop.is_loop_thread:
            self._close_workers(closed(self._name))
            return
        timeout_s = self._options.call_timeout_s + _LET_GO_S
        if deadline_s is not None:
            timeout_s = max(0.0, deadline_s - self._loop.clock.now()) + 5.0
        late = f"interpreter {self._name} does not close"
        self._end(closed(self._name), deadline_s, timeout_s, late)

    def _end(
        self, error: ServingError, deadline_s: float | None, timeout_s: float, late: str
    ) -> None:
        if self.is_closed:
            return

        def begin(is_over: Future[None]) -> None:
            def end() -> None:
                self._close_workers(error)
                with suppress(InvalidStateError):  # of the deadline, or the last call
                    is_over.set_result(None)

            self._version.refuse(error)
            if deadline_s is not None:
                self._loop.call_at(deadline_s, end)
            self._version.when_idle(end)

        on_loop(self._loop, begin, timeout_s, Internal(late))

    def _close_workers(self, error: ServingError) -> None:
        self._version.refuse(error)
        for worker in self._workers:
            worker.close(error)
        self._files.close()
        self.is_closed = True
        self._version.tell_idle()

    # -- what is measured before it serves --------------------------------------------------

    @property
    def loaded(self) -> ModelProfile:
        """What the first worker observed of its load, and what calls changed since."""
        loaded = self._version.loaded
        return replace(loaded, process_changes=self._changes or loaded.process_changes)

    @property
    def last_call_s(self) -> float | None:
        """Seconds that the last call took in its process; None before the first."""
        return self._version.calls.last_call_s

    @property
    def staged_status(self) -> AutoStatus | None:
        """What joining between stages was worth; None if it is computed whole."""
        process = self._workers[0].process
        if process is None or not self.source.staged_rows:
            return None
        words = process.slab.words
        try:
            return AutoStatus.of_words(words[RULE], words[JOINED])
        except ValueError:  # its memory was released meanwhile
            return None

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Has the first worker call it from two threads; see ``InterpreterModel``.

        If that does not return, the worker is replaced, and nothing is measured.
        """
        patience_s = self._options.call_timeout_s
        if self.last_call_s is not None:
            patience_s = min(patience_s, 10 * self.last_call_s + _PATIENCE_S)
        try:
            reply = self._try(
                self._workers[0],
                "scale",
                signature_name,
                inputs,
                8 * duration_s + patience_s,
                hangs="two calls of its model at once hang",
                fields={"duration_s": duration_s},
            )
        except DeadlineExceeded:
            log.warning("event=two_threads_hang servable=%s", self.source.id.slashed)
            return None
        self._changes = str(reply["changes"]) or self._changes
        scaling = reply.get("scaling")
        return scaling if isinstance(scaling, float) else None

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> None:
        """Has each worker call it, one after the other; see ``InterpreterModel``.

        An error shows when the model is called again. If the call does not return, the
        worker is replaced.
        """
        with suppress(ServingError):
            for worker in self._workers:
                if worker.state is not WorkerState.ABSENT:
                    self._try(
                        worker,
                        "rehearse",
                        signature_name,
                        inputs,
                        timeout_s,
                        hangs="a call before it served hangs",
                        background=not self._options.is_urgent(),
                    )

    def seed(self, seed: int | None) -> bool:
        """Sets the workers' random numbers; see ``InterpreterModel``."""
        try:
            for worker in self._workers:
                if worker.state is not WorkerState.ABSENT:
                    self._ask(worker, "seed", {"seed": seed}, (), _PATIENCE_S)
        except ServingError as error:
            who = self.source.id.slashed
            log.info("event=not_seeded servable=%s error=%s", who, error)
            return False
        return True

    def _try(
        self,
        worker: Worker,
        op: str,
        signature_name: str,
        inputs: Tensors,
        timeout_s: float,
        *,
        hangs: str,
        fields: Mapping[str, object] = MappingProxyType({}),
        background: bool = False,
    ) -> Mapping[str, object]:
        """Has a worker call the model before it serves. Blocks.

        Raises:
            DeadlineExceeded: It does not return; the worker is replaced.
            ServingError: As ``_ask``.

        """
        views = {name: view.owned() for name, view in inputs.items()}
        process = worker.process
        # Inputs go to a memfd on this thread, so that the loop copies no large batch.
        fd = new_memfd("probe")
        try:
            with open(fd, "wb", closefd=False) as file:
                pickle.dump(views, file)
            message = {**fields, "signature": signature_name}
            return self._ask(
                worker, op, message, (fd,), timeout_s, background=background
            )
        except DeadlineExceeded:

            def end() -> None:
                if process is not None and worker.process is process:
                    worker.end(f"was ended because {hangs}")

            self._loop.post(end)
            raise
        finally:
            os.close(fd)

    def _ask(
        self,
        worker: Worker,
        op: str,
        fields: Mapping[str, object],
        fds: tuple[int, ...],
        timeout_s: float,
        *,
        background: bool = False,
    ) -> Mapping[str, object]:
        """Returns a worker's answer to a request beside its calls. Blocks.

        Such requests go through the worker's control thread, so nothing on the loop waits
        for them.

        Raises:
            DeadlineExceeded: It does not answer.
            ServingError: The worker's error; or there is none, or it died.

        """
        who = self.source.id.slashed

        def begin(answer: Future[Mapping[str, object]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                if reply is None:
                    why = f"{who}: its interpreter {worker.last_end}"
                    answer.set_exception(Internal(why))
                elif (error := reply.error()) is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(reply.fields)

            process = worker.live
            if worker.state is not WorkerState.READY or process is None:
                error = Unavailable(f"{who}: its interpreter is restarting")
                answer.set_exception(error)
            else:
                process.send(op, fields, fds, on_reply, background=background)

        late = DeadlineExceeded(f"{who}: its interpreter does not answer")
        return on_loop(self._loop, begin, timeout_s, late)
