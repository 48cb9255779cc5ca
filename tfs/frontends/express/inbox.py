"""The messages of a call that wait until an earlier one has been decompressed."""

from __future__ import annotations

from collections import deque
from functools import partial

from tfs.core.errors import ServingError
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.shared_state import SharedState
from tfs.frontends.http2.connection import Connection
from tfs.frontends.inflation import measure, run_apart, unpack

Item = tuple[memoryview, bool] | None
"""A message and whether it is compressed; None once the client sends no more."""


class Inbox:
    """Decompresses the messages of a call and hands them to it in order.

    Implements ``WaitingMessages`` of :mod:`~tfs.frontends.express.call`.
    Messages are decompressed on the executor, one at a time; later ones wait.
    Loop-confined.

    Args:
        call: Takes the messages and the client's end. It fails if an error occurs.
        shared: Provides the executor, the loop and the budget.
        connection: The call's.

    """

    __slots__ = ("_call", "_connection", "_items", "_shared")

    def __init__(
        self, call: ExpressCall, shared: SharedState, connection: Connection
    ) -> None:
        self._call = call
        self._shared = shared
        self._connection = connection
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
            if item is not None and item[1]:
                work = partial(self._measure, item[0])
                run_apart(
                    self._shared.executor, self._shared.loop, work, self._on_measured
                )
                return
            items.popleft()
            if item is None:
                call.take_end()
            else:
                call.take_message(item[0])
        self._let_go()

    def _let_go(self) -> None:
        # The call and this object refer to each other. Without this, the decompressed
        # message would stay in memory until the garbage collector runs.
        self._items.clear()
        self._call.inbox = None

    def _measure(self, body: memoryview) -> bytes | int:
        call = self._call
        if call.is_finished:  # while it waited for the executor
            return b""
        encoding = call.stream.head.encoding
        return measure(body, encoding, self._connection.max_request_bytes)

    def _on_measured(self, outcome: bytes | int | ServingError) -> None:
        call, shared = self._call, self._shared
        if call.is_finished or not self._items or not isinstance(outcome, int):
            self._on_unpacked(b"" if isinstance(outcome, int) else outcome)
            return
        item = self._items[0]
        assert item is not None  # it is the message that was measured
        work = partial(unpack, item[0], call.stream.head.encoding, outcome)
        go_on = partial(
            run_apart, shared.executor, shared.loop, work, self._on_unpacked
        )
        state = self._connection.state
        ticket = shared.budget.admit(
            state.account, outcome, shared.loop.clock.now(), go_on
        )
        call.stream.ticket = ticket
        if ticket.is_admitted:
            go_on()

    def _on_unpacked(self, outcome: bytes | ServingError) -> None:
        self._shared.on_large_message()
        call = self._call
        if call.is_finished or not self._items:
            self._let_go()
            return
        self._items.popleft()
        if isinstance(outcome, ServingError):
            call.abort(outcome)
            self._let_go()
            return
        state = self._connection.state
        state.settle(call.stream)
        call.take_message(outcome)
        self._go_on()
