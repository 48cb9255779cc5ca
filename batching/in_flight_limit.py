"""How many batches to give a device at once, if no fixed number is known to be right.

These are policies of the shared scheduler, which behave as TensorFlow's
AdaptiveSharedBatchScheduler and SerialDeviceBatchScheduler.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tfs.core.errors import InvalidArgument

_LARGEST_STEP = 1 / 8
_SMALLEST_STEP = 1 / 128
# If latency changes by this factor, the load is another one and the search begins anew.
_DRIFT = 1.5


class InFlightLimit(Protocol):
    """Decides how many batches may be in flight. Confined to the scheduler's thread."""

    def current(self) -> int:
        """Returns the limit for the next batch, at least 1."""
        ...

    def note_done(self, latency_s: float) -> None:
        """Notes a finished batch: the time from its oldest task's arrival to its end."""
        ...

    def note_idle(self) -> None:
        """Notes that the device could have run a batch, but there was none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveOptions:
    """Bounds of the search for the best limit. Immutable.

    Attributes:
        initial: Limit at the start, between ``min`` and ``max``.
        min: Smallest limit.
        max: Largest limit.
        num_batches: Batches averaged over before each change.

    """

    initial: float = 3.0
    min: float = 1.0
    max: float = 64.0
    num_batches: int = 1000

    def __post_init__(self) -> None:
        for what in ("initial", "min", "max", "num_batches"):
            value = getattr(self, what)
            if not value > 0:
                raise InvalidArgument(f"{what} must be positive; was {value}")
        if self.min < 1:
            raise InvalidArgument(f"min must be at least 1; was {self.min}")
        if not self.min <= self.initial <= self.max:
            raise InvalidArgument(
                f"initial in-flight limit {self.initial} must lie between "
                f"{self.min} and {self.max}"
            )


class AdaptiveLimit:
    """Searches for the limit at which batches finish soonest.

    A limit of 2.25 means 3 for a quarter of the batches and 2 for the rest.
    """

    def __init__(
        self,
        options: AdaptiveOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._options = options or AdaptiveOptions()
        self._rng = rng or random.Random()
        self.limit = self._options.initial
        self._step = _LARGEST_STEP
        self._direction = 1
        self._num = 0
        self._total_s = 0.0
        self._last_s: float | None = None

    def current(self) -> int:
        whole = int(self.limit)
        fraction = self.limit - whole
        return whole + 1 if fraction and self._rng.random() < fraction else whole

    def note_done(self, latency_s: float) -> None:
        self._num += 1
        self._total_s += latency_s
        if self._num < self._options.num_batches:
            return
        mean_s = self._total_s / self._num
        self._num, self._total_s = 0, 0.0
        last_s, self._last_s = self._last_s, mean_s
        if last_s is not None:
            if mean_s > last_s * _DRIFT or mean_s * _DRIFT < last_s:
                self._step = _LARGEST_STEP
            if mean_s > last_s:
                self._direction = -self._direction
                self._step = max(self._step / 2, _SMALLEST_STEP)
        limit = self.limit * (1 + self._direction * self._step)
        self.limit = min(max(limit, self._options.min), self._options.max)

    def note_idle(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialDeviceOptions:
    """How a device that runs one thing at a time is kept busy. Immutable.

    Attributes:
        pending: Returns how many batches wait on the device itself.
        target_pending: How many batches should wait there.
        initial: Limit at the start.
        max: Largest limit.
        num_batches: Batches averaged over before each change.

    """

    pending: Callable[[], int]
    target_pending: float = 2.0
    initial: int = 3
    max: int = 64
    num_batches: int = 1000

    def __post_init__(self) -> None:
        for what in ("initial", "max", "num_batches"):
            value = getattr(self, what)
            if not value > 0:
                raise InvalidArgument(f"{what} must be positive; was {value}")
        if self.target_pending < 0:
            raise InvalidArgument(
                f"target_pending must be non-negative; was {self.target_pending}"
            )
        if self.initial > self.max:
            raise InvalidArgument(
                f"initial in-flight limit {self.initial} exceeds {self.max}"
            )


class SerialDeviceLimit:
    """Moves the limit so that a few batches always wait on the device, and no more."""

    def __init__(self, options: SerialDeviceOptions) -> None:
        self._options = options
        self.limit = options.initial
        self._num = 0
        self._num_idle = 0
        self._total_pending = 0

    def current(self) -> int:
        return self.limit

    def note_done(self, latency_s: float) -> None:
        options = self._options
        self._num += 1
        self._total_pending += options.pending()
        if self._num < options.num_batches:
            return
        mean_pending = self._total_pending / self._num
        # If there is too little work, more slots only make batches smaller.
        busy = self._num_idle < 0.1 * self._num
        change = round(options.target_pending - mean_pending)
        if change < 0 or busy:
            self.limit = min(max(self.limit + change, 1), options.max)
        self._num = self._num_idle = self._total_pending = 0

    def note_idle(self) -> None:
        self._num_idle += 1
