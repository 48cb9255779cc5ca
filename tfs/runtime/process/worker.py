"""A worker: a process that comes when it is wanted, and again when it dies.

The states and the moves between them are the table below; any other
move raises.
"""

from __future__ import annotations

import enum
import errno
import logging
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from tfs.core.errors import InterpreterDied, ServingError, Unavailable
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.core.servable import InferenceTask
from tfs.core.system.limits import thread_limits
from tfs.runtime.interpreter import closed, finish
from tfs.runtime.process.crash_policy import (
    FOR_MEMORY,
    CrashHistory,
    WorkerEnd,
    describe_status,
)
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_version import ProcessVersion
from tfs.runtime.process.worker_calls import WorkerCalls
from tfs.runtime.process.worker_process import OnReply, WorkerProcess, WorkerReply
from tfs.runtime.process.zygote import Forked, Zygote


class WorkerState(enum.Enum):
    """The states of a worker."""

    ABSENT = "absent"
    """Nobody wants one."""
    FORKING = "forking"
    """Asked of the zygote."""
    MAPPING = "mapping"
    """Alive, loading its version."""
    READY = "ready"
    """Answers calls."""
    DEAD = "dead"
    """Gone; the next one is due now or after a pause."""
    CLOSED = "closed"
    """It has ended for good."""


TRANSITIONS: Final[Mapping[WorkerState, frozenset[WorkerState]]] = {
    WorkerState.ABSENT: frozenset({WorkerState.FORKING, WorkerState.CLOSED}),
    WorkerState.FORKING: frozenset(
        {WorkerState.MAPPING, WorkerState.DEAD, WorkerState.CLOSED}
    ),
    WorkerState.MAPPING: frozenset(
        {WorkerState.READY, WorkerState.DEAD, WorkerState.ABSENT, WorkerState.CLOSED}
    ),
    WorkerState.READY: frozenset({WorkerState.DEAD, WorkerState.CLOSED}),
    WorkerState.DEAD: frozenset(
        {WorkerState.FORKING, WorkerState.ABSENT, WorkerState.CLOSED}
    ),
    WorkerState.CLOSED: frozenset(),
}


def transition(who: str, state: WorkerState, to: WorkerState) -> WorkerState:
    """Returns ``to`` if the table allows the move.

    Raises:
        AssertionError: It does not. That is a fault of ours; nothing changed.

    """
    if to not in TRANSITIONS[state]:
        raise AssertionError(f"{who}: no way from {state.value} to {to.value}")
    return to


log = logging.getLogger(__name__)

_START_AGAIN_S: Final = 1.0  # after the zygote could not be started
# Forks that were lost in a row, because whatever ends zygotes might go on for ever.
_MAX_LOST_FORKS: Final = 3

OnReady = Callable[["ServingError | None"], None]
"""Takes None once a worker is ready, or why there is none."""


class Worker:
    """Starts a process when it is first wanted, and another when it dies. Loop-confined.

    Each process has the version before it takes calls, and a death is blamed on the
    version if it happened during a call or a load. A worker that cannot be started, or
    cannot load, when it is first wanted goes back to where it was. The plain attributes
    may be read from anywhere.

    Args:
        name: For logs.
        loop: Watches the process.
        zygote: Forks it.
        options: Limits, timeouts and how processes are made.
        version: What it is for; None: for sessions of the library.

    Attributes:
        name: See above.
        state: The current state in the table.
        process: The present process, or the one that is being forked.
        num_deaths: How many processes died so far.
        last_end: How the last one died, in words.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: Zygote,
        options: ProcessOptions,
        version: ProcessVersion | None,
    ) -> None:
        self.name = name
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._version = version
        self._how = options.worker
        self._platform = ""
        if version is not None:
            self._platform = version.source.platform
            self._how = replace(
                options.worker,
                concurrency=version.source.concurrency,
                is_staged=bool(version.source.staged_rows),
            )
        self.state = WorkerState.ABSENT
        self.process: WorkerProcess | None = None
        self.num_deaths = 0
        self.last_end = "ended"
        self._calls: WorkerCalls | None = None  # while it is ready
        self._was_ready = False
        self._when_ready: list[OnReady] = []
        self._respawn_timer: Timer | None = None
        self._deaths = CrashHistory(options.crashes)
        self._ended_for: WorkerEnd | None = None  # why we killed it, if we did
        self._num_lost_forks = 0

    @property
    def pid(self) -> int | None:
        """The process id; None while there is none."""
        process = self.process
        return process.pid if process is not None else None

    @property
    def live(self) -> WorkerProcess | None:
        """The present process, once it is forked and can be asked for something."""
        process = self.process
        return process if process is not None and process.pid is not None else None

    def want(self, on_ready: OnReady) -> None:
        """Calls ``on_ready`` once a process is ready, or cannot be had."""
        match self.state:
            case WorkerState.READY:
                on_ready(None)
            case WorkerState.CLOSED:
                on_ready(closed(self.name))
            case WorkerState.ABSENT:
                self._when_ready.append(on_ready)
                self._zygote.acquire()
                self._fork()
            case _:
                self._when_ready.append(on_ready)

    def ready(self) -> Future[None]:
        """As ``want``, from any thread; the result comes once a process is ready."""
        found = Future[None]()

        def on_ready(error: ServingError | None) -> None:
            if error is None:
                found.set_result(None)
            else:
                found.set_exception(error)

        self._loop.post(lambda: self.want(on_ready))
        return found

    def end(self, why: str | None) -> None:
        """Kills the process; its callers and the log are told why.

        Args:
            why: The reason; None if it is dying already, and others know why.

        """
        if (process := self.live) is not None:
            if self._ended_for is None and why is not None:
                self._ended_for = WorkerEnd(why)
            process.ignore()
            process.kill()

    def close(self, error: ServingError | None = None) -> None:
        """Ends it for good; whoever waits, or is in a call, is told ``error``. Repeatable."""
        if self.state is WorkerState.CLOSED:
            return
        error = error or closed(self.name)
        if self.state is not WorkerState.ABSENT:
            self._zygote.release()
        if self._respawn_timer is not None:
            self._respawn_timer.cancel()
        if self.state is WorkerState.FORKING:
            self.process = None  # closed when the zygote answers
        awaited, begun = self._drop_process()
        self._move(WorkerState.CLOSED)
        self._tell_ready(error)
        for task in begun:
            finish(task, error)
        for on_reply in awaited:
            on_reply(None)

    # -- from absent to ready -----------------------------------------------------------

    def _move(self, state: WorkerState) -> None:
        self.state = transition(self.name, self.state, state)

    def _tell_ready(self, error: ServingError | None) -> None:
        waiting, self._when_ready = self._when_ready, []
        for on_ready in waiting:
            on_ready(error)

    def _fork(self) -> None:
        self._move(WorkerState.FORKING)
        self._ask_for_fork()

    def _ask_for_fork(self) -> None:
        try:
            process = WorkerProcess(self._loop, self._how, self._options.traffic)
        except OSError as error:
            self._cannot_start(str(error.strerror))
            return
        self.process = process

        def on_forked(outcome: Forked | str | None) -> None:
            if isinstance(outcome, Forked):
                process.attach(outcome)
            if process is not self.process:  # closed meanwhile
                process.close()
            elif isinstance(outcome, Forked):
                self._on_forked(process)
            else:
                self.process = None
                process.close()  # ends a process too that the zygote forked before it ended
                self._num_lost_forks += 1
                if outcome is None and self._num_lost_forks < _MAX_LOST_FORKS:
                    self._ask_for_fork()
                else:
                    self._cannot_start(outcome or "zygotes keep ending")

        self._zygote.fork(
            self._how, process.remote_fds, on_forked, platform=self._platform
        )

    def _cannot_start(self, why: str) -> None:
        """Answers those who wait, and tries again later if there was a process before."""
        if os.strerror(errno.EAGAIN) in why:
            why = f"{why}: {thread_limits()}"
        elif os.strerror(errno.EFBIG) in why:
            why = (
                f"{why}: memory is shared through files; raise ulimit -f (LimitFSIZE=)"
            )
        self._num_lost_forks = 0
        self._move(WorkerState.DEAD)
        log.error(
            "event=interpreter_start_failed servable=%s interpreter=%s why=%s",
            self._served,
            self.name,
            why,
        )
        error = Unavailable(f"interpreter {self.name} cannot be started: {why}")
        if self._version is not None:
            self._version.refuse_waiting(error)
        self._respawn(_START_AGAIN_S, error)

    def _on_forked(self, process: WorkerProcess) -> None:
        self._move(WorkerState.MAPPING)
        self._num_lost_forks = 0
        process.listen(self.end, lambda: self._on_end(process))
        if self._version is None:
            self._open(process)
        else:
            self._version.load(process, self._on_loaded)

    def _on_loaded(self, reply: WorkerReply | None) -> None:
        if reply is None or self._version is None or self.process is None:
            return  # it died, which is noticed elsewhere
        error = reply.error()
        if error is None:
            self._open(self.process)
        elif self._was_ready:
            self._version.quarantine(f"does not load again: {error.message}")
            self._retire(error)
        else:
            self._retire(error)

    def _open(self, process: WorkerProcess) -> None:
        self._move(WorkerState.READY)
        self._was_ready = True
        version = self._version
        if version is not None:
            self._calls = WorkerCalls(
                self._loop,
                self._options,
                process,
                version.calls,
                on_room=version.pump,
                on_answered=version.tell_idle,
                on_unusable=self.end,
                on_hanging=self._show_stacks,
            )
            version.workers.append(self._calls)
        self._tell_ready(None)
        if version is not None:
            version.pump()

    def _show_stacks(self) -> None:
        """Has the process, which is about to be ended, say where it hangs."""
        if (process := self.live) is not None and self._ended_for is None:
            log.warning(
                "event=call_hangs interpreter=%s pid=%d stacks=on_stderr",
                self.name,
                process.pid,
            )
            process.show_stacks()

    # -- from ready to dead, and back ---------------------------------------------------

    def _on_end(self, process: WorkerProcess) -> None:
        """Fails the running calls, has the version blamed, and starts anew."""
        end = self._ended_for or self._how_it_ended(process)
        self.last_end = end.how
        self.num_deaths += 1
        log.error(
            "event=interpreter_died servable=%s interpreter=%s pid=%d how=%r",
            self._served,
            self.name,
            process.pid,
            end.how,
        )
        was_loading = self.state is WorkerState.MAPPING and self._was_ready
        calls = self._calls
        awaited, begun = self._drop_process()
        self._move(WorkerState.DEAD)
        counts = True
        if self._version is not None:
            num_calls = calls.num_done if calls is not None else 0
            was_in_use = was_loading or bool(begun)
            counts = self._version.note_end(end, num_calls, was_in_use=was_in_use)
        if counts:
            self._deaths.add(self._loop.clock.now())
        why = f"{self._served}: its interpreter {end.how}"
        self._respawn(0.0, InterpreterDied(f"{why} while loading it"))
        for task in begun:
            text = f"{self._served}: the interpreter that ran this request {end.how}"
            finish(task, InterpreterDied(text))
        for on_reply in awaited:
            on_reply(None)
        if self._version is not None:
            self._version.pump()
            self._version.tell_idle()

    def _how_it_ended(self, process: WorkerProcess) -> WorkerEnd:
        status = process.exit_status()
        was_killed = status is not None and os.WIFSIGNALED(status)
        was_killed = was_killed and os.WTERMSIG(status or 0) == signal.SIGKILL
        if was_killed and self._options.memory_kills.is_more():
            return WorkerEnd(FOR_MEMORY, was_killed=True, for_memory=True)
        return WorkerEnd(describe_status(status), was_killed)

    def _respawn(self, delay_s: float, error: ServingError) -> None:
        """Starts the next process, at once or after a pause, if one is still wanted.

        Args:
            delay_s: The least pause.
            error: Why there is no process now.

        """
        version = self._version
        is_wanted = version.refusal is None if version is not None else True
        if not self._was_ready or not is_wanted:
            self._retire(error)
            return
        if delay_s:
            self._tell_ready(error)
        now_s = self._loop.clock.now()
        delay_s = max(delay_s, self._deaths.respawn_delay_s(now_s))
        if delay_s == 0.0:
            self._fork()
        else:
            self._respawn_timer = self._loop.call_at(now_s + delay_s, self._fork_now)

    def _fork_now(self) -> None:
        self._respawn_timer = None
        if self._version is not None and self._version.refusal is not None:
            self._retire(self._version.refusal)
        else:
            self._fork()

    def _retire(self, error: ServingError) -> None:
        """Goes back to where it was before it was wanted; who waits is told ``error``."""
        self._drop_process()
        self._move(WorkerState.ABSENT)
        self._zygote.release()
        self._tell_ready(error)

    def _drop_process(self) -> tuple[list[OnReply], list[InferenceTask]]:
        """Lets a process go, alive or dead; what it had not begun waits again.

        Returns:
            Who still waits for its answer, and the tasks that it was in.

        """
        process, self.process = self.process, None
        calls, self._calls = self._calls, None
        awaited, begun = list[OnReply](), list[InferenceTask]()
        if calls is not None and self._version is not None:
            self._version.workers.remove(calls)
            begun, waiting = calls.close()
            self._version.put_back(waiting)
        if process is not None:
            awaited = process.stop_listening()  # writes to the slab, which closes next
            process.close()
        self._ended_for = None
        return awaited, begun

    @property
    def _served(self) -> str:
        return self._version.who if self._version is not None else "none"
