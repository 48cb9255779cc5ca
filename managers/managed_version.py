"""One managed version: its harness, its handle, and what each part keeps about it."""

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
    """A harness and what else is known of the version. Each attribute names its writer.

    Attributes:
        harness: The life of its loader.
        reason: Why it is managed, for people. Never changes.
        published: What observers know of it. Writer: VersionEvents.
        handle: What requests pin; None until it is loaded. Writer: VersionEvents.
        done: Called with how its load or unload ends. Writer: the part that begins it.
        reserved: The memory reserved for it; None if there is no limit. Writers:
            LoadAdmission, and the part that moves the version on.
        is_executing: Whether its load or unload counts as in progress. Writer:
            LoadAdmission.
        is_refused: Whether it ended only because others had the memory. Writer:
            LoadAdmission.
        is_ended: Whether its load failed and that was published. Writer: LoadExecution.
        is_asking: Whether its loader is being asked for an estimate. Writer: Preflight.
        was_asked: Whether its loader was asked, even if it gave no answer. Writer:
            Preflight.
        again_at_s: When a version that has ended, or serves with a fault, is tried again,
            by the clock; None if it is not. Writer: BasicManager.

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
        """Returns where it stands, for deciding what to do next.

        Until its end has been published it counts as unloading, so that nothing that
        follows from its end is published before it.
        """
        snapshot = self.harness.snapshot()
        if snapshot.state in END_STATES and not self.published.is_over:
            return replace(snapshot, state=HarnessState.UNLOADING)
        return snapshot

    @property
    def can_be_forgotten(self) -> bool:
        """Whether nothing is loaded or requested, and its end has been published.

        A load is over a moment before its failure is published, on another thread. If
        the version were replaced in between, its successor would be reported to have
        ended.
        """
        harness = self.harness
        return harness.is_dormant and (self.published.is_over or not harness.is_over)

    @property
    def is_abandoned(self) -> bool:
        """Whether no source wants it and its load or unload takes too long to wait for.

        A version that serves is never abandoned, however long its load took.
        """
        harness = self.harness
        return harness.is_late and not harness.is_aspired and not self.is_serving

    def tell(self, error: ServingError | None) -> None:
        """Calls ``done``, once, with how the load or unload ended."""
        done, self.done = self.done, None
        if done is not None:
            done(error)

    def load_status(self, *, is_deferred: bool) -> LoadStatus:
        """Returns how its load is going, or how it went."""
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
