"""One version on several interpreters, as in the paper: one interpreter per core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Tensors
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import (
    InterpreterModel,
    InterpreterStats,
    LoadMemory,
    MeasurableModel,
    OnAnotherThread,
    RehearsableModel,
    SeedableModel,
)


class Member(Protocol):
    """An interpreter that can tell how busy it is."""

    @property
    def num_pending(self) -> int:
        """Calls that wait or run."""
        ...


class MemberModel(InterpreterModel, MeasurableModel, Protocol):
    """The version on one of the interpreters."""


M = TypeVar("M", bound=Member)
V = TypeVar("V", bound=MemberModel)


class SpreadModel(OnAnotherThread, Generic[M, V]):
    """A version on each interpreter of a group. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.InterpreterModel`, except that the order
    of tasks holds per interpreter only, and
    :class:`~tfs.runtime.interpreter.MeasurableModel` by its first interpreter, since
    all are alike.
    """

    def __init__(self, members: Sequence[tuple[M, V]]) -> None:
        # The tuple is replaced and never changed, because calls read it without a lock.
        self._members = tuple(members)
        self._on_wait: Callable[[], None] | None = None
        self._end_growth: Callable[[], None] = lambda: None
        # Guards the writing of _members, and the flag; leaf.
        self._lock = threading.Lock()
        self._unloaded = False

    @property
    def members(self) -> Sequence[tuple[M, V]]:
        """The version on each interpreter."""
        return self._members

    @property
    def source(self) -> ModelSource:
        return self._members[0][1].source

    @property
    def pid(self) -> int:
        """The first interpreter's process."""
        return self._members[0][1].pid

    @property
    def import_s(self) -> float | None:
        """Processor seconds that the first interpreter needed to import and unpickle it."""
        return self._members[0][1].import_s

    @property
    def process_changes(self) -> str:
        """What the load on the first interpreter changed in its process."""
        return self._members[0][1].process_changes

    @property
    def load_memory(self) -> LoadMemory:
        """What the first interpreter's load took."""
        return self._members[0][1].load_memory

    @property
    def last_call_s(self) -> float | None:
        """Seconds of the first interpreter's last call; an idle group uses that one."""
        return self._members[0][1].last_call_s

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Has the first interpreter measure it; see ``MeasurableModel``."""
        return self._members[0][1].two_thread_scaling(
            signature_name, inputs, duration_s
        )

    def rehearse(
        self, signature_name: str, inputs: Tensors, timeout_s: float
    ) -> float | None:
        """Rehearses on each interpreter, one after the other; returns the longest."""
        longest_s = 0.0
        for _, model in self._members:
            if not isinstance(model, RehearsableModel):
                return None
            took_s = model.rehearse(signature_name, inputs, timeout_s)
            if took_s is None:
                return None
            longest_s = max(longest_s, took_s)
        return longest_s

    def seed(self, seed: int | None) -> bool:
        """Seeds each interpreter's random numbers; returns whether all could be seeded."""
        done = [
            isinstance(model, SeedableModel) and model.seed(seed)
            for _, model in self._members
        ]
        return all(done)

    def submit(self, task: InferenceTask) -> None:
        """Hands the task to the interpreter with the fewest calls before it."""
        first, model = self._members[0]
        fewest = first.num_pending
        if fewest:
            for member, other in self._members[1:]:
                num_pending = member.num_pending
                if num_pending < fewest:
                    fewest, model = num_pending, other
                    if not num_pending:
                        break
            if fewest and (on_wait := self._on_wait) is not None:
                on_wait()
        model.submit(task)

    def grow_by(
        self,
        on_wait: Callable[[], None] | None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """Lets somebody add interpreters.

        Args:
            on_wait: Called, often and from any thread, when a call has to wait; None:
                no more interpreters are added.
            end: Called before the version is unloaded. Stops adding interpreters, and
                waits for one that is under way.

        """
        self._on_wait, self._end_growth = on_wait, end

    def add(self, member: M, model: V) -> bool:
        """Sends calls to one more interpreter; returns False if it is unloaded."""
        with self._lock:
            if not self._unloaded:
                self._members = (*self._members, (member, model))
            return not self._unloaded

    def unload(self) -> None:
        with self._lock:
            self._unloaded = True
        end, self._on_wait = self._end_growth, None
        end()
        failed: ServingError | None = None
        for _, model in self._members:
            try:
                model.unload()
            except (
                ServingError
            ) as error:  # this interpreter hangs, but the others do not
                failed = error
        if failed is not None:
            raise failed


def summed(each: Iterable[InterpreterStats]) -> InterpreterStats:
    """Returns the sums over a group; the number of models is that of its first member."""
    each = list(each)
    return InterpreterStats(
        num_models=each[0].num_models,
        num_queued=sum(stats.num_queued for stats in each),
        num_calls=sum(stats.num_calls for stats in each),
        num_dropped=sum(stats.num_dropped for stats in each),
        num_failed=sum(stats.num_failed for stats in each),
        num_restarts=sum(stats.num_restarts for stats in each),
        busy_s=sum(stats.busy_s for stats in each),
    )
