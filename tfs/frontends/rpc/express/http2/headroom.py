"""Decides how much large requests and unread answers may take together.

The operator's limit (``--max_receive_bytes``) is what a crowd of good clients may need.
But a few clients that send and never finish, or ask and never read, would also fill it,
and a server of 300 MB would grow to 800. So at first only a sixteenth of it is open to
all. The rest is lent to one connection at a time, so that it can finish what it began.
While good clients wait for each other, a little more is opened every second.

A client that holds a part of the room and makes no progress is cut off while others
wait: an upload after five seconds, the one for which all others wait after one or two,
and a reader after one. So no more is opened before these times are over, after anybody
was cut off, or for clients that send next to nothing. This tells a crowd from an
attack. Rejected: a smaller limit, because an image of 60 MB, or fifty clients behind
slow lines, are no attack.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 16
_LEAST_BYTES: Final = 8 << 20
# At first no more than this fraction (1/4) of a small limit is open to all. What uploads
# that are not whole take of it, none can use to become whole: with 3 of 4 MB open, half of
# a crowd's requests of 1 MB waited until others were given up.
_LARGEST_SHARE: Final = 4
_STEPS: Final = 64  # one step is this fraction (1/64) of the limit
# Looks, a second apart, before more is opened for readers. Those that make no progress
# are gone by then.
_LOOKS_BEFORE_MORE: Final = 7
_UPLOADS_BEFORE_MORE: Final = 20  # the same for uploads, which go on one by one
_TURNOVER_S: Final = 16  # time in which uploads have to use all that is open
_FAR_TOO_MUCH: Final = 2  # as a multiple of what is open
_READERS: Final = 4  # one client may take this fraction (1/4) of what is open


class Headroom:
    """How much of the receive budget's limit is open, and how much unread answers take of it.

    Loop-confined.

    Attributes:
        limit_bytes: The server's ``--max_receive_bytes``.
        open_bytes: How much windows, held requests and unread answers may take together
            before uploads have to wait for each other.
        unread_bytes: Bytes of answers that clients did not take yet; updated by the
            backlog.
        waiting_bytes: Bytes of whole requests that wait for readers; updated by
            sessions.
        begun_bytes: Bytes of requests that had to wait and are being worked on now.

    Args:
        limit_bytes: As above.
        least_bytes: The least that is open if the limit is small. Answers may take all
            of it, requests no more than a quarter of the limit.

    """

    __slots__ = (
        "_least_bytes",
        "_least_to_answers_bytes",
        "_most_bytes",
        "_num_contested",
        "_num_cut_off",
        "_step_bytes",
        "_uploaded_bytes",
        "begun_bytes",
        "limit_bytes",
        "open_bytes",
        "unread_bytes",
        "waiting_bytes",
    )

    def __init__(self, limit_bytes: int, least_bytes: int = _LEAST_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._most_bytes = limit_bytes - limit_bytes // 4
        self._least_bytes = min(
            max(limit_bytes // _SHARE, least_bytes), limit_bytes // _LARGEST_SHARE
        )
        self._least_to_answers_bytes = least_bytes
        self._step_bytes = max(1, limit_bytes // _STEPS)
        self.open_bytes = self._least_bytes
        self.unread_bytes = 0
        self.waiting_bytes = 0
        self.begun_bytes = 0
        self._num_contested = 0
        self._num_cut_off = 0
        self._uploaded_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether unread answers, and requests that wait for them, take all that is open."""
        taken_bytes = self.unread_bytes + self.waiting_bytes
        return taken_bytes >= self.open_to_answers_bytes

    @property
    def is_tight(self) -> bool:
        """Whether unread answers take over half of what is open to them."""
        return 2 * self.unread_bytes > self.open_to_answers_bytes

    def would_block(self, unread_bytes: int) -> bool:
        """Tells whether so much unread may keep a request waiting, so that idle readers go.

        With less unread, a request of any size may begin.
        """
        return unread_bytes > self.open_to_answers_bytes // _READERS

    def has_room(self, num_bytes: int) -> bool:
        """Tells whether a request of so many bytes, and as long an answer, may begin.

        A request that is longer than all that is open may also begin, while little is
        unread.
        """
        open_bytes = self.open_to_answers_bytes
        unread_bytes = self.unread_bytes + self.begun_bytes
        return unread_bytes + num_bytes <= open_bytes or (
            unread_bytes <= open_bytes // _READERS
        )

    @property
    def open_to_answers_bytes(self) -> int:
        """If more than this is unread in all, large requests wait for readers.

        Answers may be far longer than the requests for which an operator sets the
        limit.
        """
        return max(self.open_bytes, self._least_to_answers_bytes)

    @property
    def most_unread_bytes(self) -> int:
        """If more than this is unread, who reads nothing gets no answer that would wait.

        Small requests wait for nobody, so their answers may exceed what is open.
        """
        return self.open_to_answers_bytes * _FAR_TOO_MUCH

    @property
    def open_to_reader_bytes(self) -> int:
        """If a connection has more than this unread, its large requests wait for its reader."""
        return self.open_to_answers_bytes // _READERS

    def look(self, is_contested: bool, num_cut_off: int, uploaded_bytes: int) -> None:
        """Adjusts how much is open. To be called once a second.

        Args:
            is_contested: Whether anybody waits for room.
            num_cut_off: How many clients were cut off for being slow since the start.
            uploaded_bytes: Bytes of large requests that have arrived whole since the
                start. Those that were given up do not count as use of what is open.

        """
        used_bytes = uploaded_bytes - self._uploaded_bytes
        self._uploaded_bytes = uploaded_bytes
        if is_contested and num_cut_off == self._num_cut_off:
            self._num_contested += 1
            if self.is_tight:
                gets_more = self._num_contested > _LOOKS_BEFORE_MORE
            else:
                gets_more = (
                    self._num_contested > _UPLOADS_BEFORE_MORE
                    and used_bytes * _TURNOVER_S >= self.open_bytes
                )
            if gets_more:
                self.open_bytes = min(
                    self._most_bytes, self.open_bytes + self._step_bytes
                )
            return
        self._num_contested = 0
        self._num_cut_off = num_cut_off
        self.open_bytes = max(self._least_bytes, self.open_bytes - self._step_bytes)
