"""Which version a label means, and which answers requests that name none: primary or canary.

A label may be set before its version is loaded, and a move takes effect only when the new
version can answer. (TensorFlow Serving refuses such labels; docs/divergences.md.)

A split is sticky: the share of a caller is a hash of model and key, and the canary
answers those below the split's fraction. Widening the split adds callers to the
canary's side and never takes one away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.core.call import Call
from tfs.core.servable import InferenceTask, OneByOne, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.server.canary.trial import Trial

ROUTING_KEY: Final = "tfs-routing-key"
"""The metadata key that identifies the caller."""

_SPAN: Final = 1 << 64


def share_of(model: str, key: bytes) -> float:
    """Returns the caller's place in [0, 1), the same in every process."""
    digest = hashlib.blake2b(key, digest_size=8, key=_salt(model)).digest()
    return int.from_bytes(digest, "big") / _SPAN


def _salt(model: str) -> bytes:
    # blake2b keys are at most 64 bytes; longer names are hashed first.
    name = model.encode()
    return name if len(name) <= 64 else hashlib.blake2b(name).digest()


def routing_key(
    metadata: Sequence[tuple[str, str | bytes]], client_id: bytes | None
) -> bytes | None:
    """Returns the caller's key: from the metadata, else from the request, else None."""
    for key, value in metadata:
        if key == ROUTING_KEY and value:
            return value if isinstance(value, bytes) else value.encode()
    return client_id or None


def effective_primary(
    wanted: int | None,
    before: int | None,
    available: Collection[int],
    canary: int | None,
    rejected: Collection[int] = (),
    faulty: Collection[int] = (),
) -> int | None:
    """Returns the version that answers requests that name none.

    Args:
        wanted: The configured version; None for the latest that is not the canary.
        before: The version that answered last.
        available: Versions that can be requested.
        canary: The version on trial.
        rejected: Versions that a guard rejected, and that nobody named since.
        faulty: Versions that are available and were seen to fail.

    If a version is configured and available, it answers. Until it is available, the
    version that answered before goes on, while that is available, so that a change
    takes effect after the load. No other version answers then: an operator who named a
    version, or went back to one, does not want another in its place. If none is
    configured, the latest one that is not the canary answers. The canary never takes
    over by itself; but if it answered before its trial, it goes on until another
    version can. A rejected version answers only if it is the configured one. In the
    place of a faulty one, the newest that is older and well answers, if there is one.

    """
    if wanted is not None and wanted in available:
        if wanted not in faulty:
            return wanted
        return _well(wanted, available, {canary, *rejected, *faulty})
    usable = [version for version in available if version not in rejected]
    goes_on = before if before is not None and before in usable else None
    if wanted is not None:
        return goes_on
    others = [version for version in usable if version != canary]
    if not others:
        return goes_on
    return _well(max(others), others, faulty)


def _well(version: int, available: Collection[int], barred: Collection[object]) -> int:
    """Returns ``version``, or the newest older one that is not barred in its place."""
    if version not in barred:
        return version
    older = [each for each in available if each < version and each not in barred]
    return max(older, default=version)


def effective_labels(
    wanted: Mapping[str, int],
    before: Mapping[str, int],
    available: Collection[int],
) -> dict[str, int]:
    """Returns the version each wanted label means.

    Args:
        wanted: Version by label, as configured.
        before: What the labels meant last that could answer.
        available: Versions that can be requested.

    A wanted version that is available is meant; else what the label meant before,
    while that is available; else the wanted one, which callers then find missing.
    Labels that are not wanted any more are gone at once.

    """
    meant = {}
    for label, version in wanted.items():
        old = before.get(label)
        if version not in available and old is not None and old in available:
            meant[label] = old
        else:
            meant[label] = version
    return meant


@dataclass(frozen=True, slots=True)
class TrialRoute:
    """How a model's requests are divided right now. Immutable.

    Attributes:
        trial: Records how requests end.
        canary: The version on trial; None while it is not available, or if it was
            rejected.
        tee_fraction: Share of the primary's requests that are copied.
        split_fraction: Share of the callers that the canary answers.
        random: Returns a number in [0, 1).

    """

    trial: Trial
    canary: int | None
    tee_fraction: float
    split_fraction: float
    random: Callable[[], float]

    def sends_to_canary(self, call: Call, client_id: bytes | None) -> bool:
        """Whether the canary answers this call."""
        if self.canary is None or not self.split_fraction:
            return False
        key = routing_key(call.metadata, client_id)
        share = self.random() if key is None else share_of(self.trial.name, key)
        return share < self.split_fraction

    def observe(
        self, handle: ServableHandle[Servable], is_canary: bool
    ) -> ServableHandle[Servable]:
        """Returns a handle on the same pin whose requests the trial sees.

        Returns the same handle if there is nothing to observe.
        """
        is_split = self.canary is not None and self.split_fraction > 0
        is_teed = (
            not is_canary
            and self.canary is not None
            and handle.id.version != self.canary
            and self.random() < self.tee_fraction
        )
        if not is_split and not is_teed:
            return handle
        servable = _Observed(handle.servable, self.trial, is_canary, is_teed, is_split)
        # The wrapper has everything that users of a handle need. The manager's own
        # handle still counts as the pin.
        return _ObservedHandle(handle, servable)  # type: ignore[return-value]


@dataclass(slots=True)
class _Observed(OneByOne):
    """A servable whose tasks a trial observes. For one request; thread-safe."""

    _servable: Servable
    _trial: Trial
    _is_canary: bool
    _is_teed: bool
    _is_split: bool
    _is_submitted: bool = False

    @property
    def id(self) -> ServableId:
        """The version that answers."""
        return self._servable.id

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures of the version that answers."""
        return self._servable.signatures

    def submit(self, task: InferenceTask) -> None:
        """Submits the task, and lets the trial observe how it ends."""
        self._is_submitted = True
        self._trial.submit(
            self._servable,
            task,
            is_canary=self._is_canary,
            is_teed=self._is_teed,
            is_split=self._is_split,
        )

    def note_released(self) -> None:
        """Tells the trial of a request that was never submitted."""
        if self._is_split and not self._is_submitted:
            self._trial.note_refused(is_canary=self._is_canary)


@dataclass(frozen=True, slots=True)
class _ObservedHandle:
    """A handle whose servable is replaced by an observed one. For one request."""

    _handle: ServableHandle[Servable]
    servable: _Observed

    @property
    def id(self) -> ServableId:
        """The version that answers."""
        return self._handle.id

    def release(self) -> None:
        """Releases the pin."""
        self._handle.release()
        self.servable.note_released()

    def __enter__(self) -> Servable:
        return self.servable

    def __exit__(self, *_: object) -> None:
        self.release()
