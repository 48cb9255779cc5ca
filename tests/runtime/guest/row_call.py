"""A call that is computed in stages, and keeps what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tfs.core.servable import CancelToken
from tfs.runtime.guest.layered.stages import StagedCall, shared_out


class RowCall(StagedCall):
    """Rows of an input ``x``, and their outcomes."""

    cancel: CancelToken

    def __init__(self, rows: Tensor) -> None:
        super().__init__((), {"x": rows}, len(rows), 0.0, None, CancelToken())
        self.outcomes: list[Any] = []

    def fail(self, error: BaseException) -> None:
        self.outcomes.append(error)


def share(value: Any, batch: Sequence[RowCall]) -> None:
    """Gives each call its rows."""
    for call, rows in zip(batch, shared_out(value, batch), strict=True):
        call.outcomes.append(rows)
