"""One client's whole requests that wait until answers have been read.

While clients leave many answers unread, requests whose answers would add to them wait
here, and are handed to their handlers in the order in which they arrived. A client that
reads its answers does not wait for those that do not, as long as there is room.
"""

from __future__ import annotations

from typing import Final, Protocol

from tfs.core.call import MethodKind
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES
from tfs.frontends.rpc.express.answer_room import AnswerRoom
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.http2.connection import Connection

_UNARY: Final = MethodKind.UNARY
_KERNEL_BYTES: Final = 4 << 20  # a socket takes this even if its client does not read
# Small requests may begin with this many times as much unread as large ones.
_SMALL_MORE: Final = 4


class AnswerReader(Protocol):
    """A client as a reader of answers. Loop-confined."""

    connection: Connection

    @property
    def unread_bytes(self) -> int:
        """Bytes of its answers that the kernel has not taken yet."""
        ...


class WaitingRequests:
    """The requests of one client that wait for readers. Confined to the serving loop.

    The client's calls ask :meth:`may_go_on` for each whole request while anything is
    unread, and hand it over with :meth:`add` if it may not. The shortage gives clients
    their turns by :meth:`begin`, in the order of ``queue``.

    Invariants: whoever waits is in ``queue``. ``headroom.waiting_bytes`` is the size of
    all requests that wait, of any client.

    Attributes:
        begun_bytes: Bytes that the requests in progress may take, as far as the server
            counts them.

    Args:
        reader: The client.
        room: What answers may take, of all clients.
        queue: The clients with requests that wait, the longest waiting first.
        num_at_once: At most this many requests begin in one turn.

    """

    __slots__ = (
        "_calls",
        "_num_at_once",
        "_queue",
        "_reader",
        "_room",
        "begun_bytes",
    )

    def __init__(
        self,
        reader: AnswerReader,
        room: AnswerRoom,
        queue: dict[WaitingRequests, None],
        num_at_once: int,
    ) -> None:
        self._reader = reader
        self._room = room
        self._queue = queue
        self._num_at_once = num_at_once
        # Usually empty, and an empty deque takes 700 bytes more, on every connection.
        self._calls: list[ExpressCall] = []
        self.begun_bytes = 0

    def may_go_on(self, call: ExpressCall, message: bytes | memoryview) -> bool:
        """Tells whether a request need not wait, and counts the long answer it may have.

        Requests that came earlier go first.
        """
        sizes = self._room.sizes
        num_bytes = sizes.expected_bytes(message, self)
        if self._must_wait(call, len(message), num_bytes):
            return False
        if num_bytes > len(message):
            if self._calls:
                return False
            self._room.take(call, self, num_bytes)
        elif sizes.by_model and sizes.is_trusted(message, self):
            self._room.take(call, self, num_bytes)
        return True

    def may_grow(self, call: ExpressCall, num_bytes: int) -> bool:
        """Tells whether a request in progress may take so much, and counts it if so.

        Requests that wait go first, unless this one has waited for as much.
        """
        room = self._room
        if num_bytes < LARGE_BYTES or room.has_taken(call, num_bytes):
            return True
        room.give_back(call)  # it must not wait for itself
        if self._calls or self._must_wait(call, len(call.message), num_bytes):
            return False
        room.take(call, self, num_bytes)
        return True

    def add(self, call: ExpressCall, num_bytes: int = 0) -> None:
        """Lets a whole request wait for its turn.

        Args:
            call: The request's.
            num_bytes: What it is known to take; 0 if only its length is known.

        """
        if num_bytes:
            self._room.wanted[call] = num_bytes
        self._calls.append(call)
        self._queue[self] = None
        self._room.headroom.waiting_bytes += len(call.message)

    def forget(self, call: ExpressCall) -> None:
        """Removes a request, if it waits."""
        if call in self._calls:
            self._calls.remove(call)
            self._room.wanted.pop(call, None)
            self._room.headroom.waiting_bytes -= len(call.message)

    @property
    def may_begin(self) -> bool:
        """Whether the first waiting request may begin, or none waits."""
        if not self._calls:
            return True
        call = self._calls[0]
        return not self._must_wait(call, len(call.message), self._expected_bytes(call))

    @property
    def is_held_up(self) -> bool:
        """Whether a request waits for others to read, not for its own client."""
        most_bytes = self._room.headroom.open_to_reader_bytes
        return bool(self._calls) and self._reader.unread_bytes <= most_bytes

    def begin(self) -> None:
        """Begins requests that waited, as far as they may; contains every exception.

        It begins one large request at most, so that other clients have their turn.
        """
        room = self._room
        num_left = self._num_at_once
        while num_left > 0 and self._calls and self.may_begin:
            call = self._calls[0]
            num_bytes = self._expected_bytes(call)
            self.forget(call)
            room.take(call, self, num_bytes)
            is_large = len(call.message) >= LARGE_BYTES
            num_left = 0 if is_large else num_left - 1
            call.dispatch()
        self._queue.pop(self, None)
        if self._calls:
            self._queue[self] = None  # move it behind the others

    def close(self) -> None:
        """Leaves the queue. Whoever owns the calls ends them, and forgets them."""
        self._queue.pop(self, None)
        self._room.sizes.forget(self)

    def _expected_bytes(self, call: ExpressCall) -> int:
        """Returns how much a request that waits may take, or its answer."""
        room = self._room
        known_bytes = room.sizes.expected_bytes(call.message, self)
        return max(known_bytes, room.wanted.get(call, 0))

    def _must_wait(self, call: ExpressCall, size: int, num_bytes: int) -> bool:
        """Tells whether a request has to wait because too many answers are unread.

        A small request begins if its own client reads well, whatever others do, unless
        its answer is known to be long. Of requests with long answers, a client may have
        as many in progress as it has read before; of others a few, however long the
        answer is that it reads.

        Args:
            call: The request's.
            size: The size of the request in bytes.
            num_bytes: The size of its answer or its own, whichever is larger.

        """
        if call.route.kind is not _UNARY:
            return False
        headroom = self._room.headroom
        unread_bytes = self._reader.unread_bytes
        most_bytes = headroom.open_to_reader_bytes
        if num_bytes >= LARGE_BYTES:
            if size < num_bytes:
                taking_bytes = unread_bytes + self.begun_bytes + num_bytes
                sent_bytes = self._reader.connection.sent_bytes
                if taking_bytes <= sent_bytes - _KERNEL_BYTES:
                    return False
                unread_bytes += self.begun_bytes
            return unread_bytes > most_bytes or not headroom.has_room(num_bytes)
        if headroom.is_full:
            must_wait = unread_bytes >= LARGE_BYTES
        else:
            must_wait = unread_bytes > most_bytes * _SMALL_MORE
        return must_wait and not self._may_have_short(most_bytes)

    def _may_have_short(self, most_bytes: int) -> bool:
        """Tells whether the client has read as much as its short answers may take.

        That is for those who read a long answer: what they have not read yet does not
        tell whether they read.
        """
        connection = self._reader.connection
        num_begun = len(connection.streams) - len(self._calls)
        read_bytes = connection.sent_bytes - _KERNEL_BYTES
        return num_begun * LARGE_BYTES <= min(most_bytes, read_bytes)
