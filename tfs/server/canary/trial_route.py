"""Divides the requests of one model between primary and canary. On the serving loop.

Only models with a canary use this; requests for other models cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs.core.call import Call
from tfs.core.servable import InferenceTask, OneByOne, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.server.canary.trial import Trial
from tfs.server.traffic import routing_key, share_of


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
