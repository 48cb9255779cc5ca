"""Ends what waits for its client and makes no progress.

There is one rule: what waits for its client has to move by 64 KB, or to its end, within
``no_progress_timeout_s``. That holds for the beginning of a connection, a frame or a
header block that is not whole, a request that is not whole, an answer that is not read,
and the sign of life that a silent client is asked for. What waits for the server's
memory instead is refused after as long.
"""

from __future__ import annotations

import random
from typing import Final

from tfs.core.call import MethodKind
from tfs.core.errors import DeadlineExceeded, ServingError
from tfs.frontends.budget import Progress, used_up
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.client_state import ClientState
from tfs.frontends.http2.frames import ConnectionFault, ErrorCode
from tfs.frontends.http2.stream import Stream, StreamState

_AGE_JITTER: Final = 0.1  # as gRPC's own servers have it
_NUISANCES: Final = 64  # that a call counts which made no progress


class Timeouts:
    """The timeouts of one client. Loop-confined.

    Args:
        client: The client.
        now_s: When it was accepted.

    """

    __slots__ = (
        "_aged_s",
        "_client",
        "_marks",
        "_opened_s",
        "_options",
        "_pinged_s",
        "_sent",
        "_unsent",
    )

    def __init__(self, client: ClientState, now_s: float) -> None:
        self._client = client
        self._options = client.shared.options
        self._opened_s = now_s
        # Spread, so that clients that came together do not come back together.
        spread = random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
        self._aged_s = now_s + self._options.max_connection_age_s * spread
        self._pinged_s: float | None = None
        self._marks: dict[int, Progress] = {}  # of streams that wait for the client
        self._unsent: Progress | None = None  # of what the kernel has to take
        self._sent = Progress(0, now_s)  # of all answers that waited

    def sweep(self, now_s: float, *, has_more: bool) -> bool:
        """Ends what has been silent for too long.

        Args:
            now_s: The time now.
            has_more: Whether the server has yet to process bytes that the client sent.

        Returns:
            Whether the connection is to be closed without another word.

        """
        connection, wire = self._client.connection, self._client.wire
        limit_s = self._options.no_progress_timeout_s
        stuck_since_s = connection.stuck_since_s
        if not connection.is_established:
            if now_s - self._opened_s > limit_s:
                self._give_up(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS in time")
            return False
        if (
            stuck_since_s is not None
            and not has_more
            and now_s - stuck_since_s > limit_s
        ):
            self._give_up(ErrorCode.ENHANCE_YOUR_CALM, "unfinished frame")
            return False
        if not wire.unsent_bytes:
            self._unsent = None
        elif self._unsent is None:
            self._unsent = Progress(wire.sent_bytes, now_s)
        elif self._unsent.move(wire.sent_bytes, now_s) > limit_s:
            self._count()
            return True
        if now_s >= self._aged_s:
            if now_s >= self._aged_s + self._options.max_connection_age_grace_s:
                return True
            if connection.is_draining:
                connection.finish_drain()  # what was under way has come by this sweep
            else:
                connection.begin_drain()
            self._client.mark_dirty()
        if connection.streams or self._marks:
            self._sweep_streams(now_s)
        return not connection.is_closed and self._is_gone(now_s)

    def _sweep_streams(self, now_s: float) -> None:
        connection = self._client.connection
        limit_s = self._options.no_progress_timeout_s
        sender = connection.sender
        are_sent = self._sent.move(sender.sent_bytes, now_s) <= limit_s
        are_sent = are_sent and sender.window > 0
        before, self._marks = self._marks, {}
        for stream in list(connection.streams.values()):
            ticket = stream.ticket
            if ticket is not None and not ticket.is_admitted:
                if now_s - ticket.since_s > limit_s:
                    self._end(stream, used_up())  # which is not the client's fault
                continue
            num_bytes = _moved_bytes(stream, are_sent=are_sent)
            if num_bytes is None:
                continue
            mark = before.get(stream.id)
            if mark is None:
                mark = Progress(num_bytes, now_s)
            elif stream.outbox is not None:
                stream.outbox.detach()
            self._marks[stream.id] = mark
            if mark.move(num_bytes, now_s) > limit_s:
                error = DeadlineExceeded("the request message did not arrive in time")
                self._end(stream, error)
                self._blame()

    def _end(self, stream: Stream, error: ServingError) -> None:
        connection = self._client.connection
        call: ExpressCall | None = stream.owner
        if call is not None:
            call.abort(error)
        else:
            connection.sender.reset(stream, ErrorCode.CANCEL)
            connection.state.budget.release_all(stream)
        self._client.mark_dirty()

    def _blame(self) -> None:
        """Counts a call that made no progress, which is as bad as many nuisances."""
        connection = self._client.connection
        self._count()
        try:
            connection.state.now_s = self._client.shared.loop.clock.now()
            connection.state.count_nuisance("calls without progress", _NUISANCES)
        except ConnectionFault as fault:
            connection.terminate(fault)

    def _is_gone(self, now_s: float) -> bool:
        """Asks a silent client for a sign of life; returns whether none has come."""
        client = self._client
        if self._pinged_s is None or client.read_s > self._pinged_s:
            if now_s - client.read_s > self._options.keepalive_time_s:
                self._pinged_s = now_s
                client.connection.ping()
                client.mark_dirty()
        elif now_s - self._pinged_s > self._options.no_progress_timeout_s:
            self._count()
            return True
        return False

    def _give_up(self, code: ErrorCode, reason: str) -> None:
        self._count()
        self._client.connection.terminate(ConnectionFault(code, reason))
        self._client.mark_dirty()

    def _count(self) -> None:
        self._client.shared.clients.counters.timeouts += 1


def _moved_bytes(stream: Stream, *, are_sent: bool) -> int | None:
    """Returns how far a stream has come that waits for its client; None if it does not.

    Args:
        stream: The stream.
        are_sent: Whether the client takes answers, of which this one may wait its turn.

    """
    call: ExpressCall | None = stream.owner
    if stream.outbox:
        if are_sent and stream.send_window > 0:
            return None
        return stream.outbox.moved_bytes
    if stream.state is not StreamState.OPEN or call is None:
        return None
    if call.route.kind is MethodKind.BIDIRECTIONAL and not stream.is_inside_message:
        return None  # the client of a stream may send its next message at any time
    return stream.received_bytes
