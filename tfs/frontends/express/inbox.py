"""The messages of a call that wait until an earlier one has been decompressed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from tfs.core.errors import ServingError
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.client_state import ClientState
from tfs.frontends.inflation import inflate

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
                client = self._client
                inflate(
                    client.shared.executor,
                    client.shared.loop,
                    item[0],
                    call.stream.head.encoding,
                    client.connection.data.max_request_bytes,
                    lambda: call.is_finished,
                    partial(client.admit, call.stream),
                    self._on_unpacked,
                )
                return
            items.popleft()
            if item is None:
                call.take_end()
            else:
                call.take_message(item[0])
        self._on_empty()

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
