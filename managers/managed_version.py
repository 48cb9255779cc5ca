"""One version of a manager: its harness, its handle, and what each phase keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import END_STATES, HarnessState
from managers.load_status import LoadStatus
from managers.loader_harness import LoaderHarness
from managers.published_version import PublishedVersion
from managers.serving_map import Handle
from tfs.core.errors import ServingError
from tfs.core.resources import ResourceAllocation

Done: TypeAlias = Callable[[ServingError | None], None]
"""Takes how a load or unload ended; called once, on any thread, under no lock."""


class ManagedVersion:
    """A harness and what is kept beside it. Each attribute has one writer, named here.

    Attributes:
        harness: The life of its loader.
        reason: Why it was taken in, for people. Never changes.
        published: What is known of it outside. VersionEvents.
        handle: What requests pin; None until it was loaded. VersionEvents.
        done: Told how its load or unload ends; set by whoever begins that.
        reserved: Its memory; None where there is no limit. LoadAdmission, and who moves
            the version on.
        is_executing: Whether it is counted among what executes. LoadAdmission.
        is_refused: Whether it ended only because others held the memory. LoadAdmission.
        is_ended: Whether its load failed and that was published. LoadExecution.
        is_asking: Whether it is being asked what it takes, ahead of its load. Preflight.
        was_asked: Whether it was asked; what it said may be nothing. Preflight.
        again_at_s: When it is tried again though it has ended, by the clock; None for
            not at all. Whoever has it tried again.

    """

    __slots__ = (
        "again_at_s",
        "done",
        "handle",
        "harness",
        "is_asking",
        "is_ended",
        "is_executing",
        "is_refused",
        "published",
        "reason",
        "reserved",
        "was_asked",
    )

    def __init__(self, harness: LoaderHarness, reason: str = "") -> None:
        self.harness = harness
        self.reason = reason
        self.published = PublishedVersion(harness)
        self.handle: Handle | None = None
        self.done: Done | None = None
        self.reserved: ResourceAllocation | None = None
        self.is_executing = False
        self.is_refused = False
        self.is_ended = False
        self.is_asking = False
        self.was_asked = False
        self.again_at_s: float | None = None

    @property
    def is_serving(self) -> bool:
        """Whether requests can reach it."""
        return self.handle is not None and self.handle.live

    def as_decided_on(self) -> HarnessSnapshot:
        """Returns where it stands, for whoever decides what comes next.

        It is on its way out until its end is known outside: what comes after it would
        be told of before.
        """
        snapshot = self.harness.snapshot()
        if snapshot.state in END_STATES and not self.published.is_over:
            return replace(snapshot, state=HarnessState.UNLOADING)
        return snapshot

    @property
    def can_be_forgotten(self) -> bool:
        """Whether nothing is loaded or asked to, and its end is known outside.

        A load that failed is over before that is published, on another thread: what
        took its place in between would be told to have ended.
        """
        harness = self.harness
        return harness.is_dormant and (self.published.is_over or not harness.is_over)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody wants it, and what it does takes too long to wait for.

        One that serves is not waited for: it came at last.
        """
        harness = self.harness
        return harness.is_late and not harness.is_aspired and not self.is_serving

    def tell(self, error: ServingError | None) -> None:
        """Tells whoever wanted to know how its load or unload ended; once."""
        done, self.done = self.done, None
        if done is not None:
            done(error)

    def load_status(self, *, is_deferred: bool) -> LoadStatus:
        """Returns how its load goes or went."""
        harness = self.harness
        retry_at_s = harness.retry_at_s
        return LoadStatus(
            num_failures=harness.num_failures,
            next_attempt_s=self.again_at_s if retry_at_s is None else retry_at_s,
            error=harness.error,
            duration_s=harness.load_s,
            reserved=self.reserved,
            is_deferred=is_deferred,
        )
