"""A model in a worker, with what answering a call needs of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from tfs.core.errors import ServingError, Unavailable
from tfs.runtime.guest.devices.device_weights import DeviceWeights
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.model_source import ModelSource

LOOK_S: Final = 1.0
"""Least seconds between looks at what calls changed of the process."""

_LOOKS_SHARE: Final = 1e-3
"""Share of the time that looks may take: at 400 MB of weights one takes 40 to 80 ms."""


class LoadedModel:
    """Immutable, but for what it knows of calls.

    Args:
        source: The version.
        guest: What answers.
        weights: What it has on its device.
        now: Monotonic seconds.

    """

    __slots__ = (
        "__weakref__",
        "_due_s",
        "_now",
        "guest",
        "input_names",
        "num_calls",
        "signature_names",
        "source",
        "weights",
    )

    def __init__(
        self,
        source: ModelSource,
        guest: GuestModel,
        weights: DeviceWeights | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._due_s = now() + LOOK_S
        self.source = source
        self.guest = guest
        self.weights = weights or DeviceWeights(source.device)
        self.num_calls = 0
        # In the order both sides agree on: that of the source's mappings.
        self.signature_names = tuple(source.signatures)
        self.input_names = tuple(tuple(s.inputs) for s in source.signatures.values())

    def written_pages_if_due(self) -> int:
        """As ``written_if_due``; returns the pages."""
        return self.written_if_due()[0]

    def written_if_due(self) -> tuple[int, int]:
        """Counts a call; returns what of the weights was written to, if it looked.

        Pages of the version's files that became its own, and tensors on the device that
        it shares with others.

        Looks after the 1st, 10th and 100th call, because most that do it do it early, and
        after any that ends a second or more after the last look: what an unusual input
        makes a model write is seen when the next call comes, if not at once. A look
        costs 8 bytes per page; where that takes long, looks are rarer.
        """
        self.num_calls += 1
        begun_s = self._now()
        if begun_s < self._due_s and self.num_calls not in (1, 10, 100):
            return 0, 0
        found = self.guest.num_written_pages(), self.weights.num_written()
        ended_s = self._now()
        self._due_s = ended_s + max(LOOK_S, (ended_s - begun_s) / _LOOKS_SHARE)
        return found


def not_loaded() -> ServingError:
    """Returns the answer to a request for a model that is not here (any more)."""
    return Unavailable("the model is not loaded on this interpreter; retry")


class ForkWatch:
    """Knows whether this process is a copy that a model forked off its worker."""

    def __init__(self) -> None:
        self.is_copy = False

    def leave_if_copy(self) -> None:
        """Ends a copy: calls and shared memory are the worker's."""
        if self.is_copy:
            os._exit(0)
