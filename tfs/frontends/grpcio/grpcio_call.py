"""One RPC under grpcio."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tfs.core.call import (
    Metadata,
    Peer,
)
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ServingError,
    forget_frames,
)
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.core.servable import CancelToken
from tfs.frontends.status_details import handler_error

log = logging.getLogger(__name__)


class CallHost(Protocol):
    """What a call needs from its transport."""

    @property
    def loop(self) -> ServingLoop:
        """The loop on which calls are handled."""

    @property
    def max_queued_messages(self) -> int:
        """How many messages of one stream may wait for a slow reader."""

    def to_aio(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on grpcio's thread; a burst costs one wake-up. Thread-safe."""

    def count_late_finish(self) -> None:
        """Counts a finish that came after the call had ended."""


class GrpcioCall:
    """One RPC under grpcio; see :class:`tfs.core.call.StreamCall`.

    Finishing and sending are thread-safe; ``on_*`` belong to the serving loop.
    """

    def __init__(
        self,
        host: CallHost,
        method: str,
        message: bytes,
        deadline_s: float | None,
        metadata: Metadata,
        peer: Peer,
    ) -> None:
        self.method = method
        self.message = message
        self.deadline_s = deadline_s
        self.opened_s = host.loop.clock.now()
        self.metadata = metadata
        self.peer = peer
        self.cancel = CancelToken()
        self.outcome: bytes | ServingError | None = None
        self._host = host
        self._loop = host.loop
        self._open = deque((None,))  # whoever pops the item may finish the call
        self._timer: Timer | None = None
        self._cancel_fns: list[Callable[[], None]] = []
        self._message_fn: Callable[[bytes | memoryview], None] | None = None
        self._half_close_fn: Callable[[], None] | None = None
        self._early_messages: deque[bytes] = deque()
        self._half_closed = False
        self._max_queued_messages = host.max_queued_messages
        self.outbox: deque[bytes] = deque()
        self.progress = asyncio.Event()  # set only on grpcio's thread

    def reply(self, message: bytes) -> None:
        """Finishes with OK."""
        self._finish(message)

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Finishes with OK."""
        self._finish(b"".join(parts))

    def fail(self, error: ServingError) -> None:
        """Finishes with the error."""
        forget_frames(error)  # they refer to this call: a cycle that keeps the message
        self._finish(error)

    def finish(self) -> None:
        """Ends a stream with OK."""
        self._finish(None)

    def send(self, message: bytes) -> bool:
        """Queues a message, unless too many wait already."""
        if not self._open or len(self.outbox) >= self._max_queued_messages:
            return False
        self.outbox.append(message)
        self._host.to_aio(self.progress.set)
        return True

    def take_room(self, num_bytes: int) -> bool:
        """Tells that there is room: this transport bounds nothing."""
        return True

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` if the client goes away or the deadline passes."""
        if self.cancel.error is not None:
            fn()
        elif self._open:
            self._cancel_fns.append(fn)

    def on_message(self, fn: Callable[[bytes | memoryview], None]) -> None:
        """Calls ``fn`` for each later request message."""
        if self._open:
            self._message_fn = fn
        while self._early_messages and self._open:
            self._tell(fn, self._early_messages.popleft())

    def on_half_close(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` when the client will send no more."""
        if self._half_closed:
            self._tell(fn)
        elif self._open:
            self._half_close_fn = fn

    @property
    def is_open(self) -> bool:
        """Whether nothing has finished the call yet."""
        return bool(self._open)

    # -- for the transport ---------------------------------------------------------

    def arm_deadline(self) -> None:
        """Starts the deadline's timer. On the serving loop."""
        if self.deadline_s is not None and self._open:
            self._timer = self._loop.call_at(self.deadline_s, self._expire)

    def abandon(self) -> None:
        """Ends the call because grpcio says that the client is gone. On the loop."""
        now_s = self._loop.clock.now()
        if self.deadline_s is not None and now_s >= self.deadline_s:
            self._expire()
        else:
            self.cut_off(Cancelled("the client cancelled the call"))

    def take_message(self, message: bytes) -> None:
        """Hands on a later request message. On the serving loop."""
        fn = self._message_fn
        if fn is not None:
            self._tell(fn, message)
        elif self._open:
            self._early_messages.append(message)

    def take_half_close(self) -> None:
        """Notes that the client sends no more. On the serving loop."""
        self._half_closed = True
        fn, self._half_close_fn = self._half_close_fn, None
        if fn is not None:
            self._tell(fn)

    def cut_off(self, error: ServingError) -> None:
        """Ends the call without its handler, unless that ended it. On the loop."""
        if not self._open:
            return
        fns = self._cancel_fns
        self.cancel.cancel(error)
        self._finish(error)
        for fn in fns:
            self._tell(fn)

    def on_handler_failure(self, error: Exception) -> None:
        """Logs what a handler raised, and ends its call. On the serving loop."""
        log.error("event=handler_failed method=%s", self.method, exc_info=error)
        forget_frames(error)  # as in ``fail``
        self.cut_off(handler_error(error, self.method))

    def _tell(self, fn: Callable[..., None], *args: bytes) -> None:
        """Calls a function of the handler's; contains what it raises."""
        try:
            fn(*args)
        except Exception as error:
            self.on_handler_failure(error)

    def _expire(self) -> None:
        self.cut_off(DeadlineExceeded("Deadline Exceeded"))

    def _finish(self, outcome: bytes | ServingError | None) -> None:
        try:
            self._open.pop()
        except IndexError:
            self._host.count_late_finish()
            return
        self.outcome = outcome
        # They refer to this call: a cycle that keeps the message.
        self._cancel_fns = []
        self._message_fn = None
        self._half_close_fn = None
        timer = self._timer
        if timer is not None:
            if self._loop.is_loop_thread:
                timer.cancel()
            else:
                self._loop.post(timer.cancel)
        self._host.to_aio(self.progress.set)
