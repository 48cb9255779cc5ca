"""The messages of a call that wait until an earlier one has been decompressed."""

from __future__ import annotations

from collections import deque
from functools import partial

from tfs.core.errors import ServingError, Unavailable, forget_frames
from tfs.frontends.budget import used_up
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.shared_state import SharedState
from tfs.frontends.inflation import decompress

Item = tuple[memoryview, bool] | None
"""A message and whether it is compressed; None once the client sends no more."""


class Inbox:
    """Decompresses the messages of a call and hands them to it in order.

    Implements ``WaitingMessages`` of :mod:`~tfs.frontends.express.call`.
    Messages are decompressed on the executor, one at a time; later ones wait.
    Loop-confined.

    Args:
        call: Takes the messages and the client's end. It fails if an error occurs.
        shared: Provides the executor, the loop and the receive budget.
        max_message_bytes: Largest message, decompressed.

    """

    __slots__ = ("_call", "_items", "_max_message_bytes", "_shared")

    def __init__(
        self, call: ExpressCall, shared: SharedState, max_message_bytes: int
    ) -> None:
        self._call = call
        self._shared = shared
        self._max_message_bytes = max_message_bytes
        self._items: deque[Item] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, message: memoryview, is_compressed: bool) -> None:
        """Takes the next message."""
        self._items.append((message, is_compressed))
        if len(self._items) == 1:
            self._go_on()

    def add_end(self) -> None:
        """Notes that the client sends no more. Earlier messages still wait."""
        self._items.append(None)

    def _go_on(self) -> None:
        """Hands over all messages before the next compressed one."""
        items, call = self._items, self._call
        while items and not call.is_finished:
            item = items[0]
            if item is None:
                items.popleft()
                call.take_end()
            elif not item[1]:
                items.popleft()
                call.take_message(item[0])
            else:
                try:
                    self._shared.executor.submit(partial(self._inflate, item[0]))
                except RuntimeError:
                    call.abort(Unavailable("the server is shutting down"))
                else:
                    return
        self._let_go()

    def _let_go(self) -> None:
        # The call and this object refer to each other. Without this, the decompressed
        # message would stay in memory until the garbage collector runs.
        self._items.clear()
        self._call.inbox = None

    def _inflate(self, body: memoryview) -> None:
        # Runs on the executor's thread.
        outcome: bytes | memoryview | ServingError = b""
        call = self._call
        try:
            # It may have ended while it waited for the executor.
            if not call.is_finished:
                outcome = decompress(
                    body,
                    call.stream.head.encoding,
                    self._max_message_bytes,
                    self._shared.budget.limit_bytes // 16,
                )
        except ServingError as error:
            forget_frames(error)  # its traceback would keep the message in memory
            outcome = error
        self._shared.loop.post(partial(self._on_inflated, outcome))

    def _on_inflated(self, outcome: bytes | memoryview | ServingError) -> None:
        self._shared.on_large_message()
        call = self._call
        if call.is_finished or not self._items:
            self._let_go()
            return
        item = self._items.popleft()
        if isinstance(outcome, ServingError):
            call.abort(outcome)
            self._let_go()
            return
        assert item is not None  # it is the message that was decompressed
        budget = self._shared.budget
        grown_bytes = len(outcome) - len(item[0])
        if grown_bytes > 0 and not budget.has_room(grown_bytes):
            call.abort(used_up())
            self._let_go()
            return
        budget.used_bytes += grown_bytes
        call.stream.held_bytes += grown_bytes
        call.take_message(outcome)
        self._go_on()
