"""Disconnects clients of grpcio that keep the server busy and ask for nothing.

grpcio sets no end to SETTINGS, PRIORITY and other frames that only cost time, and none
to a block of headers. Of a call that is reset it keeps 16 KB until we have heard of it.
It reports none of this. Most floods are stopped before grpcio sees them
(:mod:`tfs.frontends.rpc.grpcio.request_frames`). For the rest, the bytes that came over
each connection are counted, and we know which of these were messages. All other bytes, and the calls that a client gives up at
once, fill a bucket for each connection. It leaks with time and with the answers that
the client takes.

The alternative is ``grpc.http.overload_protection``. It also refuses calls of good
clients, does nothing about frames that belong to no call, and took no less memory
(measured with 1.85.1).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tfs.frontends.rpc.grpcio.connections import Traffic

log = logging.getLogger(__name__)

# What an honest call may take besides its message: 16 KB of headers, what was sent of a
# request that is given up (64 KB while the client does not know our settings), and later
# WINDOW_UPDATEs.
_CALL_BYTES: Final = 98_304
_BYTES_PER_S: Final = 65_536  # PINGs, and what else a good client sends beside calls
_ACKED_PER_BYTE: Final = 16  # bytes of answers for each byte of WINDOW_UPDATEs
_MOST_RESETS: Final = 500  # calls, of which a client may have 64 at a time
_RESETS_PER_S: Final = 50.0
_RESETS_PER_ANSWER: Final = 10
# Whoever gives up a request while it is read begins with an empty bucket, so that must
# not be for nothing.
_RESETS_PER_PARDON: Final = 10

# A flood keeps processors busy, so an idle server looks at its clients now and then.
_IDLE: Final = 0.05  # of a core
_LONGEST_S: Final = 10.0

FLOOD_LOOK_S: Final = 0.1
"""Seconds between two looks. A client on the same machine sends 30 MB meanwhile."""

EARLY_S: Final = 1.0
"""A client that gives a call up after this many seconds does not flood us."""


class AllConnections(Protocol):
    """The connections of clients, all at once."""

    def survey(self) -> Mapping[str, Traffic]:
        """Returns what went over each connection, by the client's name."""

    def disconnect(self, peer: str) -> bool:
        """Ends a connection; returns False if that is not possible."""


@dataclass(slots=True)
class _Account:
    """What a client did that asked for nothing."""

    received_bytes: int
    acked_bytes: int
    num_bytes: float = 0.0
    num_resets: float = 0.0


class FloodWatch:
    """Accounts for what each client sends. Confined to grpcio's thread.

    Args:
        connections: The connections of the clients.
        is_reading: Whether a request of a client is being read. Nobody knows how long
            it is, and its pace is watched elsewhere.
        now: The time in seconds.
        most_unread_bytes: What one client may send of calls before we hear of them,
            besides headers. It may send twice as much that is accounted for by nothing.
        cpu_time: The processor time of this process in seconds.

    """

    def __init__(
        self,
        connections: AllConnections,
        is_reading: Callable[[str], bool],
        now: Callable[[], float],
        most_unread_bytes: int,
        cpu_time: Callable[[], float] = time.process_time,
    ) -> None:
        self._most_bytes = 2 * most_unread_bytes
        self._connections = connections
        self._is_reading = is_reading
        self._now = now
        self._cpu_time = cpu_time
        self._asked_s = self._looked_s = now()
        self._cpu_s = cpu_time()
        self._accounts: dict[str, _Account] = {}
        # Since the last look: bytes that are accounted for, calls that were given up
        # less those that were answered, and who gave up a request while it was read.
        self._known_bytes: dict[str, int] = {}
        self._resets: dict[str, int] = {}
        self._pardoned: set[str] = set()

    def note_call(self, peer: str) -> None:
        """Notes that a call has begun."""
        self._known_bytes[peer] = self._known_bytes.get(peer, 0) + _CALL_BYTES

    def note_message(self, peer: str, num_bytes: int) -> None:
        """Notes a message of a client."""
        self._known_bytes[peer] = self._known_bytes.get(peer, 0) + num_bytes

    def note_unfinished(self, peer: str) -> None:
        """Notes that a request ended while it was read; its length stays unknown."""
        self._pardoned.add(peer)
        self._resets[peer] = self._resets.get(peer, 0) + _RESETS_PER_PARDON

    def note_answer(self, peer: str) -> None:
        """Notes that a call was answered, be it with an error."""
        self._resets[peer] = self._resets.get(peer, 0) - _RESETS_PER_ANSWER

    def note_reset(self, peer: str) -> None:
        """Notes that a client gave a call up within :data:`EARLY_S`."""
        self._resets[peer] = self._resets.get(peer, 0) + 1

    def look(self) -> None:
        """Disconnects who floods; to be called every :data:`FLOOD_LOOK_S`."""
        now_s, cpu_s = self._now(), self._cpu_time()
        is_idle = cpu_s - self._cpu_s < _IDLE * (now_s - self._asked_s)
        self._asked_s, self._cpu_s = now_s, cpu_s
        elapsed_s = now_s - self._looked_s
        if is_idle and elapsed_s < _LONGEST_S:
            return
        self._looked_s = now_s
        survey = self._connections.survey()
        accounts, self._accounts = self._accounts, {}
        known_bytes, self._known_bytes = self._known_bytes, {}
        resets, self._resets = self._resets, {}
        pardoned, self._pardoned = self._pardoned, set()
        for peer, traffic in survey.items():
            account = accounts.get(peer)
            if account is None:
                account = _Account(0, 0)
            self._accounts[peer] = account
            num_new = traffic.received_bytes - account.received_bytes
            num_taken = traffic.acked_bytes - account.acked_bytes
            account.received_bytes = traffic.received_bytes
            account.acked_bytes = traffic.acked_bytes
            num_bytes = account.num_bytes + num_new - known_bytes.get(peer, 0)
            num_bytes -= elapsed_s * _BYTES_PER_S + num_taken / _ACKED_PER_BYTE
            account.num_bytes = 0.0 if peer in pardoned else max(0.0, num_bytes)
            num_resets = account.num_resets + resets.get(peer, 0)
            account.num_resets = max(0.0, num_resets - elapsed_s * _RESETS_PER_S)
            if account.num_resets > _MOST_RESETS or (
                account.num_bytes > self._most_bytes and not self._is_reading(peer)
            ):
                log.warning(
                    "event=flood peer=%s idle_bytes=%d num_resets=%d is_closed=%s "
                    "note=%r",
                    peer,
                    account.num_bytes,
                    account.num_resets,
                    self._connections.disconnect(peer),
                    "it sends frames or resets calls, and asks for nothing",
                )
