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
        connections: Accepted.
        refused_connections: Closed at once: too many.
        failed_handshakes: TLS handshakes that failed: unknown clients, plain text, or
            too slow.
        faults: Connections closed because the peer broke a rule or was a nuisance.
        floods: Faults that were closed with ENHANCE_YOUR_CALM.
        failures: Connections closed because our own code raised.
        timeouts: Connections and calls given up for being silent.
        handler_failures: Exceptions that handlers raised.
        cut_off_calls: Calls that ended without their handler.
        late_finishes: Finishes of calls that had ended already.
        slow_rounds: Rounds beyond ``slow_round_s``.
        answered: Calls of connections that are closed; of open ones, they know.
        resets: Streams that clients reset, of connections that are closed.
        decoded_heads: Request heads not found in their cache, of such connections.

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
    """A session as far as what waits for its client is concerned."""

    def cut_off_reader(self) -> None:
        """Ends the connection: too much waits for those who read too slowly."""
        ...


class StarvedSession(Protocol):
    """A session as far as the receive budget is concerned.

    Attributes:
        had_favour: Whether it was favoured before.

    """

    had_favour: bool

    @property
    def wants_favour(self) -> bool:
        """Whether it has an upload to finish, and its client may go on with that."""
        ...

    @property
    def keeps_favour(self) -> bool:
        """Whether the upload that it was favoured for is to be finished still."""
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether the favoured sends next to nothing of what it may."""
        ...

    def give_up_uploads(self) -> None:
        """Fails the uploads of a client that others cannot wait for."""
        ...

    @property
    def is_responsive(self) -> bool:
        """Whether its client made use of what it was granted last to see that."""
        ...

    @property
    def probed_s(self) -> float:
        """When that was."""
        ...

    def probe(self) -> None:
        """Has its client show whether it goes on with its upload."""
        ...

    @property
    def can_be_answered(self) -> bool:
        """Whether its client takes anything of an answer now."""
        ...

    @property
    def num_uploads(self) -> int:
        """How many it has finished."""
        ...

    def favour(self, is_favoured: bool) -> None:
        """Lets it have the budget's reserve, or no more."""
        ...

    def refill(self) -> None:
        """Grants the client what the receive budget has room for."""
        ...


class WaitingSession(Protocol):
    """A session some of whose requests wait for readers.

    Attributes:
        begun_bytes: What its requests that somebody works on may take, as far as the
            server takes note of them.

    """

    begun_bytes: int

    @property
    def may_begin(self) -> bool:
        """Whether one of them need not wait any more."""
        ...

    def begin_waiting(self) -> None:
        """Begins one of them if it may."""
        ...


@dataclass(slots=True, frozen=True)
class BegunCall:
    """A request that somebody works on. Immutable.

    Attributes:
        call: Gone when nobody does.
        session: Whose it is.
        num_bytes: What its answer may take.

    """

    call: weakref.ref[ExpressCall]
    session: WaitingSession
    num_bytes: int

    @property
    def is_over(self) -> bool:
        """Whether it was answered, or given up and let go of."""
        call = self.call()
        return call is None or call.is_finished


@dataclass(slots=True, eq=False)
class SharedState:
    """Made by the transport, used by its sessions. Loop-confined.

    Attributes:
        loop: Runs everything.
        options: Limits and timeouts.
        executor: Runs decompression.
        on_large_message: Called after each message that was compressed, and as long as
            large ones come or wait to be read, the last time after that.
        headroom: What requests and unread answers may take together.
        budget: The server's receive budget.
        backlog: Answers that clients do not take.
        buffers: Memory of large requests, used again.
        turns: How much a connection may take in a round.
        deadlines: Of all unfinished calls that began in rounds before.
        lingering: Sockets of clients that were cut off, until they know.
        counters: What happened.
        opened: Calls that began in this round and have a deadline; see
            :meth:`watch_deadlines`.
        arrived: Calls of one method that this round brought and that its handler takes
            together; see :meth:`hand_over`.
        dirty: Run at the end of the round, once: sessions that have output.
        late: Run behind those: sessions that had more than one round takes.
        starved: Sessions that wait for the receive budget, the longest waiting first.
        waiting: Sessions with requests that wait for readers, the longest waiting first.
        begun: Large requests, or with large answers, that somebody works on, as far as
            they may be many: those that waited, and those of models known for that.
        uploaded: Large requests that arrived while others waited for room, and that
            somebody works on still.
        answer_sizes: Which models are.
        is_contested: Whether any of either had something to finish when timeouts were
            last looked at.
        favoured: The one of the starved, or lately of them, that may use the reserve.
        num_favoured_uploads: What it had finished when it became that.
        unfinished: Run in the next round: sessions that had too much for this one.
        wants_round: Whether the next round should come at once.
        round_begun_s: When this round first received anything; None before.
        loop_ident: The loop's thread; right once the loop runs the transport.

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
        """Takes note of a request whose answer may take that much."""
        self.begun.append(BegunCall(weakref.ref(call), session, num_bytes))
        session.begun_bytes += num_bytes
        self.headroom.begun_bytes += num_bytes

    def forget_ended(self) -> None:
        """Takes those off that were answered since."""
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

        At the end of the round; sooner, before a call of another method is handed over:
        to a handler it makes no difference. Those that were cut off meanwhile are
        among them, so that it knows of every request that arrived whole; their tokens
        are marked.
        """
        calls = self.arrived
        if calls:
            self.arrived = []
            dispatch_all(calls)

    def watch_deadlines(self, now_s: float) -> None:
        """Has the calls that began in this round expire when it is time.

        At its end: most are finished by then, where models answer at once.
        """
        calls, self.opened = self.opened, []
        for call in calls:
            if not call.is_finished and call.deadline_s is not None:
                call.bucket = self.deadlines.add(call, call.deadline_s, now_s)
