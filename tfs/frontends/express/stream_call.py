"""Calls with streams of messages, as handlers see them: :class:`tfs.core.call.StreamCall`.

A handler says before it returns what is to hear of later messages and of their end. A
message is released, so that its client may send more, when that has taken it. Answers wait
on the stream, and a handler that sends more than may wait there is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident

from tfs.core.call import MethodKind, RpcMethod
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.client_state import ClientState
from tfs.frontends.http2 import response
from tfs.frontends.http2.stream import PREFIX_SIZE, Stream


class ExpressStreamCall(ExpressCall):
    """A call with any number of messages in either direction. Confined to the loop.

    A bidirectional call is dispatched with its first message. If its client sends none,
    it ends with OK, and its handler is never called.
    """

    __slots__ = (
        "_on_half_close",
        "_on_message",
    )

    def __init__(self, client: ClientState, stream: Stream, route: RpcMethod) -> None:
        super().__init__(client, stream, route)
        self._on_message: Callable[[bytes | memoryview], None] | None = None
        self._on_half_close: Callable[[], None] | None = None

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
                or not client.may_answer(stream, num_bytes)
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

    def on_half_close(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` once when the client will send no more."""
        if not self.is_finished:
            self._on_half_close = fn

    def finish(self) -> None:
        """Ends the stream with OK."""
        client = self._client
        if get_ident() == client.loop_ident:
            self._end()
        else:
            client.post(self._end)

    # -- for the session -----------------------------------------------------------

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
            if self._on_message is not None:
                self._tell(partial(self._on_message, message))
            connection = self._client.connection
            connection.state.release(self.stream, len(message) + PREFIX_SIZE)
            connection.data.let_send(self.stream)

    def take_end(self) -> None:
        """Takes note that the client sends no more."""
        if self.route.kind is not MethodKind.BIDIRECTIONAL:
            super().take_end()
        elif not self.has_message:
            self.finish()
        elif self._on_half_close is not None:
            self._tell(self._on_half_close)

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

    def _tell(self, fn: Callable[[], None]) -> None:
        try:
            fn()
        except Exception as error:
            self.on_handler_failure(error)
