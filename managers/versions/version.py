"""One version under management: its loader, where it stands, and what is known of it.

The states and the moves between them are ``managers.versions.harness_state``. What calls
the loader is ``managers.versions.load_attempts``; memory, pools, the serving map and
events are others'.

(TensorFlow Serving: core/loader_harness.h.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Final, TypeAlias

from managers.serving_map import Handle
from managers.versions.harness_state import (
    COMING_STATES,
    END_STATES,
    TRANSITIONS,
    HarnessSnapshot,
    HarnessState,
)
from tfs.core.clock import Clock
from tfs.core.errors import Cancelled, Code, FailedPrecondition, Internal, ServingError
from tfs.core.loader import Loader, Renewable
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.source import ServableData

PERMANENT_CODES: Final = frozenset(
    (
        Code.INVALID_ARGUMENT,
        Code.UNIMPLEMENTED,
        Code.FAILED_PRECONDITION,
        Code.DATA_LOSS,
    )
)
"""Codes of errors that another attempt cannot mend (see ``tfs.core.loader``)."""


def is_transient(error: ServingError) -> bool:
    """Whether trying again may help."""
    return error.code not in PERMANENT_CODES


_LONGEST_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """The retries of one load. Immutable.

    TensorFlow Serving pauses for the same 60 s each time. Here pauses double, so that a
    hiccup costs seconds, and a broken model costs little work.

    Attributes:
        max_num_retries: Attempts after the first; 0 for none
            (``--max_num_load_retries``).
        interval_s: The first pause; 0 retries at once
            (``--load_retry_interval_micros``).
        max_interval_s: Where the doubling stops; less than ``interval_s`` makes all
            pauses the same.

    """

    max_num_retries: int = 5
    interval_s: float = 1.0
    max_interval_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_num_retries < 0:
            raise ValueError(f"max_num_retries is negative: {self.max_num_retries}")
        if not (self.interval_s >= 0 and self.max_interval_s >= 0):  # also refuses NaN
            raise ValueError(f"retry pauses are negative or no numbers: {self}")

    def long_pause_s(self, num_failures: int, error: ServingError) -> float | None:
        """Returns the pause if each attempt takes away what serves; None to give up.

        It is a minute for each second of :meth:`pause_s`, up to a quarter of an hour,
        because the version that serves meanwhile is worth more than the one that has
        failed.
        """
        pause_s = self.pause_s(num_failures, error)
        if pause_s is None:
            return None
        return max(pause_s, min(60.0 * max(1.0, pause_s), _LONGEST_S))

    def pause_s(self, num_failures: int, error: ServingError) -> float | None:
        """Returns the pause after the ``num_failures``-th failure, None to give up."""
        if num_failures > self.max_num_retries or not is_transient(error):
            return None
        # At 2^30 the longest pause has long been reached. The bound keeps floats
        # finite.
        doubled_s = self.interval_s * 2.0 ** min(num_failures - 1, 30)
        return min(doubled_s, max(self.interval_s, self.max_interval_s))


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """A load at one moment. Immutable.

    Attributes:
        num_failures: Failed attempts since the version's memory was last estimated.
        next_attempt_s: When it is tried again, by the manager's clock; None if that is
            not planned. A load may have ended and still have a next attempt, if an old
            version stands in for it meanwhile.
        error: Why the last attempt failed, while another one is planned; or why the
            load ended.
        duration_s: How long the successful attempt took; None before it.
        reserved: What is reserved for the version; None if there is no limit, and once
            it is unloaded.
        is_deferred: Whether it waits for memory.
        refused: What it takes, if it was refused because others have that memory now, so
            that it is tried again when there is room.

    """

    num_failures: int = 0
    next_attempt_s: float | None = None
    error: ServingError | None = None
    duration_s: float | None = None
    reserved: ResourceAllocation | None = None
    is_deferred: bool = False
    refused: ResourceAllocation | None = None


log = logging.getLogger(__name__)

LoaderData: TypeAlias = ServableData[Loader[object]]

_S = HarnessState


@dataclass(slots=True, eq=False, repr=False)
class Version:
    """A loader, its state, and what each part keeps about it.

    ``cancel``, ``snapshot`` and reading ``state`` are thread-safe. The other methods
    are called by whoever owns the next step, one at a time: a manager's deciding
    thread, then a pool thread. Each attribute names its writer.

    Attributes:
        id: The version.
        generation: Its number among all that the manager ever had. A version whose
            payload changes gets another one, of a higher generation, beside this one.
        why_managed: Why it is managed, for people. Never changes.
        is_aspired: Whether a source wants it. Writer of this and of the next: the table.
        reason: Why it is loaded or unloaded, for people.
        error: Why it is in ERROR; None otherwise.
        retry_at_s: When the next attempt is due, by the clock; None if none is planned.
        loader: Does the work; None if there never was one, and once it is unloaded.
            Writer of this and of what follows: load_attempts.
        estimate: The resources that it takes, once they were estimated.
        flaw: A permanent fault that was found before the load; None if none was.
        load_s: How long the successful attempt to load took; None before it.
        num_failures: Failed attempts since its memory was last estimated.
        is_loaded: Whether the loader holds the servable.
        is_late: Whether its load or unload takes so long that others have stopped
            waiting for it. Writer: the table.
        handle: What requests pin; None until it is loaded. Writer: the table.
        reserved: The memory reserved for it; None if there is no limit. Writers:
            LoadAdmission, and the part that moves the version on.
        is_executing: Whether its load or unload counts as in progress. Writer:
            LoadAdmission.
        is_refused: Whether it ended only because others had the memory. Writer:
            LoadAdmission.
        is_ended: Whether its load failed and that was published. Writer of this and of
            the next two: VersionExecutor.
        is_asking: Whether its loader is being asked for an estimate.
        was_asked: Whether its loader was asked, even if it gave no answer.
        again_at_s: When a version that has ended, or serves with a fault, is tried again,
            by the clock; None if it is not. Writer of this and of the next: Retrier.
        again_pause_s: How long that would wait if there were no old version to bring
            back.
        fault: What is wrong with it although it serves; None while it is well. Writer of
            this and of what follows: the table.
        heir_error: If it was unloaded for new contents of the same version and came
            back because these failed: why they failed. Otherwise None.
        note: What was found out about it, for people.
        resident_bytes: Memory measured for it; None before.
        is_started: Whether its published life has begun, usually with START.
        is_end_told: Whether its END was published, or would have been if there were no
            other generation.
        is_replaced: Whether a newer generation was published in its place; what becomes
            of this one is not published any more.

    """

    data: InitVar[LoaderData]
    _: KW_ONLY
    retry: RetryOptions
    clock: Clock
    generation: int = 0
    is_aspired: bool = True
    reason: str = ""
    num_failures: int = 0
    id: ServableId = field(init=False)
    why_managed: str = field(init=False)
    error: ServingError | None = field(init=False)
    loader: Loader[object] | None = field(init=False)
    # Guards the state, error, is_loaded, retry_at_s and whether it was cancelled.
    # Leaf: nothing is called under it.
    lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _state: HarnessState = field(init=False)
    _cancelled: bool = field(init=False, default=False)
    estimate: ResourceAllocation | None = None
    flaw: ServingError | None = None
    load_s: float | None = None
    is_loaded: bool = False
    is_late: bool = False
    retry_at_s: float | None = None
    handle: Handle | None = None
    reserved: ResourceAllocation | None = None
    is_executing: bool = False
    is_refused: bool = False
    is_ended: bool = False
    is_asking: bool = False
    was_asked: bool = False
    again_at_s: float | None = None
    again_pause_s: float = 0.0
    fault: ServingError | None = None
    heir_error: ServingError | None = None
    note: str = ""
    resident_bytes: int | None = None
    is_started: bool = False
    is_end_told: bool = False
    is_replaced: bool = False
    # What was published last, and since when it serves; see published_state.
    published: tuple[object, float, float | None] = (None, 0.0, None)

    def __post_init__(self, data: LoaderData) -> None:
        self.id, self.error, self.loader = data.id, data.error, data.payload
        self.why_managed = self.reason
        self._state = _S.NEW if data.error is None else _S.ERROR

    # -- where it stands ---------------------------------------------------------------

    @property
    def state(self) -> HarnessState:
        """Where the loader stands now."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether it is in a final state."""
        return self._state in END_STATES

    @property
    def is_coming(self) -> bool:
        """Whether its load is in progress and was not given up."""
        return self._state in COMING_STATES and not self._cancelled

    @property
    def is_cancelled(self) -> bool:
        """Whether a load in progress was given up."""
        return self._cancelled

    @property
    def is_serving(self) -> bool:
        """Whether requests can reach it."""
        return self.handle is not None and self.handle.live

    @property
    def is_settled(self) -> bool:
        """Whether it can be requested, or its end has been published.

        False again while it is unloaded.
        """
        return self._state is _S.READY or (self.is_over and self.is_end_told)

    @property
    def is_dormant(self) -> bool:
        """Whether nothing is loaded or requested."""
        return self._state is _S.NEW or self._state in END_STATES

    @property
    def can_be_forgotten(self) -> bool:
        """Whether nothing is loaded or requested, and its end has been published.

        A load is over a moment before its failure is published, on another thread. If
        the version were replaced in between, its successor would be reported to have
        ended.
        """
        return self.is_dormant and (self.is_end_told or not self.is_over)

    @property
    def is_abandoned(self) -> bool:
        """Whether no source wants it and its load or unload takes too long to wait for.

        A version that serves is never abandoned, however long its load took.
        """
        return self.is_late and not self.is_aspired and not self.is_serving

    @property
    def make_another(self) -> Callable[[], Loader[object]] | None:
        """Makes another loader of the version; None if its loader cannot be renewed."""
        loader = self.loader
        return loader.make_another if isinstance(loader, Renewable) else None

    @property
    def can_be_renewed(self) -> bool:
        """Whether the version can be tried once more, which takes another loader.

        If there is no loader because the source reported an error, only the source can
        help.
        """
        has_loader = self.loader is not None
        return has_loader and (not self.is_loaded or self.make_another is not None)

    @property
    def servable(self) -> object:
        """The loaded servable; may be asked for only while it is loaded."""
        if self.loader is None:
            raise Internal(f"{self.id.slashed} is not loaded")
        return self.loader.servable

    def holds(self, data: LoaderData) -> bool:
        """Whether it was made from ``data``: with the same loader, or an equal error.

        A source may repeat itself. A loader that does not compare equal means that the
        files of the version have changed.
        """
        if data.error is None:
            return self.loader is not None and self.loader == data.payload
        return (
            self.loader is None
            and self.error is not None
            and (self.error.code, self.error.message)
            == (data.error.code, data.error.message)
        )

    def snapshot(self) -> HarnessSnapshot:
        """Returns state, error and the rest, consistent with each other."""
        with self.lock:
            return HarnessSnapshot(
                self.id,
                self._state,
                self.error,
                self.is_aspired,
                self.generation,
                is_late=self.is_late,
                is_pausing=self.retry_at_s is not None,
            )

    def as_decided_on(self) -> HarnessSnapshot:
        """Returns where it stands, for deciding what to do next.

        Until its end has been published it counts as unloading, so that nothing that
        follows from its end is published before it.
        """
        snapshot = self.snapshot()
        if snapshot.state in END_STATES and not self.is_end_told:
            return replace(snapshot, state=_S.UNLOADING)
        return snapshot

    def load_status(self, *, is_deferred: bool) -> LoadStatus:
        """Returns how its load is going, or how it went."""
        retry_at_s = self.retry_at_s
        return LoadStatus(
            num_failures=self.num_failures,
            next_attempt_s=self.again_at_s if retry_at_s is None else retry_at_s,
            error=self.error,
            duration_s=self.load_s,
            reserved=self.reserved,
            is_deferred=is_deferred,
            refused=self.estimate if self.is_refused else None,
        )

    # -- moves -------------------------------------------------------------------------

    def transition(self, to: HarnessState) -> None:
        """Moves on as the table allows.

        Raises:
            Internal: ``Illegal request to transition from state X to Y``; nothing
                changed.

        """
        with self.lock:
            self._transition_locked(to)

    def fail(self, error: ServingError) -> None:
        """Moves to ERROR because of ``error``.

        Raises:
            Internal: It is over already; nothing changed.

        """
        with self.lock:
            self.fail_locked(error)

    def request_load(self) -> None:
        """NEW to LOAD_REQUESTED.

        Raises:
            FailedPrecondition: ``Duplicate load request``; nothing changed.

        """
        with self.lock:
            if self._state is not _S.NEW:
                raise FailedPrecondition(f"Duplicate load request: {self.id}")
            self._transition_locked(_S.LOAD_REQUESTED)

    def approve_load(self) -> bool:
        """LOAD_REQUESTED to LOAD_APPROVED; returns False if it was cancelled first."""
        with self.lock:
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
        with self.lock:
            if self._state is not _S.READY:
                raise FailedPrecondition(
                    "Servable not loaded, or unload already requested/ongoing: "
                    f"{self.id}"
                )
            self._transition_locked(_S.UNLOAD_REQUESTED)

    def cancel(self) -> bool:
        """Gives up the load; returns whether that ended it at once.

        It is ended at once in LOAD_REQUESTED and between two attempts, and the version
        is then in ERROR. A running attempt goes on to its end, and what it loaded is
        unloaded. In any other state nothing happens.
        """
        with self.lock:
            if self.is_loaded:
                return False
            if self._state is _S.LOAD_REQUESTED:
                self.fail_locked(self.cancelled_error())
                return True
            if self._state not in (_S.LOAD_APPROVED, _S.LOADING):
                return False
            self._cancelled = True
            if self.retry_at_s is None:
                return False
            log.info("event=load_retries_cancelled servable=%s", self.id.slashed)
            self.fail_locked(self.error or self.cancelled_error())
            return True

    def end_pause(self) -> None:
        """Makes the next attempt due now, if one is planned."""
        with self.lock:
            if self.retry_at_s is not None:
                self.retry_at_s = self.clock.now()

    def cancelled_error(self) -> ServingError:
        """Returns the error of a load that was given up."""
        return Cancelled(f"Loading of servable cancelled: {self.id}")

    def fail_locked(self, error: ServingError) -> None:
        """Does :meth:`fail`, with the lock."""
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
            f"<Version {self.id.slashed} generation={self.generation} "
            f"{self._state.value}{'' if self.is_aspired else ' unaspired'}>"
        )
