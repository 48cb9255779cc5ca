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
from tfs.frontends.rpc.express.backlog import Backlog
from tfs.frontends.rpc.express.deadlines import Deadlines
from tfs.frontends.rpc.express.express_call import ExpressCall, dispatch_all
from tfs.frontends.rpc.express.http2.flow_control import ReceiveBudget
from tfs.frontends.rpc.express.http2.headroom import Headroom
from tfs.frontends.rpc.express.http2.receive_buffers import ReceiveBuffers
from tfs.frontends.rpc.express.lingering_sockets import LingeringSockets
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.turns import Turn, Turns


@dataclass(slots=True)
class ExpressCounters:
    """What happened since the start. Written by the loop, read by anybody.

    Attributes:
        connections: Connections that were accepted.
        refused_connections: Connections closed at once because there were too many.
        failed_handshakes: TLS handshakes that failed because the client was unknown,
            too slow, or did not use TLS.
        faults: Connections closed because the peer broke a rule or was a nuisance.
        floods: Faults that were closed with ENHANCE_YOUR_CALM.
        failures: Connections closed because our own code raised.
        timeouts: Connections and calls given up for being silent.
        handler_failures: Exceptions that handlers raised.
        cut_off_calls: Calls that ended without their handler.
        late_finishes: Finishes of calls that had ended already.
        slow_rounds: Rounds that took longer than ``slow_round_s``.
        answered: Calls answered on connections that are closed by now. Open connections
            count their own; so it is with the next two.
        resets: Streams that clients reset.
        decoded_heads: Request heads that were not in the cache of header blocks.

    """

    connections: int = 0
    refused_connections: int = 0
    failed_handshakes: int = 0
    faults: int = 0
    floods: int = 0
    failures: int = 0
    timeouts: int = 0
    handler_failures: int = 0
    cut_off_calls: int = 0
    late_finishes: int = 0
    slow_rounds: int = 0
    answered: int = 0
    resets: int = 0
    decoded_heads: int = 0


class SlowReader(Protocol):
    """A session, as the backlog of unread answers sees it."""

    def cut_off_reader(self) -> None:
        """Ends the connection, because too many answers wait for slow readers."""
        ...


class StarvedSession(Protocol):
    """A session, as the receive budget sees it.

    Attributes:
        had_favour: Whether it was favoured before.

    """

    had_favour: bool

    @property
    def wants_favour(self) -> bool:
        """Whether it has an upload to finish that its client may continue."""
        ...

    @property
    def keeps_favour(self) -> bool:
        """Whether the upload that it was favoured for is unfinished."""
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether the favoured client sends next to nothing of what it may."""
        ...

    def give_up_uploads(self) -> None:
        """Fails the uploads of a client that others cannot wait for."""
        ...

    @property
    def is_responsive(self) -> bool:
        """Whether its client has made use of what :meth:`probe` granted it."""
        ...

    @property
    def probed_s(self) -> float:
        """When its client was last probed."""
        ...

    def probe(self) -> None:
        """Grants its client a little, to see whether it goes on with its upload."""
        ...

    @property
    def can_be_answered(self) -> bool:
        """Whether its client would take any part of an answer now."""
        ...

    @property
    def num_uploads(self) -> int:
        """How many uploads it has finished."""
        ...

    def favour(self, is_favoured: bool) -> None:
        """Lets the session use the budget's reserve, or ends that."""
        ...

    def refill(self) -> None:
        """Grants the client as much as the receive budget has room for."""
        ...


class WaitingSession(Protocol):
    """A session with requests that wait until answers have been read.

    Attributes:
        begun_bytes: Bytes that its requests in progress may take, as far as the server
            counts them.

    """

    begun_bytes: int

    @property
    def may_begin(self) -> bool:
        """Whether the first waiting request may begin, or none waits."""
        ...

    def begin_waiting(self) -> None:
        """Begins waiting requests, at most one large one, if they may begin."""
        ...


@dataclass(slots=True, frozen=True)
class BegunCall:
    """A request in progress. Immutable.

    Attributes:
        call: A weak reference to the call, which is gone when nobody works on it.
        session: The session that it arrived on.
        num_bytes: Bytes that its answer may take.

    """

    call: weakref.ref[ExpressCall]
    session: WaitingSession
    num_bytes: int

    @property
    def is_over(self) -> bool:
        """Whether the call was answered, or was cut off and dropped by its handler."""
        call = self.call()
        return call is None or call.is_finished


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
        budget: The server's receive budget.
        backlog: Answers that clients do not take.
        buffers: Memory of large requests, to be used again.
        turns: Decides how much a connection may take in a round.
        deadlines: The deadlines of unfinished calls that began in earlier rounds.
        lingering: Sockets of clients that were cut off, kept until they know why.
        counters: The counters that are published.
        opened: Calls that began in this round and have a deadline; see
            :meth:`watch_deadlines`.
        arrived: Calls of one method that arrived in this round and that its handler
            takes together; see :meth:`hand_over`.
        dirty: Sessions that have output; served once, at the end of the round.
        late: Sessions that received more than one round takes; served after ``dirty``.
        starved: Sessions that wait for the receive budget, the longest waiting first.
        waiting: Sessions with requests that wait for readers, the longest waiting first.
        begun: Large requests, or requests with large answers, that are in progress, if
            they may be many: those that waited, and those of models with long answers.
        uploaded: Large requests that arrived while others waited for room, and that are
            still in progress.
        answer_sizes: The models that are known for long answers.
        is_contested: Whether any starved or waiting session had something to finish
            when timeouts were last checked.
        favoured: The session that may use the reserve. It is starved, or was lately.
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
    starved: dict[StarvedSession, None] = field(default_factory=dict)
    waiting: dict[WaitingSession, None] = field(default_factory=dict)
    begun: list[BegunCall] = field(default_factory=list)
    uploaded: list[tuple[weakref.ref[ExpressCall], int]] = field(default_factory=list)
    answer_sizes: AnswerSizes = field(default_factory=AnswerSizes)
    is_contested: bool = False
    favoured: StarvedSession | None = None
    num_favoured_uploads: int = 0
    unfinished: list[Callable[[], None]] = field(default_factory=list)
    wants_round: bool = False
    round_begun_s: float | None = None
    loop_ident: int = field(default_factory=get_ident)

    def __post_init__(self) -> None:
        max_receive_bytes = self.options.max_receive_bytes
        self.headroom = Headroom(max_receive_bytes, self.options.least_open_bytes)
        self.budget = ReceiveBudget(max_receive_bytes, self.headroom)
        self.backlog = Backlog(self.options.max_backlog_bytes, self.headroom)
        # Replies may lie in a request's memory until they are sent: as much again as
        # arrives at a time, as a rule, is lent.
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

    def note_begun(
        self, call: ExpressCall, session: WaitingSession, num_bytes: int
    ) -> None:
        """Notes a request in progress whose answer may take that many bytes."""
        self.begun.append(BegunCall(weakref.ref(call), session, num_bytes))
        session.begun_bytes += num_bytes
        self.headroom.begun_bytes += num_bytes

    def forget_ended(self) -> None:
        """Removes the requests that are over from those in progress."""
        begun = self.begun
        if not any(each.is_over for each in begun):
            return
        self.begun = []
        for each in begun:
            if each.is_over:
                each.session.begun_bytes -= each.num_bytes
                self.headroom.begun_bytes -= each.num_bytes
            else:
                self.begun.append(each)

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
