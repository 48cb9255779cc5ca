"""A model in a worker, with everything that answering a call needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from tfs.core.errors import ServingError, Unavailable
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.model_source import ModelSource

LOOK_S: Final = 1.0
"""Least seconds between two checks of what calls changed in the process."""

_LOOKS_SHARE: Final = 1e-3
"""Share of the time that these checks may take; for 400 MB one takes 40 to 80 ms."""


class LoadedModel:
    """Immutable, except for the counts of calls.

    Args:
        source: The version.
        guest: The model, which answers calls.
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
    )

    def __init__(
        self,
        source: ModelSource,
        guest: GuestModel,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._due_s = now() + LOOK_S
        self.source = source
        self.guest = guest
        self.num_calls = 0
        # Both sides use the order of the source's mappings.
        self.signature_names = tuple(source.signatures)
        self.input_names = tuple(tuple(s.inputs) for s in source.signatures.values())

    def written_pages_if_due(self) -> int:
        """Counts a call; checks at times whether the weights were written to.

        Returns the number of pages of the version's files that became the process's
        own; 0 if it did not check.

        It checks after the 1st, 10th and 100th call, because most models that write do
        so early. After that, it checks at the end of any call that ends a second or
        more after the last check. So if an unusual input makes a model write, that is
        found at once or by the next check. A check reads 8 bytes per page; if that
        takes long, checks are rarer.
        """
        self.num_calls += 1
        begun_s = self._now()
        if begun_s < self._due_s and self.num_calls not in (1, 10, 100):
            return 0
        found = self.guest.num_written_pages()
        ended_s = self._now()
        self._due_s = ended_s + max(LOOK_S, (ended_s - begun_s) / _LOOKS_SHARE)
        return found


def not_loaded() -> ServingError:
    """Returns the answer to a request for a model that is not loaded here."""
    return Unavailable("the model is not loaded on this interpreter; retry")


class ForkWatch:
    """Knows whether this process is a copy that a model forked from its worker."""

    def __init__(self) -> None:
        self.is_copy = False

    def leave_if_copy(self) -> None:
        """Ends this process if it is a copy: calls and shared memory belong to the worker."""
        if self.is_copy:
            os._exit(0)
