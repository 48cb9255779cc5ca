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
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Final

from tfs.core.errors import FailedPrecondition, Internal, ServingError
from tfs.core.servable import InferenceTask
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.resident_models import ResidentModels
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.spilled_task import SpilledTask, takes_long_to_write
from tfs.runtime.process.trial_calls import TrialCalls
from tfs.runtime.process.version_loading import VersionLoading
from tfs.runtime.process.worker_call import why_not_handed_over
from tfs.runtime.process.worker_requests import Waiter, WorkerRequests
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.process.zygote import Zygote
from tfs.runtime.task_outcome import closed, finish, unloaded

_HANDSHAKE_S: Final = 120.0  # torch's import on a loaded machine takes many seconds


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
        trials: Calls the models before they serve.

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
        self._options = options or ProcessOptions()
        self._residents = ResidentModels(name, loop, zygote, self._options, spare)
        self._life = self._residents.life
        self._lanes = self._residents.lanes
        self._requests = WorkerRequests(name, loop, self._life)
        self._loading = VersionLoading(
            loop, self._requests, self._residents, self._options
        )
        self.trials = TrialCalls(self._requests, self._life, loop, self._options)
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
        return self._lanes.num_pending + len(self._inbox) + len(self._spilling)

    @property
    def state(self) -> WorkerState:
        """The state of the process."""
        return self._life.state

    @property
    def is_idle(self) -> bool:
        """Whether there is no process, nothing loaded and nothing being loaded."""
        return (
            self.state in (WorkerState.ABSENT, WorkerState.CLOSED)
            and not self._residents.has_models
            and not self._life.is_held
        )

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while there is none."""
        return self._life.pid

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the worker is gone."""
        return self._life.num_deaths

    @property
    def num_unanswered(self) -> int:
        """Session requests that the worker has not answered yet."""
        return self._requests.num_unanswered

    def stats(self) -> InterpreterStats:
        return replace(
            self._lanes.stats(),
            num_models=self._residents.num_models,
            num_restarts=self._life.num_deaths,
        )

    # -- from other threads ---------------------------------------------------------

    def start(self) -> None:
        """Starts the zygote, so that it is ready for the first load."""
        self._loop.post(lambda: self._life.want(lambda _: None))

    def load(
        self,
        source: ModelSource,
        files: VersionFiles | None = None,
        health: VersionHealth | None = None,
    ) -> ProcessModel:
        """Loads a version. Blocks; call it on a manager thread.

        Args:
            source: What to load.
            files: Its payload, if another interpreter has staged it already;
                descriptors are duplicated.
            health: Shared by the interpreters of the version; None if there is only
                one.
            share: Its weights on a device, shared by the interpreters of the version.
                None takes a share of its own, if the device has any to share.

        Raises:
            ServingError: The version does not load; nothing is left of it.

        """
        if self._loop.is_loop_thread:
            raise FailedPrecondition(f"{source.id.slashed}: load blocks the loop")
        self.hold(source.platform)
        staged: VersionFiles | None = None
        try:
            staged = files.duplicate() if files is not None else self.stage(source)
            model = ProcessModel(
                source,
                staged,
                next(self._model_ids),
                health or VersionHealth(self._options.crashes),
                self,
            )
            self._loading.load(model)
            self._loop.post(partial(self._lanes.note_loaded, model))
            return model
        except BaseException:
            if staged is not None:
                staged.close()
            raise
        finally:
            self.let_go()

    def unload(self, model: ProcessModel) -> None:
        """Frees a model after the call that is running. Blocks."""
        if self.state is WorkerState.CLOSED:
            model.unloading = True
            self._lanes.note_unloading(model)
            return

        def begin(waiter: Waiter[None]) -> None:
            self._lanes.note_unloading(model)
            self._residents.unload(model, lambda: waiter.set(None))

        timeout_s = self._options.call_timeout_s * 2 + _HANDSHAKE_S
        late = Internal(f"{model.who}: its interpreter does not let go of it")
        self._requests.ask(begin, timeout_s, late)

    def close(self, deadline_s: float | None = None) -> None:
        if self.state is WorkerState.CLOSED:
            return
        if self._loop.is_loop_thread:
            self._residents.close()
            return
        waiter: Waiter[None] = Waiter()

        def end() -> None:
            self._residents.close()
            waiter.set(None)

        def begin() -> None:
            self._lanes.refuse(closed(self._name))
            if deadline_s is not None:
                self._loop.call_at(deadline_s, end)
            self._lanes.after_calls(end)

        self._loop.post(begin)
        timeout_s = self._options.call_timeout_s + _HANDSHAKE_S
        if deadline_s is not None:
            timeout_s = max(0.0, deadline_s - self._loop.clock.now()) + 5.0
        waiter.wait(timeout_s, Internal(f"interpreter {self._name} does not close"))

    def share_calls(self, others: Sequence[ProcessInterpreter]) -> None:
        """Takes over calls that wait for one of these while it is idle itself.

        For interpreters of one loop, before the first load.
        """
        self._lanes.share([each._lanes for each in others if each is not self])

    def hold(self, platform: str = "") -> None:
        """Starts the worker and keeps it, with or without models, until ``let_go``. Blocks.

        Args:
            platform: Of the version to be loaded on it; empty if unknown.

        Raises:
            ServingError: No worker could be started.

        """

        def begin(waiter: Waiter[None]) -> None:
            def on_ready(error: ServingError | None) -> None:
                if error is None:
                    waiter.set(None)
                else:
                    waiter.fail(error)

            life = self._life
            life.platform = platform or life.platform
            life.hold(on_ready)

        late = Internal(f"interpreter {self._name} does not start")
        self._requests.ask(begin, _HANDSHAKE_S, late)

    def let_go(self) -> None:
        """Takes a ``hold`` back."""
        if self.state is not WorkerState.CLOSED:
            self._loop.post(self._life.let_go)

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the worker's session guest answer a request. Blocks.

        Returns:
            The reply, and descriptors that the caller closes.

        Raises:
            ServingError: The error that the guest returned; or Internal if the worker
                died over the request.

        """
        return self._requests.exchange(request, fds, self._options.load_timeout_s)

    def stage(self, source: ModelSource) -> VersionFiles:
        """Has the worker copy the payload into memory, at its lowest priority.

        Blocks. To be called only within a ``hold``. The caller closes the result.

        Raises:
            ServingError: The payload cannot be read, or the worker died.

        """
        return self._loading.stage(source)

    # -- calls -----------------------------------------------------------------------

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        """Starts a task, from any thread. Never blocks, never raises."""
        if get_ident() == self._loop.thread_ident:
            self._enqueue(model, task)
        elif self.state is WorkerState.CLOSED:
            finish(task, closed(self._name))  # because the loop may be gone
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
        elif takes_long_to_write(task):
            self._spilling.append(None)
            spill = partial(self._spill, model, task)
            try:
                self._options.executor.submit(spill)
            except RuntimeError:  # the server ends
                spill()
        else:
            self._lanes.add(model, task)

    def _spill(self, model: ProcessModel, task: InferenceTask) -> None:
        """Copies a task's tensors, and starts it. On a thread of the executor."""
        error = task.cancel.error
        if error is None:
            try:
                task = SpilledTask(task)
            except Exception as failure:
                error = why_not_handed_over(model, failure)
        self._spilling.pop()
        if error is None:
            self.enqueue(model, task)
        else:
            finish(task, error)
