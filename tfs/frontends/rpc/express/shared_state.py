"""What the connections of one express transport have in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Protocol

from tfs.core.executor import Executor
from tfs.core.serving_loop import ServingLoop
from tfs.frontends.rpc.answer_sizes import AnswerSizes
from tfs.frontends.rpc.express.answer_room import AnswerRoom
from tfs.frontends.rpc.express.backlog import Backlog
from tfs.frontends.rpc.express.client_uploads import ClientUploads
from tfs.frontends.rpc.express.deadlines import Deadlines
from tfs.frontends.rpc.express.express_call import ExpressCall, dispatch_all
from tfs.frontends.rpc.express.express_counters import ExpressCounters
from tfs.frontends.rpc.express.http2.flow_control import ReceiveBudget
from tfs.frontends.rpc.express.http2.headroom import Headroom
from tfs.frontends.rpc.express.http2.receive_buffers import ReceiveBuffers
from tfs.frontends.rpc.express.lingering_sockets import LingeringSockets
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.turns import Turn, Turns
from tfs.frontends.rpc.express.waiting_requests import WaitingRequests


class SlowReader(Protocol):
    """A session, as the backlog of unread answers sees it."""

    def cut_off_reader(self) -> None:
        """Ends the connection, because too many answers wait for slow readers."""
        ...


@dataclass(slots=True, eq=False)
class SharedState:
    """The state that the transport shares with its sessions. Loop-confined.

    Attributes:
        loop: Runs everything.
        options: Limits and timeouts.
        executor: Runs decompression.
        on_large_message: Called after each compressed message, and repeatedly while
            large messages arrive or wait to be read; a last time after that.
        headroom: Decides how much requests and unread answers may take together.
        room: What requests in progress take of it for their answers.
        budget: The server's receive budget.
        backlog: Answers that clients do not take.
        buffers: Memory of large requests, to be used again.
        turns: Decides how much a connection may take in a round.
        deadlines: The deadlines of unfinished calls that began in earlier rounds.
        lingering: Sockets of clients that still read what they were told last.
        counters: The counters that are published.
        opened: Calls that began in this round and have a deadline; see
            :meth:`watch_deadlines`.
        arrived: Calls of one method that arrived in this round and that its handler
            takes together; see :meth:`hand_over`.
        dirty: Sessions that have output; served once, at the end of the round.
        late: Sessions that received more than one round takes; served after ``dirty``.
        starved: Clients that wait for the receive budget, the longest waiting first.
        waiting: Clients with requests that wait for readers, the longest waiting first.
        uploaded: Large requests that arrived while others waited for room, and that are
            still in progress.
        answer_sizes: The models that are known for long answers.
        is_contested: Whether any starved or waiting client had something to finish
            when timeouts were last checked.
        favoured: The client that may use the reserve. It is starved, or was lately.
        num_favoured_uploads: How many uploads it had finished when it was favoured.
        unfinished: Sessions that had too much for this round and go on in the next.
        wants_round: Whether the next round should come at once.
        round_begun_s: When this round first received anything; None before.
        loop_ident: The loop's thread; valid once the loop runs the transport.

    """

    loop: ServingLoop
    options: ExpressOptions
    executor: Executor
    on_large_message: Callable[[], None]
    headroom: Headroom = field(init=False)
    room: AnswerRoom = field(init=False)
    budget: ReceiveBudget = field(init=False)
    backlog: Backlog[SlowReader] = field(init=False)
    buffers: ReceiveBuffers = field(init=False)
    turns: Turns = field(init=False)
    deadlines: Deadlines[ExpressCall] = field(init=False)
    lingering: LingeringSockets = field(init=False)
    counters: ExpressCounters = field(default_factory=ExpressCounters)
    opened: list[ExpressCall] = field(default_factory=list)
    arrived: list[ExpressCall] = field(default_factory=list)
    dirty: list[Callable[[], None]] = field(default_factory=list)
    late: list[Callable[[], None]] = field(default_factory=list)
    starved: dict[ClientUploads, None] = field(default_factory=dict)
    waiting: dict[WaitingRequests, None] = field(default_factory=dict)
    uploaded: list[tuple[weakref.ref[ExpressCall], int]] = field(default_factory=list)
    answer_sizes: AnswerSizes = field(default_factory=AnswerSizes)
    is_contested: bool = False
    favoured: ClientUploads | None = None
    num_favoured_uploads: int = 0
    unfinished: list[Callable[[], None]] = field(default_factory=list)
    wants_round: bool = False
    round_begun_s: float | None = None
    loop_ident: int = field(default_factory=get_ident)

    def __post_init__(self) -> None:
        max_receive_bytes = self.options.max_receive_bytes
        self.headroom = Headroom(max_receive_bytes, self.options.least_open_bytes)
        self.room = AnswerRoom(self.headroom, self.answer_sizes)
        self.budget = ReceiveBudget(max_receive_bytes, self.headroom)
        self.backlog = Backlog(self.options.max_backlog_bytes, self.headroom)
        # A reply may lie in its request's memory until it is sent, so usually twice as
        # many bytes are lent as arrive at a time.
        self.buffers = ReceiveBuffers(max_receive_bytes // 4)
        self.turns = Turns(
            Turn(
                self.options.limits.max_requests_per_round,
                self.options.limits.max_requests_per_round,
                self.options.max_read_bytes,
                self.options.max_written_bytes,
            )
        )
        self.deadlines = Deadlines(self.loop, ExpressCall.expire)
        self.lingering = LingeringSockets(self.loop)

    def hand_over(self) -> None:
        """Hands the calls that arrived to their handler.

        This happens at the end of the round, or before a call of another method is
        handed over. It includes calls that were cut off meanwhile, whose tokens are
        marked, so that handlers know of every request that arrived whole.
        """
        calls = self.arrived
        if calls:
            self.arrived = []
            dispatch_all(calls)

    def watch_deadlines(self, now_s: float) -> None:
        """Sets the deadlines of the calls that began in this round.

        This is done at the end of the round. If models answer at once, most calls are
        finished by then and need none.
        """
        calls, self.opened = self.opened, []
        for call in calls:
            if not call.is_finished and call.deadline_s is not None:
                call.bucket = self.deadlines.add(call, call.deadline_s, now_s)
