"""What the parts of this transport know of its clients' connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that went over a connection since it was opened. Immutable.

    Attributes:
        received_bytes: Bytes that arrived, whether grpcio has read them or not; those
            that TLS adds are left out.
        acked_bytes: Bytes that the client's system has acknowledged.
        unread_bytes: Bytes that arrived and that grpcio has not read yet.

    """

    received_bytes: int
    acked_bytes: int
    unread_bytes: int


class Connections(Protocol):
    """The connections of clients, by their names.

    Attributes:
        num_disconnected: Number of connections that were ended by :meth:`disconnect`.

    """

    num_disconnected: int

    def traffic(self, peer: str) -> Traffic | None:
        """Returns what went over a connection; None if it is not known."""

    def address(self, peer: str) -> str:
        """Returns the client's address, for the log."""

    def disconnect(self, peer: str) -> bool:
        """Ends a connection; returns False if that is not possible."""
