"""The life of one version, as one table; and its load, with retries.

Illegal moves raise and change nothing. The states here are the manager's own; what
readers see is :class:`tfs.core.servable_state.ManagerState` (docs/lifecycle.md prints
both). (TensorFlow Serving: core/loader_harness.h.)
"""

from __future__ import annotations

import enum
import logging
import threading
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tfs.core.clock import Clock
from tfs.core.errors import (
    Cancelled,
    Code,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ServingError,
    serving_error,
)
from tfs.core.loader import Loader
from tfs.core.servable_id import ServableId

log = logging.getLogger(__name__)

T = TypeVar("T")


class HarnessState(enum.Enum):
    """Where a managed version stands."""

    NEW = "new"
    LOAD_REQUESTED = "load-requested"
    LOAD_APPROVED = "load-approved"
    LOADING = "loading"
    READY = "ready"
    UNLOAD_REQUESTED = "unload-requested"
    QUIESCING = "quiescing"
    QUIESCED = "quiesced"
    UNLOADING = "unloading"
    DISABLED = "disabled"
    ERROR = "error"


S = HarnessState

TRANSITIONS: Final[dict[HarnessState, frozenset[HarnessState]]] = {
    S.NEW: frozenset({S.LOAD_REQUESTED, S.ERROR}),
    S.LOAD_REQUESTED: frozenset({S.LOAD_APPROVED, S.ERROR}),
    S.LOAD_APPROVED: frozenset({S.LOADING, S.ERROR}),
    S.LOADING: frozenset({S.READY, S.ERROR}),
    S.READY: frozenset({S.UNLOAD_REQUESTED, S.ERROR}),
    S.UNLOAD_REQUESTED: frozenset({S.QUIESCING, S.ERROR}),
    S.QUIESCING: frozenset({S.QUIESCED, S.ERROR}),
    S.QUIESCED: frozenset({S.UNLOADING, S.ERROR}),
    S.UNLOADING: frozenset({S.DISABLED, S.ERROR}),
    S.DISABLED: frozenset(),
    S.ERROR: frozenset(),
}

_PERMANENT: Final = frozenset(
    {
        Code.INVALID_ARGUMENT,
        Code.UNIMPLEMENTED,
        Code.FAILED_PRECONDITION,
        Code.DATA_LOSS,
    }
)


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """How a failed load is repeated. Immutable.

    Attributes:
        max_num_retries: Further tries after the first.
        interval_s: Pause before the first of them.
        factor: How the pause grows.
        longest_interval_s: What it grows to.

    """

    max_num_retries: int = 5
    interval_s: float = 60.0
    factor: float = 2.0
    longest_interval_s: float = 600.0

    def __post_init__(self) -> None:
        if self.max_num_retries < 0 or self.interval_s < 0 or self.factor < 1:
            raise InvalidArgument(f"retry options that make no sense: {self}")

    def pause_s(self, num_retries: int) -> float:
        """Returns the pause before the retry after ``num_retries`` earlier ones."""
        grown_s = self.interval_s * self.factor**num_retries
        return min(grown_s, max(self.longest_interval_s, self.interval_s))


def is_permanent(error: ServingError) -> bool:
    """Whether trying the same load again cannot help."""
    return error.code in _PERMANENT


class LoaderHarness(Generic[T]):
    """One version's loader and state. Thread-safe.

    ``load`` and ``unload`` run on one manager thread at a time, which the table
    enforces; ``cancel_load`` and the readers come from anywhere.
    """

    def __init__(
        self,
        servable_id: ServableId,
        loader: Loader[T] | None,
        clock: Clock,
        retry: RetryOptions,
    ) -> None:
        self.id = servable_id
        self.loader = loader
        self._clock = clock
        self._retry = retry
        # Guards the three fields below and wakes a pause between tries; leaf.
        self._changed = threading.Condition()
        self._state = HarnessState.NEW
        self._error: ServingError | None = None
        self._load_cancelled = False

    @property
    def state(self) -> HarnessState:
        """Where the version stands."""
        return self._state

    @property
    def error(self) -> ServingError | None:
        """Why it is in ERROR, None elsewhere."""
        return self._error

    def transition(self, to: HarnessState) -> None:
        """Moves to ``to``.

        Raises:
            FailedPrecondition: A second load or unload request; nothing changed.
            Internal: A move the table does not have; nothing changed.

        """
        with self._changed:
            if to not in TRANSITIONS[self._state]:
                raise self._illegal_locked(to)
            self._state = to

    def fail(self, error: ServingError) -> None:
        """Moves to ERROR, from anywhere but the ends.

        Raises:
            Internal: The version has ended already; nothing changed.

        """
        with self._changed:
            if HarnessState.ERROR not in TRANSITIONS[self._state]:
                raise self._illegal_locked(HarnessState.ERROR)
            self._state = HarnessState.ERROR
            self._error = error

    def cancel_load(self) -> None:
        """Gives up a load in progress: no further try, and a pause ends at once."""
        with self._changed:
            self._load_cancelled = True
            self._changed.notify_all()

    def load(self) -> bool:
        """Loads with retries; returns whether the version is READY, else ERROR.

        Blocks. A load that succeeds although it was cancelled is undone.
        """
        self.transition(HarnessState.LOADING)
        loader = self.loader
        assert loader is not None  # an erroneous version never gets here
        num_retries = 0
        while True:
            error = self._try_load(loader)
            if error is None:
                break
            log.warning(
                "event=load_failed servable=%s retry=%d error=%s",
                self.id.slashed,
                num_retries,
                error,
            )
            if num_retries >= self._retry.max_num_retries or is_permanent(error):
                self.fail(error)
                return False
            if not self._pause(self._retry.pause_s(num_retries)):
                self.fail(error)
                return False
            num_retries += 1
        if self._load_cancelled:
            self._try_unload(loader)
            self.fail(Cancelled(f"Loading of servable cancelled: {self.id}"))
            return False
        self.transition(HarnessState.READY)
        return True

    def unload(self) -> None:
        """Frees the version; DISABLED afterwards, whatever the loader says. Blocks."""
        self.transition(HarnessState.UNLOADING)
        loader, self.loader = self.loader, None
        if loader is not None:
            self._try_unload(loader)
        self.transition(HarnessState.DISABLED)

    def _try_load(self, loader: Loader[T]) -> ServingError | None:
        try:
            loader.load(self.id)
        except Exception as error:
            return serving_error(error, f"loading {self.id.slashed}")
        return None

    def _try_unload(self, loader: Loader[T]) -> None:
        try:
            loader.unload()
        except Exception:
            log.exception("event=unload_failed servable=%s", self.id.slashed)

    def _pause(self, pause_s: float) -> bool:
        """Waits; returns False as soon as the load is cancelled."""
        until_s = self._clock.now() + pause_s
        with self._changed:
            while not self._load_cancelled and self._clock.now() < until_s:
                self._clock.wait(self._changed, until_s)
            return not self._load_cancelled

    def _illegal_locked(self, to: HarnessState) -> ServingError:
        if to is HarnessState.LOAD_REQUESTED:
            return FailedPrecondition(f"Duplicate load request: {self.id}")
        if to is HarnessState.UNLOAD_REQUESTED:
            return FailedPrecondition(
                f"Servable not loaded, or unload already requested/ongoing: {self.id}"
            )
        return Internal(
            f"Illegal request to transition from state {self._state.value} to "
            f"{to.value}: {self.id}"
        )
