"""The process of one interpreter, from its start to that of the next: a state machine.

The states and the moves between them are the table in ``worker_state.py``; any other
move raises. Only the interpreter knows which models there are, and whose call ends with
a death. It is told of each move by the methods of :class:`WorkerUser`.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tfs.core.errors import ServingError, Unavailable
from tfs.core.serving_loop import ServingLoop, Timer
from tfs.core.thread_limit import thread_limits
from tfs.runtime.process.crash_policy import (
    FOR_MEMORY,
    CrashHistory,
    WorkerEnd,
    describe_status,
    is_for_threads,
)
from tfs.runtime.process.load_sign import LoadSign
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.worker import OnReply, Worker, WorkerReply
from tfs.runtime.process.worker_state import WorkerState, transition
from tfs.runtime.process.zygote import Forked, Zygote
from tfs.runtime.task_outcome import closed

log = logging.getLogger(__name__)

_START_AGAIN_S: Final = 1.0  # after the zygote could not be started
# Forks that were lost in a row, because whatever ends zygotes might go on for ever.
_MAX_LOST_FORKS: Final = 3

OnReady = Callable[["ServingError | None"], None]
"""Takes None once a worker is ready, or why there is none."""


class WorkerUser(Protocol):
    """The interpreter's models, which are told of a worker's life. Called on the loop."""

    @property
    def has_models(self) -> bool:
        """Whether anything is loaded: an empty worker is ended."""
        ...

    @property
    def served(self) -> str:
        """The models that are loaded, for logs: "name/version", with commas between."""
        ...

    @property
    def has_models_to_run(self) -> bool:
        """Whether the models need another worker when one has died."""
        ...

    def move_in(self, worker: Worker) -> None:
        """Loads the models on a new worker; calls ``settle`` when that is done."""
        ...

    def begin_calls(self, worker: Worker) -> None:
        """Starts handing calls to a worker that is ready."""
        ...

    def take_event(self, event: WorkerReply) -> None:
        """Takes what the worker says without being asked."""
        ...

    def stop_calls(self) -> None:
        """Takes its last replies, and hands no more calls to a worker that is gone."""
        ...

    def blame(self, end: WorkerEnd, *, is_innocent: bool) -> bool:
        """Takes note of how the worker ended, before another one is started.

        Returns whether the next one may well end the same way.

        Args:
            end: How it died.
            is_innocent: Whether no model can have been the reason.

        """
        ...

    def answer_interrupted(self, how: str, awaited: Sequence[OnReply]) -> None:
        """Answers those who waited for the worker, after another one was started."""
        ...

    def refuse(self, error: ServingError) -> None:
        """Answers all tasks that wait, because no worker could be started."""
        ...


class WorkerLife:
    """Starts a worker when one is wanted, and another when it dies. Loop-confined.

    ``state``, ``pid``, ``num_deaths`` and ``last_end`` may be read from anywhere.

    Args:
        name: The interpreter's, for logs.
        loop: Watches the worker.
        zygote: Forks it.
        options: Limits, timeouts and how workers are made.
        spare: Provides a worker at once, if it has one ready.
        user: The interpreter's models, which are told of each move.

    Attributes:
        state: The current state in the table.
        worker: The present worker, or the one that is being forked.
        platform: The platform that was loaded last; decides what new workers have
            imported.
        num_deaths: How many workers died so far.
        last_end: How the last one died, in words.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: Zygote,
        options: ProcessOptions,
        spare: SpareWorker | None,
        user: WorkerUser,
    ) -> None:
        self._name = name
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._spare = spare
        self._user = user
        self.state = WorkerState.ABSENT
        self.worker: Worker | None = None
        self.platform = ""
        self.num_deaths = 0
        self.last_end = "ended"
        self._num_holds = 0
        self._when_ready: list[OnReady] = []
        self._respawn_timer: Timer | None = None
        self._deaths = CrashHistory(options.crashes)
        self._ended_for: str | None = None  # why we killed it, if we did
        self._ended_innocent = False
        self._start_failed = False
        self._num_lost_forks = 0

    @property
    def pid(self) -> int | None:
        """The process id; None while there is none."""
        worker = self.worker
        return worker.pid if worker is not None else None

    @property
    def live(self) -> Worker | None:
        """The present worker, once it is forked and can be asked for something."""
        worker = self.worker
        return worker if worker is not None and worker.pid is not None else None

    @property
    def is_held(self) -> bool:
        """Whether somebody holds a worker, with or without models."""
        return self._num_holds > 0

    # -- wanted, and no longer --------------------------------------------------------

    def want(self, on_ready: OnReady) -> None:
        """Calls ``on_ready`` once a worker is ready, or cannot be had."""
        match self.state:
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

    def hold(self, on_ready: OnReady) -> None:
        """Like ``want``, but the worker stays until ``let_go``, with or without models.

        If none could be started, nothing is held.
        """
        self._num_holds += 1

        def told(error: ServingError | None) -> None:
            if error is not None:
                self._num_holds -= 1
            on_ready(error)

        self.want(told)

    def let_go(self) -> None:
        """Takes a ``hold`` back."""
        self._num_holds -= 1
        self.retire_if_empty()

    def retire_if_empty(self) -> None:
        """Ends the process if nothing has to be loaded any more."""
        if (
            self.state is WorkerState.READY
            and not self._user.has_models
            and not self._num_holds
            and not self._when_ready
        ):
            if self.worker is not None:
                self.worker.stop_listening()  # a rehearsed call may still hang
            self._user.stop_calls()
            self._drop_worker()
            self._move(WorkerState.ABSENT)
            self._zygote.release()

    def end(self, why: str | None, *, is_innocent: bool = False) -> None:
        """Kills the worker; its callers and the log are told why.

        Args:
            why: The reason; None if it is dying already, and others know why.
            is_innocent: Whether no model was the reason.

        """
        if (worker := self.live) is not None:
            if self._ended_for is None:
                self._ended_for, self._ended_innocent = why, is_innocent
            worker.ignore()
            worker.kill()

    def show_stacks(self) -> None:
        """Has the worker, which is about to be ended, say where it hangs."""
        if (worker := self.live) is not None and self._ended_for is None:
            log.warning(
                "event=call_hangs interpreter=%s pid=%d stacks=on_stderr",
                self._name,
                worker.pid,
            )
            worker.show_stacks()

    def close(self) -> list[OnReply]:
        """Ends everything for good; returns who still waits for an answer of the worker."""
        if self.state is not WorkerState.ABSENT:
            self._zygote.release()
        if self._respawn_timer is not None:
            self._respawn_timer.cancel()
        awaited = self.worker.stop_listening() if self.worker is not None else []
        self._user.stop_calls()
        if self.state is WorkerState.FORKING:
            self.worker = None  # closed when the zygote answers
        else:
            self._drop_worker()
        self._move(WorkerState.CLOSED)
        self._tell_ready(closed(self._name))
        return awaited

    # -- from absent to ready ---------------------------------------------------------

    def _move(self, state: WorkerState) -> None:
        self.state = transition(self._name, self.state, state)

    def _tell_ready(self, error: ServingError | None) -> None:
        waiting, self._when_ready = self._when_ready, []
        for on_ready in waiting:
            on_ready(error)

    def _fork(self) -> None:
        self._move(WorkerState.FORKING)
        ready = None if self._spare is None else self._spare.take(self.platform)
        if ready is not None:
            self.worker = ready
            self._on_forked(ready)
        else:
            self._ask_for_fork()

    def _ask_for_fork(self) -> None:
        try:
            worker = self.worker = Worker(self._loop, self._options.worker)
        except OSError as error:
            self._cannot_start(str(error.strerror))
            return

        def on_forked(outcome: Forked | str | None) -> None:
            if isinstance(outcome, Forked):
                worker.attach(outcome)
            if worker is not self.worker:  # closed meanwhile
                worker.close()
            elif isinstance(outcome, Forked):
                self._on_forked(worker)
            else:
                self.worker = None
                worker.close()  # ends a process too that the zygote forked before it ended
                self._num_lost_forks += 1
                if outcome is None and self._num_lost_forks < _MAX_LOST_FORKS:
                    self._ask_for_fork()
                else:
                    self._cannot_start(outcome or "zygotes keep ending")

        options, fds = self._options.worker, worker.remote_fds
        self._zygote.fork(options, fds, on_forked, platform=self.platform)

    def _cannot_start(self, why: str) -> None:
        """Answers those who wait, and tries again later if there are models."""
        if os.strerror(errno.EAGAIN) in why:
            why = f"{why}: {thread_limits()}"
        elif os.strerror(errno.EFBIG) in why:
            why = (
                f"{why}: memory is shared through files; raise ulimit -f (LimitFSIZE=)"
            )
        self._start_failed = True
        self._move(WorkerState.DEAD)
        log.error(
            "event=interpreter_start_failed servable=%s interpreter=%s why=%s",
            self._user.served or "none",
            self._name,
            why,
        )
        error = Unavailable(f"interpreter {self._name} cannot be started: {why}")
        self._tell_ready(error)
        self._user.refuse(error)
        self._respawn()

    def _on_forked(self, worker: Worker) -> None:
        self._move(WorkerState.MAPPING)
        self._start_failed = False
        self._num_lost_forks = 0
        sign = LoadSign(self._loop, worker.calls.slab, self._options.traffic)
        worker.listen(
            self._user.take_event, self.end, lambda: self._on_end(worker), sign
        )
        self._user.move_in(worker)

    def settle(self) -> None:
        """Makes the worker ready: it has all the models that it should have."""
        self._move(WorkerState.READY)
        self._tell_ready(None)
        if self.worker is not None:
            self._user.begin_calls(self.worker)
        self.retire_if_empty()

    # -- from ready to dead, and back -------------------------------------------------

    def _on_end(self, worker: Worker) -> None:
        """Takes note that the process has ended."""
        if self._ended_for is not None:
            end = WorkerEnd(self._ended_for)
            self._on_death(worker, end, is_innocent=self._ended_innocent)
            return
        status = worker.exit_status()
        was_killed = status is not None and os.WIFSIGNALED(status)
        was_killed = was_killed and os.WTERMSIG(status or 0) == signal.SIGKILL
        for_memory = was_killed and self._options.memory_kills.is_more()
        if is_for_threads(status) and self._options.refused_processes.is_more():
            how = f"ended because it could start no more threads: {thread_limits()}"
            self._on_death(worker, WorkerEnd(how), is_innocent=True)
            return
        how = FOR_MEMORY if for_memory else describe_status(status)
        self._on_death(worker, WorkerEnd(how, was_killed, for_memory))

    def _on_death(
        self,
        worker: Worker,
        end: WorkerEnd,
        *,
        is_innocent: bool = False,
    ) -> None:
        """Fails the running calls, blames the model unless innocent, and starts anew."""
        how = self.last_end = end.how
        self.num_deaths += 1
        log.error(
            "event=interpreter_died servable=%s interpreter=%s pid=%d how=%r",
            self._user.served or "none",
            self._name,
            worker.pid,
            how,
        )
        # It writes to the slab, which is closed with the calls.
        awaited = worker.stop_listening()
        self._user.stop_calls()
        self._drop_worker()
        self._move(WorkerState.DEAD)
        if self._user.blame(end, is_innocent=is_innocent):
            self._deaths.add(self._loop.clock.now())
        self._respawn()
        self._user.answer_interrupted(how, awaited)

    def _respawn(self) -> None:
        """Starts the next worker, at once or after a pause, if one is still wanted."""
        if self.state is not WorkerState.DEAD:
            return
        if not self._is_wanted():
            self._move(WorkerState.ABSENT)
            self._zygote.release()
            return
        now_s = self._loop.clock.now()
        delay_s = self._deaths.respawn_delay_s(now_s)
        if self._start_failed:
            delay_s = max(delay_s, _START_AGAIN_S)
        if delay_s == 0.0 or self._respawn_timer is not None:
            self._respawn_timer = None
            self._fork()
        else:
            self._respawn_timer = self._loop.call_at(now_s + delay_s, self._respawn)

    def _is_wanted(self) -> bool:
        return bool(self._num_holds or self._when_ready or self._user.has_models_to_run)

    def _drop_worker(self) -> None:
        worker, self.worker = self.worker, None
        self._ended_for, self._ended_innocent = None, False
        if worker is not None:
            worker.close()
