"""A version loaded in a process, and the health that all its interpreters share."""

from __future__ import annotations

import functools
import logging
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from tfs.core.errors import DeadlineExceeded, FailedPrecondition, ServingError
from tfs.core.servable import InferenceTask, Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.sealed_file import new_memfd
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import LoadMemory, OnAnotherThread
from tfs.runtime.process.call_times import CallTimes
from tfs.runtime.process.crash_policy import CrashHistory, CrashPolicy, WorkerEnd
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.slab_call import ReplyPlans, RequestPlans
from tfs.runtime.task_outcome import unloaded

log = logging.getLogger(__name__)

# Added to the time that calls before it serves should take.
_PATIENCE_S: Final = 5.0
_WORKED_WELL_CALLS: Final = 100


class VersionHealth:
    """What the interpreters of a version know of it together. Loop-confined.

    Attributes:
        crashes: Crashes of all its interpreters together.
        quarantine: Why the version must not be run any more; None while it may.
        num_deaths: How often an interpreter that held it died, whoever was at fault.
        last_death: How the last one died; "" before the first death.
        loaded_in: The version in each lane of calls whose interpreter has it.

    """

    def __init__(self, policy: CrashPolicy) -> None:
        self.crashes = CrashHistory(policy)
        self.quarantine: str | None = None
        self.num_deaths = 0
        self.last_death = ""
        self.loaded_in: dict[object, ProcessModel] = {}
        self._has_worked_between = True  # the last two ends for want of memory
        self._num_calls = 0
        self._num_calls_at_kill = 0  # when it was last ended for want of memory

    def has_worked_well(self, end: WorkerEnd) -> bool:
        """Whether workers that are dead by now answered enough calls together.

        One that is killed again and again, twice a second, may never answer as many. For
        want of memory a kernel ends whatever is largest, and what was asked for is often
        at fault: one request that takes all memory ends every worker that gets it. So
        there, what was answered since the last such end counts: who leaks for hours goes
        on, and who is ended again and again does not.
        """
        if end.for_memory:
            return self._has_worked_between
        return self._num_calls >= _WORKED_WELL_CALLS

    def note_death(self, end: WorkerEnd, num_calls: int) -> None:
        """Counts an interpreter that died, and the calls that its worker had answered."""
        self.num_deaths += 1
        self.last_death = end.how
        self._num_calls += num_calls
        if end.for_memory:
            since = self._num_calls - self._num_calls_at_kill
            self._has_worked_between = since >= _WORKED_WELL_CALLS
            self._num_calls_at_kill = self._num_calls

    def note_crash(self, end: WorkerEnd, now_s: float) -> str | None:
        """Counts a crash; returns why the version must not run, if it was one too many."""
        self.crashes.add(now_s)
        if not self.crashes.is_too_many(now_s):
            return None
        num, window_s = self.crashes.num_recent(now_s), self.crashes.window_s
        return (
            f"crashed {num} times within {window_s:.0f} s; "
            f"the last time its interpreter {end.how}"
        )


class ModelHost(Protocol):
    """What a model asks of the interpreter that it is loaded on. Thread-safe.

    Attributes:
        options: The options of the interpreter.

    """

    options: ProcessOptions

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        ...

    @property
    def staged_words(self) -> tuple[int, int] | None:
        """What the worker says of its model in stages; None while there is no worker."""
        ...

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        """Starts a task. Never blocks, never raises."""
        ...

    def unload(self, model: ProcessModel) -> None:
        """Frees the model. Blocks."""
        ...

    def ask(self, request: ModelRequest) -> Mapping[str, object]:
        """Has the worker answer a request about a model that serves nobody yet. Blocks.

        Raises:
            DeadlineExceeded: It does not, and is replaced if it may hang.
            ServingError: It cannot, or died over it.

        """
        ...


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request about a model, beside its calls. Immutable.

    Such requests go through the worker's control thread, so nothing on the loop waits for
    them.

    Attributes:
        who: The version, for messages.
        op: What the worker is asked to do.
        fields: The arguments.
        fds: Descriptors that go along; the caller closes them.
        timeout_s: How long it may take.
        hangs: What hangs if it takes longer, so that the worker is replaced; empty: it
            stays.
        background: Whether the worker does it at its lowest priority.

    """

    who: str
    op: str
    fields: Mapping[str, object]
    fds: tuple[int, ...]
    timeout_s: float
    hangs: str = ""
    background: bool = False


class ProcessModel(OnAnotherThread):
    """A version on a process interpreter.

    Thread-safe, except for the plain attributes, which belong to the loop.

    Attributes:
        who: The version, for messages.
        concurrency: How many of its calls may run at once.
        request_plans: How requests for a signature were written, by signature.
        reply_plans: What is known of the words of a signature's replies, by signature.
        import_s: Processor seconds that the worker needed to import and unpickle it;
            None before that.
        process_changes: What its code changed in the worker's process while it was
            loaded or measured.
        load_memory: What the worker observed of its memory during the load.
        last_call_s: Seconds that the last call took in the worker; None before the
            first.

    """

    def __init__(
        self,
        source: ModelSource,
        files: VersionFiles,
        model_id: int,
        health: VersionHealth,
        host: ModelHost,
    ) -> None:
        self._source = source
        self._host = host
        # Its tasks go the shortest way.
        self.submit: Final = functools.partial(host.enqueue, self)
        self.who = source.id.slashed
        self.concurrency = source.concurrency
        self.files = files
        self.model_id = model_id
        self.health = health
        self.signature_indexes = {
            name: index for index, name in enumerate(source.signatures)
        }
        self.request_plans: list[RequestPlans] = [{} for _ in source.signatures]
        self.reply_plans: list[ReplyPlans] = [{} for _ in source.signatures]
        self.times = CallTimes()
        self.unloading = False
        self.import_s: float | None = None
        self.process_changes = ""
        self.load_memory = LoadMemory()
        self.last_call_s: float | None = None

    @property
    def source(self) -> ModelSource:
        return self._source

    @property
    def pid(self) -> int:
        """The process id of the worker, or of this process while there is none."""
        return self._host.pid or os.getpid()

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker; None while there is none."""
        return self._host.pid

    def unload(self) -> None:
        self._host.unload(self)

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Has the worker call it from two threads; see ``MeasurableModel``.

        If that does not return, the worker is replaced, and nothing is measured.
        """
        patience_s = self._host.options.call_timeout_s
        if self.last_call_s is not None:
            patience_s = min(patience_s, 10 * self.last_call_s + _PATIENCE_S)
        try:
            reply = self._try(
                "scale",
                signature_name,
                inputs,
                8 * duration_s + patience_s,
                hangs="two calls of its model at once hang",
                fields={"duration_s": duration_s},
            )
        except DeadlineExceeded:
            log.warning("event=two_threads_hang servable=%s", self.who)
            return None
        self.process_changes = str(reply["changes"]) or self.process_changes
        scaling = reply.get("scaling")
        return scaling if isinstance(scaling, float) else None

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> float:
        """Has the worker call it in the background; see ``RehearsableModel``.

        An error shows when the model is called again. If the call does not return, the
        worker is replaced.
        """
        try:
            reply = self._try(
                "rehearse",
                signature_name,
                inputs,
                timeout_s,
                hangs="a call before it served hangs",
                background=not self._host.options.is_urgent(),
            )
        except ServingError:
            return math.inf
        took_s = reply.get("call_s")
        return took_s if isinstance(took_s, float) else math.inf

    @property
    def staged_status(self) -> AutoStatus | None:
        """What joining between stages was worth; None if it is computed whole."""
        words = self._host.staged_words if self._source.staged_rows else None
        return None if words is None else AutoStatus.of_words(*words)

    def seed(self, seed: int | None) -> bool:
        """Sets the worker's random numbers; see ``SeedableModel``."""
        try:
            self._host.ask(
                ModelRequest(self.who, "seed", {"seed": seed}, (), _PATIENCE_S)
            )
        except ServingError as error:
            log.info("event=not_seeded servable=%s error=%s", self.who, error)
            return False
        return True

    def _try(
        self,
        op: str,
        signature_name: str,
        inputs: Tensors,
        timeout_s: float,
        *,
        hangs: str,
        fields: Mapping[str, object] = MappingProxyType({}),
        background: bool = False,
    ) -> Mapping[str, object]:
        """Has the worker call the model before it serves. Blocks; raises as ``ask``."""
        views = {
            name: TensorView(
                view.dtype,
                view.shape,
                view.data if isinstance(view.data, tuple) else bytes(view.data),
            )
            for name, view in inputs.items()
        }
        message = {**fields, "model": self.model_id, "signature": signature_name}
        # Inputs go to a memfd on this thread, so that the loop copies no large batch.
        fd = new_memfd("probe")
        try:
            with open(fd, "wb", closefd=False) as file:
                pickle.dump(views, file)
            return self._host.ask(
                ModelRequest(self.who, op, message, (fd,), timeout_s, hangs, background)
            )
        finally:
            os.close(fd)

    def refusal(self) -> ServingError | None:
        """Returns why its tasks must not run; None if they may."""
        if self.unloading:
            return unloaded(self._source.id)
        if self.health.quarantine is None:
            return None
        return FailedPrecondition(
            f"{self.who} is quarantined: it {self.health.quarantine}; "
            "deploy another version"
        )
