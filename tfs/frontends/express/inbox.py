"""The messages of a call that wait until an earlier one has been decompressed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tfs.core.errors import ServingError
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.client_state import ClientState
from tfs.frontends.inflation import measure, run_apart, unpack

T = TypeVar("T")
Item = tuple[memoryview, bool] | None
"""A message and whether it is compressed; None once the client sends no more."""


class Inbox:
    """Decompresses the messages of a call and hands them to it in order.

    Messages are decompressed on the executor, one at a time; later ones wait.
    Loop-confined.

    Args:
        call: Takes the messages and the client's end. It fails if an error occurs.
        client: The call's.
        on_empty: Called when nothing waits any more, or nobody waits for it.

    """

    __slots__ = ("_call", "_client", "_items", "_on_empty")

    def __init__(
        self, call: ExpressCall, client: ClientState, on_empty: Callable[[], object]
    ) -> None:
        self._call = call
        self._client = client
        self._on_empty = on_empty
        self._items: deque[Item] = deque()

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
                self._run(partial(self._measure, item[0]), self._on_measured)
                return
            items.popleft()
            if item is None:
                call.take_end()
            else:
                call.take_message(item[0])
        self._on_empty()

    def _run(
        self, work: Callable[[], T], done: Callable[[T | ServingError], None]
    ) -> None:
        shared = self._client.shared
        run_apart(shared.executor, shared.loop, work, done)

    def _measure(self, body: memoryview) -> bytes | int:
        call = self._call
        if call.is_finished:  # while it waited for the executor
            return b""
        most = self._client.connection.data.max_request_bytes
        return measure(body, call.stream.head.encoding, most)

    def _on_measured(self, outcome: bytes | int | ServingError) -> None:
        call, item = self._call, self._items[0]
        if call.is_finished or item is None or not isinstance(outcome, int):
            self._on_unpacked(b"" if isinstance(outcome, int) else outcome)
            return
        work = partial(unpack, item[0], call.stream.head.encoding, outcome)
        go_on = partial(self._run, work, self._on_unpacked)
        if self._client.admit(call.stream, outcome, go_on):
            go_on()

    def _on_unpacked(self, outcome: bytes | ServingError) -> None:
        self._client.shared.on_large_message()
        call = self._call
        if isinstance(outcome, ServingError):
            call.abort(outcome)
        if call.is_finished:
            self._on_empty()
            return
        self._items.popleft()
        self._client.connection.state.settle(call.stream)
        assert not isinstance(outcome, ServingError)
        call.take_message(outcome)
        self._go_on()
