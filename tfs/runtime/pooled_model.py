"""One version on several interpreters, as in the paper: one interpreter per core."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Tensors
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import (
    InterpreterModel,
    LoadMemory,
    MeasurableModel,
    OnAnotherThread,
    RehearsableModel,
    SeedableModel,
    StageableModel,
)

log = logging.getLogger(__name__)


class Member(Protocol):
    """An interpreter that can tell how busy it is."""

    @property
    def name(self) -> str:
        """Its name in logs."""
        ...

    @property
    def num_pending(self) -> int:
        """Calls that wait or run."""
        ...


class MemberModel(InterpreterModel, MeasurableModel, Protocol):
    """The version on one of the interpreters."""


M = TypeVar("M", bound=Member)
V = TypeVar("V", bound=MemberModel)


@dataclass(frozen=True, slots=True)
class Growth(Generic[M, V]):
    """Interpreters on which a version is loaded once its calls wait. Immutable.

    Attributes:
        name: Of the thread that loads it.
        loads: By interpreter, what loads the version there; blocks.
        may_begin: Called for each call that waits, on any thread.
        is_over: Whether no more interpreters are wanted, though nobody said so.
        close: Called when no more will be loaded; may be repeated.

    """

    name: str
    loads: Sequence[tuple[M, Callable[[], V]]]
    may_begin: Callable[[], bool]
    is_over: Callable[[], bool]
    close: Callable[[], None]


class PooledModel(OnAnotherThread, Generic[M, V]):
    """A version on each interpreter of a pool. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.InterpreterModel`, except that the order
    of tasks holds per interpreter only, and
    :class:`~tfs.runtime.interpreter.MeasurableModel` by its first interpreter, since
    all are alike.

    Args:
        members: The interpreters that have it, at least one.
        growth: How it gets onto more of them; None: it does not.

    """

    def __init__(
        self, members: Sequence[tuple[M, V]], growth: Growth[M, V] | None = None
    ) -> None:
        # The tuple is replaced and never changed, because calls read it without a lock.
        self._members = tuple(members)
        self._growth = growth
        # Guards the writing of _members, and the fields below; leaf.
        self._lock = threading.Lock()
        self._growing: threading.Thread | None = None
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

    @property
    def staged_status(self) -> AutoStatus | None:
        """What joining between stages was worth; None if it is computed whole."""
        model = self._members[0][1]
        return model.staged_status if isinstance(model, StageableModel) else None

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
            if fewest and self._growth is not None:
                self._grow(self._growth)
        model.submit(task)

    def unload(self) -> None:
        with self._lock:
            self._unloaded = True
        if self._growing is not None:
            self._growing.join()
        if self._growth is not None:
            self._growth.close()
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

    def _grow(self, growth: Growth[M, V]) -> None:
        """Begins to load on more interpreters, unless that has begun. Never blocks."""
        if self._growing is not None or not growth.may_begin():
            return
        with self._lock:
            if self._growing is not None or self._unloaded:
                return
            thread = threading.Thread(
                target=self._load_on_more, args=(growth,), name=growth.name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no thread could start; the next call tries again
                return
            self._growing = thread

    def _load_on_more(self, growth: Growth[M, V]) -> None:
        who = self.source.id.slashed
        try:
            for member, load in growth.loads:
                if self._unloaded or growth.is_over():
                    return
                model = load()
                with self._lock:
                    is_wanted = not self._unloaded
                    if is_wanted:
                        self._members = (*self._members, (member, model))
                if not is_wanted:
                    model.unload()
                    return
                log.info(
                    "event=interpreter_added servable=%s interpreter=%s",
                    who,
                    member.name,
                )
        except (ServingError, OSError) as error:
            if not (self._unloaded or growth.is_over()):
                log.warning(
                    "event=no_interpreter_added servable=%s error=%s", who, error
                )
        finally:
            growth.close()
            self._growth = None
