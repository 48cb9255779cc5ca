"""The worker of an interpreter: a process that comes when it is wanted, and again when it dies.

The states and the moves between them are the table in ``worker_state.py``; any other
move raises.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

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
from tfs.runtime.task_outcome import closed, finish, unloaded

log = logging.getLogger(__name__)

_START_AGAIN_S: Final = 1.0  # after the zygote could not be started
# Forks that were lost in a row, because whatever ends zygotes might go on for ever.
_MAX_LOST_FORKS: Final = 3

OnReady = Callable[["ServingError | None"], None]
"""Takes None once a worker is ready, or why there is none."""


class Worker:
    """Starts a process when one is wanted, and another when it dies. Loop-confined.

    Each process has all its models before it takes calls, and a death is blamed on the
    model during whose call or load it happened. The plain attributes may be read from
    anywhere.

    Args:
        name: The interpreter's, for logs.
        loop: Watches the process.
        zygote: Forks it.
        options: Limits, timeouts and how processes are made.
        spare: Provides a process at once, if it has one ready.
        lane: Takes calls to it.

    Attributes:
        models: The models that each process has, by number.
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
    ) -> None:
        self._name = name
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._spare = spare
        self._lane = lane
        self.models: dict[int, ProcessModel] = {}
        self._moving_in: ProcessModel | None = None  # the model being loaded again
        self._num_calls_before = 0  # when a worker died last
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

    # -- models ----------------------------------------------------------------------

    def load(
        self,
        model: ProcessModel,
        background: bool,
        process: WorkerProcess,
        on_reply: OnReply,
    ) -> None:
        """Has a process load a model. Every later one loads it too, until it is unloaded."""

        def on_loaded(reply: WorkerReply | None) -> None:
            if reply is not None and reply.error() is None:
                self.models[model.model_id] = model
            on_reply(reply)

        process.load(model.source, model.model_id, model.files, on_loaded, background)

    def begin_to_serve(self, model: ProcessModel) -> None:
        """Takes calls of a model from the lanes of the version's other workers, too."""
        if not model.unloading:
            model.health.loaded_in[self._lane] = model
            self._lane.pump()

    def give_up_loading(self, model: ProcessModel) -> None:
        """Ends a process that is still loading a model that nobody waits for any more."""
        process = self.live
        is_loading = process is not None and process.num_awaited > 0
        if is_loading and model.model_id not in self.models:
            self.end("was ended because it did not finish loading")

    def unload(self, model: ProcessModel, is_gone: Future[None]) -> None:
        """Frees a model after its calls; may be repeated."""
        model.health.loaded_in.pop(self._lane, None)
        if model.unloading:
            is_gone.set_result(None)
            return
        model.unloading = True
        self._lane.refuse(unloaded(model.source.id), model)

        def when_idle() -> None:
            self.models.pop(model.model_id, None)
            model.files.close()
            if (process := self.live) is not None and self.models:
                process.send(
                    "unload",
                    {"model": model.model_id},
                    (),
                    lambda _: is_gone.set_result(None),
                    background=False,
                )
            else:
                self.retire_if_empty()
                is_gone.set_result(None)

        self._lane.after_calls(when_idle, model)

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
            and not self.models
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
        """Ends everything for good, and answers whoever waits; may be repeated."""
        if self.state is WorkerState.CLOSED:
            return
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
        for model in self.models.values():
            model.files.close()
        self.models = {}

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
        own = [each.concurrency for each in self.models.values()]
        return max([self._concurrency, *own])

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
        self._move_in(process, list(self.models.values()))

    def _move_in(self, process: WorkerProcess, models: list[ProcessModel]) -> None:
        """Loads the last process's models one after the other; then it is ready."""
        models = [each for each in models if each.refusal() is None]
        if not models:
            self._move(WorkerState.READY)
            self._tell_ready(None)
            if self.process is not None:
                self._lane.open(self.process.calls, self.end, self.show_stacks)
            self.retire_if_empty()
            return
        model, *others = models
        self._moving_in = model

        def on_reply(reply: WorkerReply | None) -> None:
            if reply is None:
                return  # it died, which is noticed elsewhere
            self._moving_in = None
            error = reply.error()
            if error is not None:
                self._quarantine(model, f"does not load again: {error.message}")
            self._move_in(process, others)

        # An earlier worker had it, so that nobody asks what it changes.
        known = replace(model.source, was_measured=True)
        process.load(known, model.model_id, model.files, on_reply, background=False)

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
        if self._blame(end, last_call):
            self._deaths.add(self._loop.clock.now())
        self._respawn()
        failed, self._failed = self._failed, []
        for call in failed:
            text = f"{call.model.who}: the interpreter that ran this request {end.how}"
            finish(call.task, Internal(text))
        for on_reply in awaited:
            on_reply(None)
        self._lane.tell_idle()

    def _blame(self, end: WorkerEnd, call: WorkerCall | None) -> bool:
        """Blames a death on the model during whose call or load it happened.

        It blames nobody if somebody else (an operator, or a kernel out of memory)
        killed a worker of a version that had worked well, on this worker or earlier
        ones, or a worker that was idle: the next one may well work. If this worker had
        answered, the next one is started without a pause, because a system that kills
        whatever is started would have done so before it answered.
        """
        num_calls = self._lane.stats().num_calls - self._num_calls_before
        self._num_calls_before += num_calls  # the next may die before it is ready
        for health in {model.health for model in self.models.values()}:
            health.note_death(end, num_calls)
        moving_in, self._moving_in = self._moving_in, None
        culprit = call.model if call is not None else moving_in
        was_chosen = end.was_killed and (
            culprit is None or culprit.health.has_worked_well(end)
        )
        if culprit is not None and not (end.is_innocent or was_chosen):
            reason = culprit.health.note_crash(end, self._loop.clock.now())
            if reason is not None:
                self._quarantine(culprit, reason)
        return not (was_chosen and num_calls)

    def _quarantine(self, model: ProcessModel, reason: str) -> None:
        """Bars a version, on all its interpreters, unless it already is."""
        if model.health.quarantine is not None:
            return
        model.health.quarantine = reason
        log.error("event=quarantined servable=%s reason=%r", model.who, reason)
        if (refusal := model.refusal()) is not None:
            self._lane.refuse(refusal, model)
        try:
            self._options.on_quarantine(model.source.id, reason)
        except Exception:
            log.exception("event=on_quarantine_failed servable=%s", model.who)

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
            model.refusal() is None for model in self.models.values()
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
        return ",".join(each.who for each in self.models.values()) or "none"
