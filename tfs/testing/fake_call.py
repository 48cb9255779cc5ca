"""A call without a transport: tests read how a handler finished it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfs.core.call import Metadata, Peer
from tfs.core.errors import Cancelled, ServingError
from tfs.core.servable import CancelToken


class FakeCall:
    """Implements :class:`tfs.core.call.StreamCall`. Confined to one thread.

    Attributes:
        outcome: How the call was first finished: the reply, the error, or None for an
            end without either.
        sent: Messages sent on a stream.
        num_finishes: How often the handler finished the call; should be 1.
        room_bytes: How much room there is for it; set by the test.
        asked_room_bytes: How much room the handler asked for, each time.
        asked_answer_bytes: The same for the answer alone.

    """

    def __init__(
        self,
        message: bytes | memoryview = b"",
        *,
        method: str = "/test.Service/Method",
        deadline_s: float | None = None,
        metadata: Metadata = (),
        peer: Peer | None = None,
    ) -> None:
        self.method = method
        self.message: bytes | memoryview = message
        self.deadline_s = deadline_s
        self.opened_s = 0.0
        self.metadata = metadata
        self.peer = peer or Peer("127.0.0.1:1", "test", is_loopback=True)
        self.cancel = CancelToken()
        self.outcome: bytes | ServingError | None = None
        self.sent: list[bytes] = []
        self.num_finishes = 0
        self.room_bytes = 1 << 40
        self.asked_room_bytes: list[int] = []
        self.asked_answer_bytes: list[int] = []
        self._cancel_fns: list[Callable[[], None]] = []
        self._message_fn: Callable[[bytes | memoryview], None] | None = None
        self._half_close_fn: Callable[[], None] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the handler has finished the call."""
        return self.num_finishes > 0

    def reply(self, message: bytes) -> None:
        self._finish(message)

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self._finish(b"".join(parts))

    @staticmethod
    def reply_all(calls: Sequence[FakeCall], messages: Sequence[bytes]) -> None:
        for call, message in zip(calls, messages, strict=True):
            call.reply(message)

    def fail(self, error: ServingError) -> None:
        self._finish(error)

    def finish(self) -> None:
        self._finish(None)

    def send(self, message: bytes) -> bool:
        if self.is_finished:
            return False
        self.sent.append(message)
        return True

    def on_cancel(self, fn: Callable[[], None]) -> None:
        self._cancel_fns.append(fn)

    def take_room(self, num_bytes: int, *, is_all: bool = False) -> bool:
        asked = self.asked_answer_bytes if is_all else self.asked_room_bytes
        asked.append(num_bytes)
        return num_bytes <= self.room_bytes

    def on_message(self, fn: Callable[[bytes | memoryview], None]) -> None:
        self._message_fn = fn

    def on_half_close(self, fn: Callable[[], None]) -> None:
        self._half_close_fn = fn

    def client_cancels(self) -> None:
        """Acts as the transport does when the client goes away."""
        self.cancel.cancel(Cancelled("the client cancelled the call"))
        self._finish(self.cancel.error)
        for fn in self._cancel_fns:
            fn()

    def client_sends(self, message: bytes) -> None:
        """Hands a later message to the handler."""
        assert self._message_fn is not None
        self._message_fn(message)

    def client_half_closes(self) -> None:
        """Tells the handler that the client is done sending."""
        assert self._half_close_fn is not None
        self._half_close_fn()

    def reply_bytes(self) -> bytes:
        """Returns the reply; fails the test if there is none."""
        assert isinstance(self.outcome, bytes), self.outcome
        return self.outcome

    def error(self) -> ServingError:
        """Returns the error; fails the test if there is none."""
        assert isinstance(self.outcome, ServingError), self.outcome
        return self.outcome

    def _finish(self, outcome: bytes | ServingError | None) -> None:
        if self.num_finishes == 0:
            self.outcome = outcome
        self.num_finishes += 1
