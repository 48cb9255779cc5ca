"""A version that runs in processes: the tasks that wait for one of them, and its health."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable import InferenceTask
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import finish, queue_full
from tfs.runtime.process.crash_policy import CrashHistory, WorkerEnd
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker_calls import VersionCalls, WorkerCalls
from tfs.runtime.process.worker_process import OnReply, WorkerProcess, WorkerReply

log = logging.getLogger(__name__)

_WORKED_WELL_CALLS: Final = 100


class ProcessVersion:
    """The one queue of a version's workers, and what they know of it. Loop-confined.

    A task goes to a worker that is idle, else to one whose call is short, else to the
    first that can take it.

    Args:
        source: The version.
        files: Its bytes, which each process loads; the owner closes them.
        options: How many tasks may wait for each worker, and how many crashes are too
            many.
        clock: The clock of deadlines.
        num_workers: How many workers it may have.

    Attributes:
        calls: Its signatures by number, and how long calls take.
        workers: The calls of each worker that is ready.
        refusal: Why its tasks are not run; None while they are.
        num_deaths: How many workers died, whoever was at fault.
        last_death: How the last one died; "" before the first death.
        loaded: What the first worker observed of its load.
        on_wait: Called when a task has to wait.

    """

    def __init__(
        self,
        source: ModelSource,
        files: VersionFiles,
        options: ProcessOptions,
        clock: Clock,
        num_workers: int,
    ) -> None:
        self.source = source
        self.who = source.id.slashed
        self._files = files
        self._options = options
        self._clock = clock
        self._most_waiting = options.max_queued * num_workers
        self.calls = VersionCalls(source)
        self.workers: list[WorkerCalls] = []
        self._queue: deque[InferenceTask] = deque()
        self._when_idle: list[Callable[[], None]] = []
        self.refusal: ServingError | None = None
        self._was_asked = False  # whether a process was asked to load it
        self.num_deaths = 0
        self.last_death = ""
        self.loaded = ModelProfile()
        self.on_wait: Callable[[], None] = lambda: None
        self._crashes = CrashHistory(options.crashes)
        self._has_worked_between = True  # the last two ends for want of memory
        self._num_calls_of_dead = 0
        self._num_calls_at_kill = 0  # when it was last ended for want of memory

    @property
    def num_waiting(self) -> int:
        """Tasks that wait. May be read from any thread."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Tasks that workers have. May be read from any thread."""
        return sum(each.num for each in [*self.workers])

    # -- tasks ---------------------------------------------------------------------------

    def add(self, task: InferenceTask) -> None:
        """Hands a task to a worker, queues it, or answers it."""
        if self.refusal is not None:
            finish(task, self.refusal)
        elif task.signature_name not in self.calls.signature_indexes:
            text = f"{self.who} has no signature {task.signature_name!r}"
            finish(task, FailedPrecondition(text))
        elif len(self._queue) >= self._most_waiting:
            finish(task, queue_full(self.source.id, self._most_waiting))
        else:
            self._queue.append(task)
            self.pump()
            if self._queue:
                self.on_wait()

    def pump(self) -> None:
        """Hands waiting tasks to workers while they take them."""
        queue = self._queue
        while queue:
            worker = self._taker()
            if worker is None:
                return
            task = queue.popleft()
            now_s = self._clock.now()
            refused = task.begin(now_s, self.who)
            if refused is None:
                worker.begin(task, now_s)
            else:
                finish(task, refused)

    def _taker(self) -> WorkerCalls | None:
        found = None
        for worker in self.workers:
            if not worker.num:
                return worker
            if found is None and worker.may_take():
                found = worker
        return found

    def put_back(self, tasks: Sequence[InferenceTask]) -> None:
        """Has tasks that a worker had not begun run before all others."""
        self._queue.extendleft(reversed(tasks))

    def refuse(self, error: ServingError) -> None:
        """Answers all tasks that wait, and those that come, with ``error``."""
        self.refusal = error
        self.refuse_waiting(error)

    def refuse_waiting(self, error: ServingError) -> None:
        """Answers all tasks that wait with ``error``."""
        waiting = [*self._queue]
        self._queue.clear()
        for task in waiting:
            finish(task, error)

    def when_idle(self, then: Callable[[], None]) -> None:
        """Calls ``then`` once no worker has a task. For a version that is refused."""
        self._when_idle.append(then)
        self.tell_idle()

    def tell_idle(self) -> None:
        """Calls what ``when_idle`` was given, if it is time."""
        if self._when_idle and not self.num_running:
            waiting, self._when_idle = self._when_idle, []
            for then in waiting:
                then()

    # -- loads ---------------------------------------------------------------------------

    def load(self, process: WorkerProcess, on_reply: OnReply) -> None:
        """Has a process load it.

        The first process tells what that changes. A load makes way for requests, except
        after a death, because they may wait for it.
        """
        is_first, self._was_asked = not self._was_asked, True
        source = self.source if is_first else replace(self.source, was_measured=True)

        def take(reply: WorkerReply | None) -> None:
            if is_first and reply is not None and reply.error() is None:
                self._note_load(reply.fields)
            on_reply(reply)

        is_urgent = self.num_deaths > 0 or self._options.is_urgent()
        files = self._files
        fields = {"source": source, "files": list(files.files)}
        process.send("load", fields, files.fds, take, background=not is_urgent)

    def _note_load(self, fields: Mapping[str, object]) -> None:
        """Records what a load took and changed, as far as the worker tells."""

        def num_bytes(key: str) -> int | None:
            value = fields.get(key)
            return value if isinstance(value, int) else None

        # The worker maps weights without reading them, so imports take most of the time.
        import_s = fields.get("import_s")
        self.loaded = ModelProfile(
            import_s=import_s if isinstance(import_s, float) else None,
            load_peak_bytes=num_bytes("load_peak_bytes"),
            resident_bytes=num_bytes("resident_bytes"),
            process_changes=str(fields.get("changes", "")),
        )

    # -- health --------------------------------------------------------------------------

    def note_end(self, end: WorkerEnd, num_calls: int, *, was_in_use: bool) -> bool:
        """Counts a worker that died, and blames the version if it was at fault.

        It is not if somebody else (an operator, or a kernel out of memory) killed a
        worker of a version that had worked well, on this worker or earlier ones, or a
        worker that was idle: the next one may well work.

        Args:
            end: How it ended.
            num_calls: The calls that it had answered.
            was_in_use: Whether it was in a call, or loading.

        Returns:
            Whether the death counts where the next start is delayed. If this worker had
            answered, a kill does not, because a system that kills whatever is started
            would have done so before it answered.

        """
        self.num_deaths += 1
        self.last_death = end.how
        self._num_calls_of_dead += num_calls
        if end.for_memory:
            since = self._num_calls_of_dead - self._num_calls_at_kill
            self._has_worked_between = since >= _WORKED_WELL_CALLS
            self._num_calls_at_kill = self._num_calls_of_dead
        was_chosen = end.was_killed and (not was_in_use or self._has_worked_well(end))
        if was_in_use and not was_chosen:
            self._note_crash(end)
        return not (was_chosen and num_calls)

    def _has_worked_well(self, end: WorkerEnd) -> bool:
        """Whether workers that are dead by now answered enough calls together.

        One that is killed again and again, twice a second, may never answer as many. For
        want of memory a kernel ends whatever is largest, and what was asked for is often
        at fault: one request that takes all memory ends every worker that gets it. So
        there, what was answered since the last such end counts: who leaks for hours goes
        on, and who is ended again and again does not.
        """
        if end.for_memory:
            return self._has_worked_between
        return self._num_calls_of_dead >= _WORKED_WELL_CALLS

    def _note_crash(self, end: WorkerEnd) -> None:
        now_s = self._clock.now()
        self._crashes.add(now_s)
        if self._crashes.is_too_many(now_s):
            self.quarantine(
                f"crashed {self._crashes.num_recent(now_s)} times within "
                f"{self._options.crashes.window_s:.0f} s; the last time its "
                f"interpreter {end.how}"
            )

    def quarantine(self, reason: str) -> None:
        """Bars the version, on all its workers, unless it already is."""
        if self.refusal is not None:
            return
        log.error("event=quarantined servable=%s reason=%r", self.who, reason)
        text = f"{self.who} is quarantined: it {reason}; deploy another version"
        self.refuse(FailedPrecondition(text))
        try:
            self._options.on_quarantine(self.source.id, reason)
        except Exception:
            log.exception("event=on_quarantine_failed servable=%s", self.who)
