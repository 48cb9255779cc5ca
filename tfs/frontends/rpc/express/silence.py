"""Limits how long a client may keep the server waiting, in sending or in reading."""

from __future__ import annotations

import random
from typing import Final, Protocol

from tfs.core.call import MethodKind
from tfs.core.errors import DeadlineExceeded
from tfs.frontends.rpc.express.client_uploads import ClientUploads
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.http2.connection import Connection
from tfs.frontends.rpc.express.http2.flow_control import budget_used_up, too_slow
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_state import StreamState
from tfs.frontends.rpc.express.shared_state import SharedState
from tfs.frontends.rpc.frames import (
    DEFAULT_WINDOW,
    ConnectionFault,
    ErrorCode,
)

_AGE_JITTER: Final = 0.1  # as gRPC's own servers have it


class SilentSession(Protocol):
    """A session, as its client's timeouts see it. Loop-confined."""

    connection: Connection

    @property
    def uploads(self) -> ClientUploads:
        """The client's uploads."""
        ...

    def mark_dirty(self) -> None:
        """Requests that output is written at the end of the round."""
        ...

    def on_reset(self, stream: Stream) -> None:
        """Notes that a stream is gone without an answer."""
        ...

    def close(self) -> None:
        """Closes the socket and cuts off every call."""
        ...


class Silence:
    """Checks the timeouts of one client, and resets, pings or closes. Loop-confined.

    Args:
        shared: Provides the timeouts, and counts those that passed.
        now_s: When the connection was accepted.

    """

    __slots__ = (
        "_aged_s",
        "_idle_since_s",
        "_num_answered",
        "_opened_s",
        "_options",
        "_paces",
        "_pinged_s",
        "_shared",
        "_starved_since_s",
        "_swept_s",
        "_waited_s",
    )

    def __init__(self, shared: SharedState, now_s: float) -> None:
        self._shared = shared
        self._options = shared.options
        self._opened_s = now_s
        self._idle_since_s = now_s
        # Spread, so that clients that came together do not come back together.
        spread = random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
        self._aged_s = now_s + self._options.max_connection_age_s * spread
        self._num_answered = 0
        self._pinged_s: float | None = None
        self._starved_since_s: float | None = None
        # For each upload, while other clients wait for the budget: since when its pace
        # is measured, and how many bytes had arrived by then.
        self._paces: dict[int, tuple[float, int]] = {}
        # For each upload, how long the server kept it waiting.
        self._waited_s: dict[int, float] = {}
        self._swept_s = now_s

    def sweep(
        self,
        session: SilentSession,
        now_s: float,
        read_s: float,
        unsent_since_s: float | None,
        *,
        has_more: bool,
    ) -> None:
        """Looks at every timeout but the deadlines of calls.

        Args:
            session: The client's session, the same at each call. It is not kept,
                because it refers to this object.
            now_s: The time now.
            read_s: When bytes of the client were last read.
            unsent_since_s: Since when the client has taken none of the bytes that wait
                for it; None if no bytes wait.
            has_more: Whether the server has yet to process bytes that the client sent.

        """
        connection = session.connection
        options = self._options
        if not connection.is_established:
            if now_s - self._opened_s > options.handshake_timeout_s:
                self._give_up(
                    session, ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS in time"
                )
            return
        stuck_since_s = connection.stuck_since_s
        if (
            stuck_since_s is not None
            and not has_more
            and now_s - stuck_since_s > options.header_timeout_s
        ):
            self._give_up(session, ErrorCode.ENHANCE_YOUR_CALM, "unfinished frame")
            return
        if (
            unsent_since_s is not None
            and now_s - unsent_since_s > options.write_timeout_s
        ):
            self._shared.counters.timeouts += 1
            session.close()
            return
        if now_s >= self._aged_s and self._has_aged(session, now_s):
            return
        self._note_waits(session, now_s)
        if connection.streams:
            self._sweep_streams(session, now_s)
            self._sweep_paces(session, now_s)
            self._idle_since_s = now_s
        elif not connection.is_idle:
            self._idle_since_s = now_s
        elif self._num_answered != connection.num_answered:
            self._num_answered = connection.num_answered
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s > options.idle_timeout_s:
            connection.begin_drain()
            connection.finish_drain()
            session.mark_dirty()
            return
        self._keep_alive(session, now_s, read_s)

    def _has_aged(self, session: SilentSession, now_s: float) -> bool:
        """Drains a connection that is old enough; returns whether it was closed."""
        connection = session.connection
        if now_s >= self._aged_s + self._options.max_connection_age_grace_s:
            session.close()
            return True
        if connection.is_draining:
            connection.finish_drain()  # at the next sweep: what was under way has come
        else:
            connection.begin_drain()
        session.mark_dirty()
        return False

    def _note_waits(self, session: SilentSession, now_s: float) -> None:
        """Notes how long uploads have waited for the server, not for their client.

        A client that was granted a little and makes no use of it is not kept waiting.
        """
        connection = session.connection
        took_s, self._swept_s = now_s - self._swept_s, now_s
        before = self._waited_s
        goes_on = not connection.is_starved and not connection.is_narrow
        if (goes_on or not session.uploads.is_responsive) and not before:
            return
        self._waited_s = {}
        for stream in connection.streams.values():
            if stream.state is not StreamState.OPEN:
                continue
            waited_s = before.get(stream.id, 0.0)
            if session.uploads.is_responsive and (
                connection.is_starved
                or (connection.is_narrow and stream is not connection.upload_in_turn)
            ):
                waited_s += took_s
            if waited_s:
                self._waited_s[stream.id] = waited_s

    def _sweep_streams(self, session: SilentSession, now_s: float) -> None:
        options = self._options
        connection = session.connection
        for stream in list(connection.streams.values()):
            call: ExpressCall | None = stream.owner
            if stream.state is StreamState.OPEN and call is not None:
                if call.route.kind is not MethodKind.BIDIRECTIONAL:
                    since_s = stream.opened_s
                elif stream.is_inside_message:
                    since_s = stream.message_s
                else:
                    # The client of a stream may send its next message at any time.
                    continue
                allowed_s = (
                    options.body_timeout_s
                    + stream.received_bytes / options.min_body_bytes_per_s
                    + self._waited_s.get(stream.id, 0.0)
                )
                if now_s - since_s > allowed_s:
                    self._shared.counters.timeouts += 1
                    call.abort(
                        DeadlineExceeded("the request message did not arrive in time")
                    )
            elif stream.outbox and now_s - stream.progress_s > options.write_timeout_s:
                self._shared.counters.timeouts += 1
                connection.reset(stream, ErrorCode.CANCEL)
                session.on_reset(stream)
                session.mark_dirty()
        if (
            not connection.is_starved
            or self._shared.favoured is not session.uploads
            or self._shared.budget.waits_for_readers
        ):
            # It does not starve for want of budget: it has enough, or waits for its turn
            # or for others to read. Those who read too slowly are cut off meanwhile.
            self._starved_since_s = None
        elif self._starved_since_s is None:
            self._starved_since_s = now_s
        elif now_s - self._starved_since_s > self._allowed_starving_s:
            self._relieve(session)

    @property
    def _allowed_starving_s(self) -> float:
        """How long the favoured session may need more than it gets.

        It is longer if the client has used up even what is lent to it, because such a
        client sends all of its uploads at once.
        """
        if self._shared.budget.free_to_favoured_bytes >= DEFAULT_WINDOW:
            return self._options.favour_timeout_s
        return self._options.starve_timeout_s

    def _sweep_paces(self, session: SilentSession, now_s: float) -> None:
        """Fails uploads that are too slow for as long as others starve.

        While nobody wants the budget that they hold, or while they wait for budget
        themselves, only ``body_timeout_s`` applies. A window that was granted can only
        be taken back by ending the connection. So the connection is drained, and its
        other calls go on.
        """
        before = self._paces
        connection = session.connection
        if not self._shared.is_contested or connection.is_starved:
            before.clear()
            return
        options = self._options
        allowed_s = (
            options.favour_timeout_s
            if self._shared.favoured is session.uploads
            else options.starve_timeout_s
        )
        self._paces = {}
        for stream in list(connection.streams.values()):
            call: ExpressCall | None = stream.owner
            if call is None or not stream.is_inside_message:
                continue
            if connection.is_narrow and stream is not connection.upload_in_turn:
                continue  # its client was told to wait
            since_s, num_bytes = before.get(stream.id, (now_s, stream.received_bytes))
            if now_s - since_s > allowed_s:
                least = options.min_body_bytes_per_s * (now_s - since_s)
                if stream.received_bytes - num_bytes < least:
                    if connection.is_narrow:
                        # Its uploads waste the turns of others.
                        session.uploads.give_up()
                    else:
                        call.abort(too_slow())
                        session.uploads.let_go()
                    continue
                since_s, num_bytes = now_s, stream.received_bytes
            self._paces[stream.id] = since_s, num_bytes

    def _relieve(self, session: SilentSession) -> None:
        """Fails the youngest unfinished request for want of receive budget.

        Others have their turn before the next of its requests.
        """
        self._shared.num_favoured_uploads = -1
        for stream in reversed(list(session.connection.streams.values())):
            call: ExpressCall | None = stream.owner
            if call is not None and stream.is_inside_message:
                call.abort(budget_used_up())
                return

    def _keep_alive(self, session: SilentSession, now_s: float, read_s: float) -> None:
        if self._pinged_s is None or read_s > self._pinged_s:
            if now_s - read_s > self._options.keepalive_time_s:
                self._pinged_s = now_s
                session.connection.ping()
                session.mark_dirty()
        elif now_s - self._pinged_s > self._options.keepalive_timeout_s:
            self._shared.counters.timeouts += 1
            session.close()

    def _give_up(self, session: SilentSession, code: ErrorCode, reason: str) -> None:
        self._shared.counters.timeouts += 1
        session.connection.terminate(ConnectionFault(code, reason))
        session.mark_dirty()
