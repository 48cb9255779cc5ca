"""One call of a batched part, and several as one.

Calls are joined along dimension 0 of their tensors, and results are taken apart along
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tfs.core.errors import DeadlineExceeded, ServingError
from tfs.core.request_scope import CURRENT
from tfs.core.servable import CancelToken
from tfs.runtime.guest.layered.batched_values import joined, rows_of

PENDING: Final = object()
"""The outcome of a call that is not computed yet."""


class Mark(Protocol):
    """Tells whether somebody waits for a call."""

    @property
    def error(self) -> ServingError | None:
        """Why nobody does any more; None while somebody does."""
        ...


@dataclass(eq=False, slots=True)
class StagedCall:
    """A call that is computed in stages. Confined to whoever computes.

    Attributes:
        args: Its positional arguments.
        kwargs: Its arguments by name.
        num_rows: Rows of its tensors.
        arrived_s: When it came.
        deadline_s: By when it has to be answered; None for never.
        cancel: Whether somebody waits for it.

    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    num_rows: int
    arrived_s: float
    deadline_s: float | None
    cancel: Mark

    def gone(self, now_s: float) -> ServingError | None:
        """Returns why nobody waits for it any more; None while somebody does."""
        error = self.cancel.error
        if error is None and self.deadline_s is not None and now_s >= self.deadline_s:
            error = DeadlineExceeded("the deadline passed while it was computed")
        return error


class PartCall(StagedCall):
    """One call that waits or is computed; a task of the queue."""

    cancel: CancelToken

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], num_rows: int
    ) -> None:
        cancel = CURRENT.cancel or CancelToken()
        # The queue writes when it came.
        super().__init__(args, kwargs, num_rows, 0.0, CURRENT.deadline_s, cancel)
        self.outcome: Any = PENDING

    def on_done(self, outcome: Any) -> None:
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Raised:
    """Wraps what the part raised, because an error may also be a result."""

    error: BaseException


def joined_arguments(
    batch: Sequence[StagedCall], num_missing: int = 0
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of several calls as those of one."""
    first = batch[0]
    if len(batch) == 1 and not num_missing:
        return list(first.args), dict(first.kwargs)
    args = [
        joined([call.args[index] for call in batch], num_missing)
        for index in range(len(first.args))
    ]
    kwargs = {
        name: joined([call.kwargs[name] for call in batch], num_missing)
        for name in first.kwargs
    }
    return args, kwargs


def shared_out(result: Any, batch: Sequence[StagedCall]) -> list[Any]:
    """Returns each call's rows of a result."""
    parts = []
    start = 0
    for call in batch:
        parts.append(rows_of(result, start, start + call.num_rows))
        start += call.num_rows
    return parts
