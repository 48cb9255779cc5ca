"""Which request the current thread works for, for parts of a model that ask."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tfs.core.batch.batch_task import Cancellation


class RequestScope(threading.local):
    """Each thread's own.

    Attributes:
        deadline_s: When the request's answer is of no use any more, monotonic.
        cancel: Tells whether somebody still waits; None if that is not known.

    """

    deadline_s: float | None = None
    cancel: Cancellation | None = None


CURRENT = RequestScope()


@contextlib.contextmanager
def request_scope(
    deadline_s: float | None = None, cancel: Cancellation | None = None
) -> Iterator[None]:
    """Lets batched parts know whose request this thread runs.

    This is for callers of models. A call of a batched part leaves its queue when
    ``deadline_s`` (monotonic) passes or ``cancel`` is marked.
    """
    before = CURRENT.deadline_s, CURRENT.cancel
    CURRENT.deadline_s, CURRENT.cancel = deadline_s, cancel
    try:
        yield
    finally:
        CURRENT.deadline_s, CURRENT.cancel = before
