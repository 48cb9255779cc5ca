"""A model in a worker, with what answering a call needs of it."""

from __future__ import annotations

import os

from tfs.runtime.guest.device_weights import DeviceWeights
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.model_source import ModelSource


class LoadedModel:
    """Immutable, but for the counter of calls."""

    __slots__ = (
        "__weakref__",
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
    ) -> None:
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

        Looks after the 1st, 10th, 100th and then every 1,000th call: a model that
        does it at all does it early, and a look costs 8 bytes per page.
        """
        self.num_calls += 1
        num = self.num_calls
        if num not in (1, 10, 100) and num % 1000:
            return 0, 0
        return self.guest.num_written_pages(), self.weights.num_written()


class ForkWatch:
    """Knows whether this process is a copy that a model forked off its worker."""

    def __init__(self) -> None:
        self.is_copy = False

    def leave_if_copy(self) -> None:
        """Ends a copy: calls and shared memory are the worker's."""
        if self.is_copy:
            os._exit(0)
