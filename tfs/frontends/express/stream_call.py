"""Calls with streams of messages, as handlers see them: :class:`tfs.core.call.StreamCall`.

A message beyond the first is released, so that its client may send more, only when the
handler has taken it; and no handler is asked on while its client leaves much unread.
Answers wait on the stream, and a handler that sends more than may wait there is told so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Final

from tfs.core.call import MethodKind, RpcMethod
from tfs.core.errors import ResourceExhausted
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.client_state import ClientState
from tfs.frontends.http2 import response
from tfs.frontends.http2.stream import Stream
from tfs.frontends.http2.upload import PREFIX_SIZE

# While more bytes than this wait for a client, handlers get no further messages of its
# streams, because answers may be a thousand times as long as requests.
_PAUSING_BYTES: Final = 65_536
_MAX_WAITING: Final = 64  # messages of a stream that may wait for its client to read
_MESSAGE_BYTES: Final = 256  # memory of a message's objects, besides its bytes


class ExpressStreamCall(ExpressCall):
    """A call with any number of messages in either direction. Confined to the loop.

    A bidirectional call is dispatched with its first message. If its client sends none,
    it ends with OK, and its handler is never called.
    """

    __slots__ = (
        "_has_ended",
        "_is_paused",
        "_on_half_close",
        "_on_message",
        "_waiting",
    )

    def __init__(self, client: ClientState, stream: Stream, route: RpcMethod) -> None:
        super().__init__(client, stream, route)
        self._on_message: Callable[[bytes | memoryview], None] | None = None
        self._on_half_close: Callable[[], None] | None = None
        self._waiting: deque[bytes | memoryview] = deque()
        self._has_ended = False
        self._is_paused = False

    # -- for handlers --------------------------------------------------------------

    def send(self, message: bytes) -> bool:
        """Queues one message; False, and nothing sent, if too much is queued."""
        client, stream, num_bytes = self._client, self.stream, len(message)
        if not self.is_finished and client.sender.is_too_large(num_bytes):
            self.abort(client.sender.too_large(num_bytes))
            return False
        most_bytes = client.shared.options.max_stream_queued_bytes
        outbox = stream.outbox
        if self.is_finished or (
            outbox
            and (
                outbox.size_bytes > most_bytes
                or not client.may_answer(stream, self.message, num_bytes)
            )
        ):
            return False
        client.sender.send_message(stream, message)
        client.mark_dirty()
        return True

    def on_message(self, fn: Callable[[bytes | memoryview], None]) -> None:
        """Calls ``fn`` on the loop for each later request message."""
        if not self.is_finished:
            self._on_message = fn
            self._deliver()

    def on_half_close(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` once when the client will send no more; at once if so."""
        if not self.is_finished:
            self._on_half_close = fn
            self._half_close()

    def finish(self) -> None:
        """Ends the stream with OK."""
        client = self._client
        if get_ident() == client.loop_ident:
            self._end()
        else:
            client.post(self._end)

    # -- for the session -----------------------------------------------------------

    def go_on(self) -> None:
        """Hands over the messages that waited for the client, as far as it has read."""
        self._is_paused = False
        self._deliver()

    def take_request(self, message: bytes) -> None:
        """Takes the first message and the client's end at once."""
        self.take_message(message)
        if not self.is_finished:
            self.take_end()

    def take_message(self, message: bytes | memoryview) -> None:
        """Takes the next request message, uncompressed."""
        if self.route.kind is not MethodKind.BIDIRECTIONAL:
            super().take_message(message)
        elif not self.has_message:
            self.has_message = True
            self.message = message
            self.dispatch()
        else:
            self._waiting.append(message)
            self._client.connection.state.hold(self.stream, _MESSAGE_BYTES)
            self._deliver()
            if self._is_paused and len(self._waiting) > _MAX_WAITING:
                self.abort(ResourceExhausted("the client reads too slowly"))

    def take_end(self) -> None:
        """Takes note that the client sends no more."""
        self._has_ended = True
        if self.route.kind is not MethodKind.BIDIRECTIONAL:
            super().take_end()
        elif self.has_message:
            self._half_close()
        else:
            self.finish()

    def _reply(self, message: bytes) -> None:
        sender = self._client.sender
        if not self.is_finished:
            if sender.is_too_large(len(message)):
                self._fail(sender.too_large(len(message)))
                return
            sender.send_message(self.stream, message)
        self._end()

    def _reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self._reply(b"".join(parts))

    def _end(self) -> None:
        client = self._client
        if self.is_finished:
            client.on_late_finish(self)
            return
        self._finish()
        client.sender.send_end(self.stream, response.OK_TRAILERS_BLOCK)
        client.on_answered(self.stream)

    def _finish(self) -> None:
        super()._finish()
        self._on_message = None  # it may refer to this call, as _on_cancel may
        self._on_half_close = None

    def _deliver(self) -> None:
        fn = self._on_message
        connection = self._client.connection
        while fn is not None and self._waiting and not self.is_finished:
            if connection.sender.queued_bytes > _PAUSING_BYTES:
                if not self._is_paused:
                    self._is_paused = True
                    self._client.paused.append(self.go_on)
                    self._client.note_unread()
                return
            message = self._waiting.popleft()
            try:
                fn(message)
            except Exception as error:
                self.on_handler_failure(error)
            # Its bytes are released only now, so that the client cannot send more than
            # the handler takes.
            num_bytes = len(message) + PREFIX_SIZE + _MESSAGE_BYTES
            connection.state.release(self.stream, num_bytes)
            connection.data.let_send(self.stream)
        self._half_close()

    def _half_close(self) -> None:
        fn = self._on_half_close
        if fn is None or not self._has_ended or self._waiting or self.is_finished:
            return
        self._on_half_close = None
        try:
            fn()
        except Exception as error:
            self.on_handler_failure(error)
