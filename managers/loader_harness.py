"""The life of one loader: where it stands, and the attempts to load it.

The states and the moves between them are ``managers.harness_state``. A harness only
knows its loader: memory, pools, the serving map and events are the manager's.

A failed attempt does not keep its thread until the next one. The harness says *when* to
try again, and the manager comes back then. So a broken model occupies no load thread,
and giving it up takes effect at once. (TensorFlow Serving's harness sleeps on the load
thread, up to a minute at a time.)

(TensorFlow Serving: core/loader_harness.h.)
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import (
    COMING_STATES,
    END_STATES,
    TRANSITIONS,
    HarnessState,
)
from managers.retry import RetryOptions
from tfs.core.clock import Clock
from tfs.core.errors import (
    BY_CODE,
    Cancelled,
    FailedPrecondition,
    Internal,
    ServingError,
    forget_frames,
    serving_error,
)
from tfs.core.loader import Loader, Renewable
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_data import ServableData

log = logging.getLogger(__name__)

_S = HarnessState


class Progress(enum.Enum):
    """How an attempt ended."""

    DONE = "done"
    AGAIN = "again"
    FAILED = "failed"


class LoaderHarness:
    """One loader, its state and its retries.

    ``cancel``, ``snapshot`` and reading ``state`` are thread-safe. The other methods
    are called by whoever owns the next step, one at a time: a manager's deciding
    thread, then a pool thread.

    Attributes:
        id: The version.
        generation: Number of the harness among all that its manager ever had. A version
            whose payload changes gets a harness of a higher generation.
        is_aspired: Whether the source still wants it. Written by the manager.
        reason: Why it is loaded or unloaded, for people. Written by the manager.
        error: Why it is in ERROR; None otherwise.
        estimate: The resources that the version takes, once they were estimated.
        flaw: A permanent fault that was found before the load; None if none was.
        load_s: How long the successful attempt to load took; None before it.
        is_late: Whether its load or unload takes so long that others have stopped
            waiting for it. Written by the manager.

    """

    __slots__ = (
        "_cancelled",
        "_clock",
        "_loaded",
        "_loader",
        "_lock",
        "_num_failures",
        "_retry",
        "_state",
        "error",
        "estimate",
        "flaw",
        "generation",
        "id",
        "is_aspired",
        "is_late",
        "load_s",
        "reason",
        "retry_at_s",
    )

    def __init__(
        self,
        data: ServableData[Loader[object]],
        *,
        retry: RetryOptions,
        clock: Clock,
        generation: int = 0,
        is_aspired: bool = True,
        reason: str = "",
        num_failures: int = 0,
    ) -> None:
        self.id = data.id
        self.generation = generation
        self.is_aspired = is_aspired
        self.reason = reason
        self.error = data.error
        self.estimate: ResourceAllocation | None = None
        self.flaw: ServingError | None = None
        self.retry_at_s: float | None = None
        self.load_s: float | None = None
        self.is_late = False
        self._retry = retry
        self._clock = clock
        self._loader = data.payload
        # Guards _state, error, _cancelled, _loaded, retry_at_s. Leaf: nothing is
        # called under it.
        self._lock = threading.Lock()
        self._state = _S.NEW if data.error is None else _S.ERROR
        self._cancelled = False
        self._loaded = False
        self._num_failures = num_failures

    @property
    def state(self) -> HarnessState:
        """Where the loader stands now."""
        return self._state

    @property
    def num_failures(self) -> int:
        """Failed attempts since the version's memory was last estimated."""
        return self._num_failures

    @property
    def is_over(self) -> bool:
        """Whether it is in a final state."""
        return self._state in END_STATES

    @property
    def is_dormant(self) -> bool:
        """Whether nothing is loaded or requested, so that it may be forgotten."""
        return self._state is _S.NEW or self._state in END_STATES

    @property
    def is_coming(self) -> bool:
        """Whether its load is in progress and was not given up."""
        return self._state in COMING_STATES and not self._cancelled

    @property
    def make_another(self) -> Callable[[], Loader[object]] | None:
        """Makes another loader of the version; None if its loader cannot be renewed."""
        loader = self._loader
        return loader.make_another if isinstance(loader, Renewable) else None

    def holds(self, data: ServableData[Loader[object]]) -> bool:
        """Whether it was made from ``data``: with the same loader, or an equal error.

        A source may repeat itself. A loader that does not compare equal means that the
        files of the version have changed.
        """
        if data.error is None:
            return self._loader is not None and self._loader == data.payload
        return (
            self._loader is None
            and self.error is not None
            and (self.error.code, self.error.message)
            == (data.error.code, data.error.message)
        )

    def snapshot(self) -> HarnessSnapshot:
        """Returns state, error and the rest, consistent with each other."""
        with self._lock:
            return HarnessSnapshot(
                self.id,
                self._state,
                self.error,
                self.is_aspired,
                self.generation,
                is_late=self.is_late,
                is_pausing=self.retry_at_s is not None,
            )

    def transition(self, to: HarnessState) -> None:
        """Moves on as the table allows.

        Raises:
            Internal: ``Illegal request to transition from state X to Y``; nothing
                changed.

        """
        with self._lock:
            self._transition_locked(to)

    def fail(self, error: ServingError) -> None:
        """Moves to ERROR because of ``error``.

        Raises:
            Internal: It is over already; nothing changed.

        """
        with self._lock:
            self._fail_locked(error)

    def request_load(self) -> None:
        """NEW to LOAD_REQUESTED.

        Raises:
            FailedPrecondition: ``Duplicate load request``; nothing changed.

        """
        with self._lock:
            if self._state is not _S.NEW:
                raise FailedPrecondition(f"Duplicate load request: {self.id}")
            self._transition_locked(_S.LOAD_REQUESTED)

    def approve_load(self) -> bool:
        """LOAD_REQUESTED to LOAD_APPROVED; returns False if it was cancelled first."""
        with self._lock:
            if self._state is not _S.LOAD_REQUESTED:
                return False
            self._transition_locked(_S.LOAD_APPROVED)
            return True

    def request_unload(self) -> None:
        """READY to UNLOAD_REQUESTED.

        Raises:
            FailedPrecondition: It is not READY, or unloading was asked for already;
                nothing changed.

        """
        with self._lock:
            if self._state is not _S.READY:
                raise FailedPrecondition(
                    "Servable not loaded, or unload already requested/ongoing: "
                    f"{self.id}"
                )
            self._transition_locked(_S.UNLOAD_REQUESTED)

    def cancel(self) -> bool:
        """Gives up the load; returns whether that ended it at once.

        It is ended at once in LOAD_REQUESTED and between two attempts, and the harness
        is then in ERROR. A running attempt goes on to its end, and what it loaded is
        unloaded. In any other state nothing happens.
        """
        with self._lock:
            if self._loaded:
                return False
            if self._state is _S.LOAD_REQUESTED:
                self._fail_locked(self._cancelled_error())
                return True
            if self._state not in (_S.LOAD_APPROVED, _S.LOADING):
                return False
            self._cancelled = True
            if self.retry_at_s is None:
                return False
            log.info("event=load_retries_cancelled servable=%s", self.id.slashed)
            self._fail_locked(self.error or self._cancelled_error())
            return True

    def end_pause(self) -> None:
        """Makes the next attempt due now, if one is planned."""
        with self._lock:
            if self.retry_at_s is not None:
                self.retry_at_s = self._clock.now()

    def estimate_once(self) -> Progress:
        """Asks the loader what the version takes; after DONE, ``estimate`` is set.

        Blocks as the loader does. FAILED leaves the harness in ERROR.
        """

        def ask(loader: Loader[object]) -> None:
            self.estimate = _estimate(loader)

        progress = self._attempt(
            ask,
            f"Error while attempting to reserve resources to load servable {self.id}: ",
        )
        if progress is Progress.DONE:
            self._num_failures = 0
        return progress

    def estimate_ahead(self) -> None:
        """Asks the loader what the version takes before a load is requested, in NEW.

        Blocks as the loader does. A permanent fault is kept in ``flaw``. Any other
        failure is ignored, because the load will ask again.
        """
        loader = self._loader
        if loader is None or self._state is not _S.NEW:
            return
        try:
            self.estimate = _estimate(loader)
        except (Exception, SystemExit) as error:
            log.info(
                "event=estimate_failed servable=%s error=%s", self.id.slashed, error
            )
            found = serving_error(error, f"cannot load {self.id.slashed}")
            if not self._retry.should_retry(found):
                forget_frames(found)
                self.flaw = found

    @property
    def can_be_renewed(self) -> bool:
        """Whether the version can be tried once more, which takes another loader.

        If there is no loader because the source reported an error, only the source can
        help.
        """
        has_loader = self._loader is not None
        return has_loader and (not self._loaded or self.make_another is not None)

    def renewed(
        self, generation: int, reason: str, *, counts_on: bool = False
    ) -> LoaderHarness:
        """Returns a harness of the same version, in NEW and with a fresh loader.

        Args:
            generation: Number of the new harness among those of the version.
            reason: Why it is tried again.
            counts_on: Whether earlier failed attempts still count.

        Raises:
            Exception: Whatever making another loader raises.

        """
        make_another = self.make_another if self._loaded else None
        loader = self._loader if make_another is None else make_another()
        return LoaderHarness(
            ServableData(self.id, loader),
            retry=self._retry,
            clock=self._clock,
            generation=generation,
            is_aspired=self.is_aspired,
            reason=reason,
            num_failures=self._num_failures if counts_on else 0,
        )

    def load_once(self) -> Progress:
        """Runs one attempt to load, from LOADING; blocks as the loader does.

        DONE leaves the harness in LOADING with the servable loaded; the manager
        publishes it and then moves to READY. AGAIN sets ``retry_at_s``. FAILED leaves
        the harness in ERROR with nothing loaded. A load that succeeded although it was
        cancelled has been unloaded again, and ends in ERROR with CANCELLED.
        """
        with self._lock:
            if self._cancelled:
                self._fail_locked(self._cancelled_error())
                return Progress.FAILED
        begun_s = self._clock.now()
        progress = self._attempt(lambda loader: loader.load(self.id), "")
        if progress is not Progress.DONE:
            return progress
        self.load_s = self._clock.now() - begun_s
        with self._lock:
            if not self._cancelled:
                self._loaded = True
                return Progress.DONE
        self._unload_quietly()
        self.fail(self._cancelled_error())
        return Progress.FAILED

    def estimate_again(self) -> ResourceAllocation:
        """Returns what the loaded version takes; the first estimate if that is unknown.

        Once loaded, a version may take less than was estimated (its transient peak is
        over), or more (as measured).
        """
        before = self.estimate or ResourceAllocation()
        if self._loader is None:
            return before
        try:
            self.estimate = _estimate(self._loader)
        except Exception:
            log.exception("event=estimate_failed servable=%s", self.id.slashed)
            return before
        return self.estimate

    @property
    def servable(self) -> object:
        """The loaded servable; may be asked for only while it is loaded."""
        if self._loader is None:
            raise Internal(f"{self.id.slashed} is not loaded")
        return self._loader.servable

    def abandon_load(self, error: ServingError) -> None:
        """Undoes a load that was DONE but cannot be used; ends in ERROR. Blocks."""
        self._unload_quietly()
        self.fail(error)

    def unload(self) -> None:
        """QUIESCED to UNLOADING to DISABLED, or ERROR if the loader raises. Blocks.

        The loader is dropped here, on the unloading thread.
        """
        self.transition(_S.UNLOADING)
        loader, self._loader = self._loader, None
        try:
            if loader is not None:
                loader.unload()
        except (Exception, SystemExit) as error:
            log.exception("event=unload_failed servable=%s", self.id.slashed)
            self.fail(serving_error(error, f"unloading {self.id.slashed} failed"))
            return
        self.transition(_S.DISABLED)

    def _attempt(
        self, attempt: Callable[[Loader[object]], None], prefix: str
    ) -> Progress:
        with self._lock:
            self.retry_at_s = None
            loader = self._loader
        assert loader is not None
        try:
            attempt(loader)
        except (Exception, SystemExit) as error:
            # A model that calls sys.exit() while it is imported is a broken model.
            return self._note_failure(
                serving_error(error, f"cannot load {self.id.slashed}"), prefix
            )
        return Progress.DONE

    def _note_failure(self, error: ServingError, prefix: str) -> Progress:
        is_retry, is_unexpected = self._num_failures > 0, isinstance(error, Internal)
        self._num_failures += 1
        pause_s = self._retry.pause_s(self._num_failures, error)
        log.warning(
            "event=load_attempt_failed servable=%s attempt=%d retry_in_s=%s error=%s",
            self.id.slashed,
            self._num_failures,
            pause_s,
            error,
            # The message of any other error says enough. A retry usually fails in the
            # same way, so one traceback is enough.
            exc_info=error.__cause__ if is_unexpected and not is_retry else None,
        )
        # The error is kept with the state, but what the attempt had loaded must not be.
        forget_frames(error)
        if prefix:
            error = BY_CODE[error.code](prefix + error.message)
        with self._lock:
            if self._state not in (_S.LOAD_REQUESTED, _S.LOADING):
                return Progress.FAILED  # it was cancelled during the estimate
            if pause_s is None or self._cancelled:
                self._fail_locked(error)
                return Progress.FAILED
            self.error = error  # a cancellation during the pause reports it
            self.retry_at_s = self._clock.now() + pause_s
            return Progress.AGAIN

    def _unload_quietly(self) -> None:
        assert self._loader is not None
        try:
            self._loader.unload()
        except (Exception, SystemExit):
            log.exception("event=unload_failed servable=%s", self.id.slashed)

    def _cancelled_error(self) -> ServingError:
        return Cancelled(f"Loading of servable cancelled: {self.id}")

    def _fail_locked(self, error: ServingError) -> None:
        self._transition_locked(_S.ERROR)
        self.error = error
        self.retry_at_s = None

    def _transition_locked(self, to: HarnessState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise Internal(
                f"Illegal request to transition from state {self._state.value} to "
                f"{to.value}: {self.id}"
            )
        self._state = to
        if to is not _S.ERROR:
            self.error = None

    def __repr__(self) -> str:
        return (
            f"<LoaderHarness {self.id.slashed} generation={self.generation} "
            f"{self._state.value}{'' if self.is_aspired else ' unaspired'}>"
        )


def _estimate(loader: Loader[object]) -> ResourceAllocation:
    """Asks a loader what its version takes; None counts as nothing.

    Raises:
        TypeError: The answer is no allocation. Adding it up would make other loads fail
            too.
        Exception: What the loader raises.

    """
    estimate: object = loader.estimate_resources() or ResourceAllocation()
    if not isinstance(estimate, ResourceAllocation):
        raise TypeError(
            f"{type(loader).__name__}.estimate_resources returned "
            f"{type(estimate).__name__}, not a ResourceAllocation"
        )
    return estimate
