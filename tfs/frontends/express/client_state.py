"""What the calls of one client share: its connection, and what they count against it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from threading import get_ident
from typing import Any

from tfs.core.call import Peer
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.clients import ClientOptions, Clients
from tfs.frontends.http2.connection import Connection
from tfs.frontends.http2.state import ConnectionLimits
from tfs.frontends.http2.stream import Outbox, Stream
from tfs.frontends.wire import Wire


class ClientState:
    """A client as its calls know it. Confined to the serving loop.

    Attributes:
        connection: The protocol's state.
        is_dirty: Whether ``flush`` is going to be called.
        loop_ident: The loop's thread.
        peer: Who it is.
        post: Runs a function on the loop.
        read_s: When bytes of the client were last read.
        sender: Sends its answers.
        shared: The state of the transport.
        unread_bytes: Bytes of answers that the kernel has not taken yet, as the budget
            counts them.
        wire: The socket.

    Args:
        flush: Writes what a round brought.

    """

    __slots__ = (
        "_cut_off",
        "_flush",
        "connection",
        "is_dirty",
        "loop_ident",
        "peer",
        "post",
        "read_s",
        "sender",
        "shared",
        "unread_bytes",
        "wire",
    )

    def __init__(
        self,
        shared: SharedState,
        wire: Wire,
        peer: Peer,
        connection: Connection,
        flush: Callable[[], None],
    ) -> None:
        self.shared = shared
        self.wire = wire
        self.peer = peer
        self.connection = connection
        self.sender = connection.sender
        self.loop_ident = shared.loop_ident
        self.post: Callable[[Callable[[], None]], None] = shared.loop.post
        self.is_dirty = False
        self.read_s = shared.loop.clock.now()
        self.unread_bytes = 0
        self._flush: Callable[[], None] | None = flush
        # By references, which tell a call from another one in its place.
        self._cut_off: dict[weakref.ref[object], Stream] = {}

    def mark_dirty(self) -> None:
        """Requests that output is written at the end of the round."""
        if not self.is_dirty and self._flush is not None:
            self.is_dirty = True
            self.shared.dirty.append(self._flush)

    def note_unread(self) -> None:
        """Counts the answers that the kernel has not taken yet."""
        unread_bytes = self.wire.unsent_bytes + self.sender.queued_bytes
        more_bytes = unread_bytes - self.unread_bytes
        if more_bytes and self._flush is not None:
            self.unread_bytes = unread_bytes
            self.shared.budget.release(-more_bytes)

    def close(self) -> None:
        """Takes no more output, so that calls do not keep the session; idempotent."""
        self._flush = None
        unread_bytes, self.unread_bytes = self.unread_bytes, 0
        self.shared.budget.release(unread_bytes)

    # -- room ------------------------------------------------------------------------

    def may_answer(self, stream: Stream, num_bytes: int) -> bool:
        """Returns whether an answer may wait; see :meth:`MemoryBudget.may_answer`."""
        return self.shared.budget.may_answer(stream, num_bytes, self.unread_bytes)

    def take_room(
        self,
        stream: Stream,
        num_bytes: int,
        go_on: Callable[[], None],
        sent_bytes: int,
        *,
        is_all: bool,
    ) -> bool:
        """Takes room for a call; see :meth:`MemoryBudget.take_room`."""
        return self.shared.budget.take_room(
            stream,
            self.connection.state.account,
            num_bytes,
            self.shared.loop.clock.now(),
            go_on,
            sent_bytes=sent_bytes,
            is_all=is_all,
        )

    # -- the end of calls --------------------------------------------------------------

    def on_answered(self, stream: Stream) -> None:
        """Notes that a call was finished."""
        if stream.ticket is not None:
            self.shared.budget.release_all(stream)
        else:
            self.shared.budget.release(stream.held_bytes)
            stream.held_bytes = 0
        stream.owner = None  # no cycle, so the message is freed with the call
        sender = self.sender
        if sender.queued_bytes:
            outbox = stream.outbox
            if outbox and outbox.size_bytes > min(stream.send_window, sender.window):
                self.shared.attached.append(outbox)
            self.note_unread()
        if not self.is_dirty:
            self.mark_dirty()

    def add_cut_off(self, call: object, stream: Stream) -> None:
        """Has a call that ended without its handler count until that lets go of it.

        A call that its client reset, or whose deadline passed, is over for the client.
        Its work goes on until its handler finishes it all the same, or drops it. Until
        then its stream counts against the connection's limit, or a client could have any
        amount of work done by resetting what it asked for (CVE-2023-44487).
        """
        self._cut_off[weakref.ref(call, self._on_dropped)] = stream
        self.connection.state.num_cut_off += 1

    def _on_dropped(self, call: weakref.ref[object]) -> None:
        # Handlers may let go of a call on any thread.
        self.post(partial(self._end_cut_off, call))

    def on_late_finish(self, call: object) -> None:
        """Notes that a call was finished twice, or after it was cut off."""
        self.shared.clients.counters.late_finishes += 1
        self._end_cut_off(weakref.ref(call))

    def _end_cut_off(self, call: weakref.ref[object]) -> None:
        stream = self._cut_off.pop(call, None)
        if stream is not None:
            self.connection.state.num_cut_off -= 1
            self.shared.budget.release_all(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressOptions(ClientOptions):
    """Limits and timeouts of the transport. Immutable, checked.

    Attributes:
        limits: What one connection may ask for.
        max_receive_bytes: Most bytes that clients make the server keep
            (:mod:`tfs.frontends.budget`).
        max_piece_bytes: Most bytes taken from one connection, or of long answers moved
            to its socket, at a time.
        max_unsent_bytes: While the kernel has not taken more bytes of answers than
            this, nothing more is read from that connection.
        max_stream_queued_bytes: Most bytes of answers that wait in one stream. Beyond
            that, ``StreamCall.send`` refuses.
        max_connection_age_s: Time after which a connection is drained, a tenth more or
            less, so that a balancer's clients move; infinite by default.
        max_connection_age_grace_s: Time after that for its calls to end.
        keepalive_time_s: Time without any byte after which the client gets a PING.

    """

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_receive_bytes: int = 256 << 20
    max_piece_bytes: int = 262_144
    max_unsent_bytes: int = 1 << 20
    max_stream_queued_bytes: int = 4 << 20
    max_connection_age_s: float = inf
    max_connection_age_grace_s: float = inf
    keepalive_time_s: float = 300.0


@dataclass(slots=True, eq=False)
class SharedState:
    """The state that the transport shares with its sessions. Loop-confined.

    Attributes:
        loop: Runs everything.
        options: Limits and timeouts.
        executor: Runs decompression.
        on_large_message: Called after each compressed message, and repeatedly while
            large messages arrive or wait to be read; a last time after that.
        budget: The memory that clients can make the server take.
        clients: The clients; set by the transport.
        attached: Answers in memory of their batches that their clients do not take yet;
            copied out of it in portions, because 10 MB take 5 ms.
        opened: Calls that began in this round and have a deadline.
        arrived: Calls of one method that arrived in this round and that its handler
            takes together.
        dirty: Sessions that have output; served once, at the end of the round.
        late: What is long, one piece each; behind the short answers of a round, the
            first of them is done.
        unfinished: Sessions that had too much for this round and go on in the next.
        wants_round: Whether the next round should come at once.
        round_begun_s: When this round first received anything; None before.
        loop_ident: The loop's thread; valid once the loop runs the transport.

    """

    loop: ServingLoop
    options: ExpressOptions
    executor: Executor
    on_large_message: Callable[[], None]
    budget: MemoryBudget
    clients: Clients[Any] = field(init=False)
    attached: list[Outbox] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    arrived: list[Any] = field(default_factory=list)
    dirty: list[Callable[[], None]] = field(default_factory=list)
    late: deque[Callable[[], None]] = field(default_factory=deque)
    unfinished: list[Callable[[], None]] = field(default_factory=list)
    wants_round: bool = False
    round_begun_s: float | None = None
    loop_ident: int = field(default_factory=get_ident)
