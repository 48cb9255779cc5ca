"""A version loaded in a process, and the health that all its interpreters share."""

from __future__ import annotations

import os
from typing import Final, Protocol

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable import InferenceTask, Tensors
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import LoadMemory, OnAnotherThread
from tfs.runtime.process.call_times import CallTimes
from tfs.runtime.process.crash_policy import CrashHistory, CrashPolicy, WorkerEnd
from tfs.runtime.process.slab_call import ReplyPlans, RequestPlans
from tfs.runtime.process.trial_calls import TrialCall, TrialCalls

_WORKED_WELL_CALLS: Final = 100


class VersionHealth:
    """What the interpreters of a version know of it together. Loop-confined.

    Attributes:
        crashes: Crashes of all its interpreters together.
        quarantine: Why the version must not be run any more; None while it may.
        num_deaths: How often an interpreter that held it died, whoever was at fault.
        last_death: How the last one died; "" before the first death.
        has_worked_between: Whether it answered enough calls before the last time that
            it was ended for want of memory, and after the time before.
        loaded_in: The version in each lane of calls whose interpreter has it.

    """

    def __init__(self, policy: CrashPolicy) -> None:
        self.crashes = CrashHistory(policy)
        self.quarantine: str | None = None
        self.num_deaths = 0
        self.last_death = ""
        self.loaded_in: dict[object, ProcessModel] = {}
        self.has_worked_between = True
        self._num_calls = 0
        self._num_calls_at_kill = 0  # when it was last ended for want of memory

    @property
    def has_worked_well(self) -> bool:
        """Whether workers that are dead by now answered enough calls together.

        One that is killed again and again, twice a second, may never answer as many.
        """
        return self._num_calls >= _WORKED_WELL_CALLS

    def note_death(self, end: WorkerEnd, num_calls: int) -> None:
        """Counts an interpreter that died, and the calls that its worker had answered."""
        self.num_deaths += 1
        self.last_death = end.how
        self._num_calls += num_calls
        if end.for_memory:
            since = self._num_calls - self._num_calls_at_kill
            self.has_worked_between = since >= _WORKED_WELL_CALLS
            self._num_calls_at_kill = self._num_calls


class ModelHost(Protocol):
    """What a model asks of the interpreter that it is loaded on. Thread-safe."""

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        ...

    @property
    def trials(self) -> TrialCalls:
        """Calls its models before they serve."""
        ...

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        """Starts a task. Never blocks, never raises."""
        ...

    def unload(self, model: ProcessModel) -> None:
        """Frees the model. Blocks."""
        ...


class ProcessModel(OnAnotherThread):
    """A version on a process interpreter.

    Thread-safe, except for the plain attributes, which belong to the loop.

    Attributes:
        who: The version, for messages.
        share: Its weights on a device that keeps them for all its interpreters, if any.
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
        self.who = source.id.slashed
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
        self.told_of_writes = False
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

    def submit(self, task: InferenceTask) -> None:
        self._host.enqueue(self, task)

    def unload(self) -> None:
        self._host.unload(self)

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Has the worker measure it; see ``MeasurableModel``."""
        call = TrialCall(self.who, self.model_id, signature_name, inputs)
        trials, call_s = self._host.trials, self.last_call_s
        shown = trials.two_thread_scaling(call, duration_s, call_s)
        if shown is None:
            return None
        self.process_changes = shown.process_changes or self.process_changes
        return shown.scaling

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> float:
        """Has the worker call it in the background; see ``RehearsableModel``."""
        call = TrialCall(self.who, self.model_id, signature_name, inputs)
        return self._host.trials.rehearse(call, timeout_s)

    def seed(self, seed: int | None) -> bool:
        """Sets the worker's random numbers; see ``SeedableModel``."""
        return self._host.trials.seed(self.who, seed)

    def refusal(self) -> ServingError | None:
        """Returns why its tasks must not run; None if they may."""
        if self.health.quarantine is None:
            return None
        return FailedPrecondition(
            f"{self._source.id.slashed} is quarantined: it {self.health.quarantine}; "
            "deploy another version"
        )
