"""What the parts of a connection share: its streams, and the rules for them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol

from tfs.core.errors import ServingError
from tfs.frontends.budget import Account, MemoryBudget
from tfs.frontends.http2.frames import (
    DEFAULT_FRAME_SIZE,
    LARGEST_FRAME_SIZE,
    LARGEST_WINDOW,
    ConnectionFault,
    ErrorCode,
)
from tfs.frontends.http2.sender import Sender
from tfs.frontends.http2.stream import (
    Reaction,
    Signal,
    Step,
    Stream,
    StreamState,
    StreamTable,
    step,
)

WORK_PER_REQUEST: Final = 16
"""What a request counts of the work of a round: one for its head, as any other frame counts,
and the rest for its message. Frames take up to 3 us each."""

_MOST_NUISANCES: Final = 2048.0
_FORGOTTEN_PER_S: Final = 100.0
_FORGOTTEN_PER_MESSAGE: Final = 4.0


class ConnectionState:
    """The state of one connection. Confined to the serving loop.

    Attributes:
        account: What was admitted for it.
        budget: The server's.
        events: Is told what the peer does.
        is_closed: Whether the connection takes nothing more in.
        limits: What the peer may ask.
        now_s: The time of what is being received.
        num_cut_off: Calls that ended early and whose work still runs. They count
            against ``max_concurrent_streams``. The owner keeps the number up to date.
        sender: Sends answers.
        streams: The live streams by id.
        table: All that is known of streams.
        work_left: What may still be taken in this ``receive``.

    """

    __slots__ = (
        "_nuisances_at_s",
        "_num_nuisances",
        "_num_sent",
        "account",
        "budget",
        "events",
        "is_closed",
        "limits",
        "now_s",
        "num_cut_off",
        "sender",
        "streams",
        "table",
        "work_left",
    )

    def __init__(
        self,
        events: ConnectionEvents,
        budget: MemoryBudget,
        limits: ConnectionLimits,
        now_s: float,
    ) -> None:
        self.account = Account()
        self.budget = budget
        self.events = events
        self.is_closed = False
        self.limits = limits
        self.now_s = now_s
        self.num_cut_off = 0
        self.table = StreamTable()
        self.streams = self.table.live
        self.sender = Sender(self.table, limits.max_message_bytes)
        self.work_left = 0
        self._num_nuisances = 0.0
        self._nuisances_at_s = now_s
        self._num_sent = 0  # messages by then

    def step(self, stream_id: int, signal: Signal) -> Step:
        """Returns the table's step; carries it out unless it is ACCEPT or IGNORE."""
        state = self.table.state_of(stream_id)
        verdict = step(state, signal)
        if verdict.reaction is Reaction.CLOSE_CONNECTION:
            raise ConnectionFault(verdict.error, f"{signal.name} in state {state.name}")
        if verdict.reaction is Reaction.RESET_STREAM:
            self.reset_by_fault(stream_id, verdict.error)
        return verdict

    def reset_by_fault(self, stream_id: int, code: ErrorCode) -> None:
        """Resets a stream whose client broke a rule, which counts as a nuisance."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.sender.reset(stream, code)
            self.events.on_reset(stream)
        self.count_nuisance("stream errors", 10)

    def count_work(self, num_requests: int) -> None:
        """Counts work of this round that takes as long as so many requests."""
        self.work_left -= num_requests * WORK_PER_REQUEST

    def count_nuisance(self, what: str, times: int = 1) -> None:
        """Counts frames that ask for nothing.

        The known floods of HTTP/2 (rapid reset CVE-2023-44487, resets that a client
        provokes CVE-2025-8671, PING, SETTINGS, empty frames) make the server work without
        asking it for anything. Each such frame counts, and is forgotten with time or with
        messages that the client is sent: real clients follow answers with small window
        updates and PINGs, and those that hedge often cancel. As many are allowed at once
        as a client may have reason for: giving up all of the 1,024 calls that it may have
        open, and those that it opens meanwhile.

        Args:
            what: Their kind, for the reason that the client reads.
            times: How many there are; more than one for what costs more work.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM; they are too many.

        """
        num_sent = self.sender.num_answered
        forgotten = (self.now_s - self._nuisances_at_s) * _FORGOTTEN_PER_S
        forgotten += (num_sent - self._num_sent) * _FORGOTTEN_PER_MESSAGE
        self._nuisances_at_s = self.now_s
        self._num_sent = num_sent
        self._num_nuisances = max(0.0, self._num_nuisances - forgotten) + times
        if self._num_nuisances > _MOST_NUISANCES:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"too many {what} without requests"
            )

    def release(self, stream: Stream, num_bytes: int) -> None:
        """Gives some of what a stream counts back to the budget."""
        num_bytes = min(num_bytes, stream.held_bytes)
        stream.held_bytes -= num_bytes
        self.budget.release(num_bytes)

    def close(self) -> None:
        """Forgets every stream, of which each brings ``on_reset``; idempotent."""
        self.is_closed = True
        while self.streams:
            stream = next(iter(self.streams.values()))
            self.sender.drop(stream, StreamState.CLOSED)
            self.events.on_reset(stream)


class ConnectionEvents(Protocol):
    """What a connection tells its owner, from within ``receive``.

    For each stream, ``on_open`` comes first. Then come any number of ``on_message`` and
    one ``on_end``, or one ``on_request`` in place of them all. ``on_reset`` comes at
    most once, as the last. A stream that the owner has answered or reset brings no more
    events. The owner may call any sending method from within these.
    """

    def on_open(self, stream: Stream) -> None:
        """A request's headers arrived and were checked."""
        ...

    def on_request(self, stream: Stream, message: bytes) -> None:
        """One whole uncompressed message arrived and the client sends no more."""
        ...

    def on_message(
        self, stream: Stream, message: memoryview, is_compressed: bool
    ) -> None:
        """A whole message arrived."""
        ...

    def on_end(self, stream: Stream) -> None:
        """The client sends no more messages."""
        ...

    def on_fault(self, stream: Stream, error: ServingError) -> None:
        """The request cannot be read; the owner has to answer with ``error``."""
        ...

    def on_reset(self, stream: Stream) -> None:
        """The stream is gone, by the client's wish or fault, or with the connection."""
        ...

    def on_output(self) -> None:
        """There is something to send, though nothing was received."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may ask of us. Immutable.

    Attributes:
        max_concurrent_streams: Calls at a time, including those cut off whose work
            still runs.
        max_requests_per_round: Most requests that one ``receive`` takes.
        max_message_bytes: Longest message, in a request or a reply.
        max_request_bytes: Longest message of a request, if that is less.
        max_header_list_bytes: Longest header list, by RFC 7541's count; a header
            block may be as long on the wire.
        max_frame_size: Longest frame payload that we announce to take, in bytes.
        max_continuations: Most CONTINUATION frames of one header block.

    """

    max_concurrent_streams: int = 1024
    max_requests_per_round: int = 24
    max_message_bytes: int = 64 << 20
    max_request_bytes: int = LARGEST_WINDOW
    max_header_list_bytes: int = 16_384
    max_frame_size: int = 262_144
    max_continuations: int = 16

    def __post_init__(self) -> None:
        if not DEFAULT_FRAME_SIZE <= self.max_frame_size <= LARGEST_FRAME_SIZE:
            raise ValueError(f"max_frame_size out of range: {self.max_frame_size}")
        for name in (each.name for each in fields(self)):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive: {getattr(self, name)}")
