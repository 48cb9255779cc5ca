"""The worker of an interpreter: a process that comes when it is wanted, and again when it dies.

The states and the moves between them are the table in ``worker_state.py``; any other
move raises.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from threading import TIMEOUT_MAX
from typing import Final, Protocol, TypeVar

from tfs.core.errors import Internal, ServingError, Unavailable
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.core.system.thread_limit import thread_limits
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.process.crash_policy import (
    FOR_MEMORY,
    CrashHistory,
    WorkerEnd,
    describe_status,
    is_for_threads,
)
from tfs.runtime.process.lane import Lane, WorkerCall
from tfs.runtime.process.load_sign import LoadSign
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.worker_process import OnReply, WorkerProcess, WorkerReply
from tfs.runtime.process.worker_state import WorkerState, transition
from tfs.runtime.process.zygote import Forked, Zygote
from tfs.runtime.task_outcome import closed, finish

log = logging.getLogger(__name__)

_START_AGAIN_S: Final = 1.0  # after the zygote could not be started
# Forks that were lost in a row, because whatever ends zygotes might go on for ever.
_MAX_LOST_FORKS: Final = 3

OnReady = Callable[["ServingError | None"], None]
"""Takes None once a worker is ready, or why there is none."""

Send = Callable[[WorkerProcess, OnReply], None]
"""Sends a request to a ready process; the answer goes to the second argument. On the loop."""

T = TypeVar("T")


class WorkerUser(Protocol):
    """The interpreter, which knows what a worker is for. Called on the loop."""

    @property
    def models(self) -> Mapping[int, ProcessModel]:
        """The models that each process has, by number."""
        ...

    def move_in(self, process: WorkerProcess) -> None:
        """Loads the models in a new process; calls ``settle`` when that is done."""
        ...

    def blame(self, end: WorkerEnd, call: WorkerCall | None) -> bool:
        """Takes note of how a process ended, before another one is started.

        Returns whether the next one may well end the same way.

        Args:
            end: How it died.
            call: The last call that it was in, if it was in one.

        """
        ...


class Worker:
    """Starts a process when one is wanted, and another when it dies. Loop-confined.

    ``ask`` and ``on_loop`` are for other threads, and block. The plain attributes may be
    read from anywhere.

    Args:
        name: The interpreter's, for logs.
        loop: Watches the process.
        zygote: Forks it.
        options: Limits, timeouts and how processes are made.
        spare: Provides a process at once, if it has one ready.
        lane: Takes calls to it.
        user: Is told of its life.

    Attributes:
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
        spare: SpareWorker | None,
        lane: Lane,
        user: WorkerUser,
    ) -> None:
        self._name = name
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._spare = spare
        self._lane = lane
        self._user = user
        self.state = WorkerState.ABSENT
        self.process: WorkerProcess | None = None
        self.num_deaths = 0
        self.last_end = "ended"
        # Of the version that was loaded last: decide how new processes are made.
        self._platform = ""
        self._concurrency = 1
        self._is_staged = False
        self._num_holds = 0
        self._when_ready: list[OnReady] = []
        self._respawn_timer: Timer | None = None
        self._deaths = CrashHistory(options.crashes)
        self._ended_for: WorkerEnd | None = None  # why we killed it, if we did
        self._start_failed = False
        self._num_lost_forks = 0
        self._failed: list[WorkerCall] = []  # calls of dead processes, to be answered

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

    @property
    def is_held(self) -> bool:
        """Whether somebody holds it, with or without models."""
        return self._num_holds > 0

    # -- asked by other threads ---------------------------------------------------------

    def on_loop(
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

    def ask(
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
                    how = f"{self.last_end} {meanwhile}".rstrip()
                    answer.set_exception(Internal(f"{who}: its interpreter {how}"))
                elif (error := reply.error()) is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(reply.fields)

            process = self.live
            if self.state is not WorkerState.READY or process is None:
                error = Unavailable(f"{who}: its interpreter is restarting")
                answer.set_exception(error)
            else:
                send(process, on_reply)

        return self.on_loop(begin, timeout_s, late)

    # -- wanted, and no longer ----------------------------------------------------------

    def want(self, on_ready: OnReady) -> None:
        """Calls ``on_ready`` once a process is ready, or cannot be had."""
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

    def hold(self, source: ModelSource | None, on_ready: OnReady) -> None:
        """Like ``want``, but it stays until ``let_go``, with or without models.

        If none could be started, nothing is held.

        Args:
            source: A version that is about to be loaded. A process that is there already
                may run fewer of its calls at once than it takes.
            on_ready: See ``want``.

        """
        self._num_holds += 1
        if source is not None:
            self._platform, self._concurrency = source.platform, source.concurrency
            self._is_staged = bool(source.staged_rows)

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
            and not self._user.models
            and not self._num_holds
            and not self._when_ready
        ):
            self._drop_process()  # a rehearsed call may still hang
            self._move(WorkerState.ABSENT)
            self._zygote.release()

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

    def end_hanging(self, process: WorkerProcess | None, why: str) -> None:
        """Replaces a process that does not answer, if it is still the present one."""
        if process is not None and self.process is process:
            self.end(why)

    def show_stacks(self) -> None:
        """Has the process, which is about to be ended, say where it hangs."""
        if (process := self.live) is not None and self._ended_for is None:
            log.warning(
                "event=call_hangs interpreter=%s pid=%d stacks=on_stderr",
                self._name,
                process.pid,
            )
            process.show_stacks()

    def close(self) -> None:
        """Ends everything for good, and answers whoever waits."""
        if self.state is not WorkerState.ABSENT:
            self._zygote.release()
        if self._respawn_timer is not None:
            self._respawn_timer.cancel()
        error = closed(self._name)
        if self.state is WorkerState.FORKING:
            self.process = None  # closed when the zygote answers
        awaited = self._drop_process()
        self._move(WorkerState.CLOSED)
        self._tell_ready(error)
        failed, self._failed = self._failed, []
        for call in failed:
            finish(call.task, error)
        self._lane.close_for_good(error)
        for on_reply in awaited:
            on_reply(None)
        self._lane.tell_idle()

    # -- from absent to ready -----------------------------------------------------------

    def _move(self, state: WorkerState) -> None:
        self.state = transition(self._name, self.state, state)

    def _tell_ready(self, error: ServingError | None) -> None:
        waiting, self._when_ready = self._when_ready, []
        for on_ready in waiting:
            on_ready(error)

    def _fork(self) -> None:
        self._move(WorkerState.FORKING)
        ready: WorkerProcess | None = None
        if self._spare is not None:
            ready = self._spare.take(self._platform, self._num_at_once)
        if ready is not None:
            self.process = ready
            self._on_forked(ready)
        else:
            self._ask_for_fork()

    def _ask_for_fork(self) -> None:
        options = replace(
            self._options.worker,
            concurrency=self._num_at_once,
            is_staged=self._is_staged,
        )
        try:
            process = self.process = WorkerProcess(self._loop, options)
        except OSError as error:
            self._cannot_start(str(error.strerror))
            return

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
            options, process.remote_fds, on_forked, platform=self._platform
        )

    @property
    def _num_at_once(self) -> int:
        """How many calls the next process has to run at once."""
        models = self._user.models.values()
        return max([self._concurrency, *(each.concurrency for each in models)])

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
            self._served,
            self._name,
            why,
        )
        error = Unavailable(f"interpreter {self._name} cannot be started: {why}")
        self._tell_ready(error)
        self._lane.refuse(error)
        self._respawn()

    def _on_forked(self, process: WorkerProcess) -> None:
        self._move(WorkerState.MAPPING)
        self._start_failed = False
        self._num_lost_forks = 0
        sign = LoadSign(self._loop, process.calls.slab, self._options.traffic)
        process.listen(self.end, lambda: self._on_end(process), sign)
        self._user.move_in(process)

    def settle(self) -> None:
        """Makes the process ready: it has all the models that it should have."""
        self._move(WorkerState.READY)
        self._tell_ready(None)
        if self.process is not None:
            self._lane.open(self.process.calls, self.end, self.show_stacks)
        self.retire_if_empty()

    # -- from ready to dead, and back ---------------------------------------------------

    def _on_end(self, process: WorkerProcess) -> None:
        """Fails the running calls, has a model blamed, and starts anew."""
        end = self._ended_for or self._how_it_ended(process)
        self.last_end = end.how
        self.num_deaths += 1
        log.error(
            "event=interpreter_died servable=%s interpreter=%s pid=%d how=%r",
            self._served,
            self._name,
            process.pid,
            end.how,
        )
        awaited = self._drop_process()
        self._move(WorkerState.DEAD)
        last_call = self._failed[-1] if self._failed else None
        if self._user.blame(end, last_call):
            self._deaths.add(self._loop.clock.now())
        self._respawn()
        failed, self._failed = self._failed, []
        for call in failed:
            text = f"{call.model.who}: the interpreter that ran this request {end.how}"
            finish(call.task, Internal(text))
        for on_reply in awaited:
            on_reply(None)
        self._lane.tell_idle()

    def _how_it_ended(self, process: WorkerProcess) -> WorkerEnd:
        status = process.exit_status()
        was_killed = status is not None and os.WIFSIGNALED(status)
        was_killed = was_killed and os.WTERMSIG(status or 0) == signal.SIGKILL
        if was_killed and self._options.memory_kills.is_more():
            return WorkerEnd(FOR_MEMORY, was_killed=True, for_memory=True)
        if is_for_threads(status) and self._options.refused_processes.is_more():
            how = f"ended because it could start no more threads: {thread_limits()}"
            return WorkerEnd(how, is_innocent=True)
        return WorkerEnd(describe_status(status), was_killed)

    def _respawn(self) -> None:
        """Starts the next process, at once or after a pause, if one is still wanted."""
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
        return bool(self._num_holds or self._when_ready) or any(
            model.refusal() is None for model in self._user.models.values()
        )

    def _drop_process(self) -> list[OnReply]:
        """Lets a process go, alive or dead; returns who still waits for its answer."""
        process, self.process = self.process, None
        awaited: list[OnReply] = []
        if process is not None:
            awaited = process.stop_listening()  # writes to the slab, which closes next
        self._failed += self._lane.close()
        self._ended_for = None
        if process is not None:
            process.close()
        return awaited

    @property
    def _served(self) -> str:
        models = self._user.models.values()
        return ",".join(each.who for each in models) or "none"
