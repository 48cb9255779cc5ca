"""The room that the server has for answers, and the requests in progress that take it.

How long an answer is shows only once it has been computed, and then it is too late to
wait. So a request takes room for its answer when it begins: as much as the request
itself takes, or as the last long answer of its model took, or as its signature says.
The room is free again when the request is over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tfs.frontends.rpc.answer_sizes import LARGE_BYTES, AnswerSizes
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.http2.headroom import Headroom

# Long answers that were taken for short ones may be sent while this many times as much is
# unread as large requests may begin with.
_UNEXPECTED_MORE: Final = 4


class RoomTaker(Protocol):
    """A client's requests, as the room that they take sees them.

    Attributes:
        begun_bytes: Bytes that those in progress may take, as far as they are counted.

    """

    begun_bytes: int


@dataclass(slots=True, frozen=True)
class BegunCall:
    """A request in progress. Immutable.

    Attributes:
        call: A weak reference to the call, which is gone when nobody works on it.
        taker: The client that it came from.
        num_bytes: Bytes that its answer may take.

    """

    call: weakref.ref[ExpressCall]
    taker: RoomTaker
    num_bytes: int

    @property
    def is_over(self) -> bool:
        """Whether the call was answered, or was cut off and dropped by its handler."""
        call = self.call()
        return call is None or call.is_finished


class AnswerRoom:
    """Counts what requests in progress take of the headroom. Loop-confined.

    Invariant: ``headroom.begun_bytes`` and the ``begun_bytes`` of all clients are the
    sum over ``begun``.

    Attributes:
        headroom: Decides how much requests and unread answers may take together.
        sizes: The models that are known for long answers.
        begun: Large requests, or requests with large answers, that are in progress, if
            they may be many: those that waited, and those of models with long answers,
            even if their clients' last ones were short.
        wanted: Waiting requests that are known to be far longer in memory than they
            were sent, and how long.

    """

    __slots__ = ("begun", "headroom", "sizes", "wanted")

    def __init__(self, headroom: Headroom, sizes: AnswerSizes) -> None:
        self.headroom = headroom
        self.sizes = sizes
        self.begun: list[BegunCall] = []
        self.wanted: dict[ExpressCall, int] = {}

    def take(self, call: ExpressCall, taker: RoomTaker, num_bytes: int) -> None:
        """Notes that a request begins whose answer may take that many bytes."""
        self.begun.append(BegunCall(weakref.ref(call), taker, num_bytes))
        taker.begun_bytes += num_bytes
        self.headroom.begun_bytes += num_bytes

    def has_room_for(self, call: ExpressCall, num_bytes: int) -> bool:
        """Tells whether a long answer may be sent.

        It may, unless others of its model are known to be long and this one was taken
        for short, because its client's last one was. Then there has to be room.
        """
        headroom = self.headroom
        most_bytes = headroom.open_to_answers_bytes * _UNEXPECTED_MORE
        return (
            headroom.has_room(num_bytes)
            or headroom.unread_bytes + num_bytes <= most_bytes
            or not any(
                each.num_bytes < LARGE_BYTES and each.call() is call
                for each in self.begun
            )
        )

    def has_taken(self, call: ExpressCall, num_bytes: int) -> bool:
        """Tells whether a request in progress has taken at least so much."""
        return any(
            each.num_bytes >= num_bytes and each.call() is call for each in self.begun
        )

    def give_back(self, call: ExpressCall) -> None:
        """Frees the room of a request that is to take more, or to wait for it."""
        self._free(lambda each: each.call() is call)

    def forget_ended(self) -> None:
        """Frees the room of requests that are over."""
        self._free(lambda each: each.is_over)

    def _free(self, is_free: Callable[[BegunCall], bool]) -> None:
        begun = self.begun
        if not any(map(is_free, begun)):
            return
        self.begun = []
        for each in begun:
            if is_free(each):
                each.taker.begun_bytes -= each.num_bytes
                self.headroom.begun_bytes -= each.num_bytes
            else:
                self.begun.append(each)
