"""Decides who may operate the server, by the listener through which a call came in.

Behind a sidecar on the same host every caller is loopback (docs/operations.md).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tfs.core.call import Peer
from tfs.core.errors import InvalidArgument, PermissionDenied

ADMIN_LISTENER: Final = "admin"
"""The name of the listener of --admin_socket_path, which the permissions of its file
protect."""


class AdminFrom(enum.Enum):
    """The ways by which a call can come in."""

    LOOPBACK = "loopback"
    SOCKET = "socket"
    MTLS = "mtls"
    ANY = "any"


DEFAULT_ADMIN_FROM: Final = frozenset({AdminFrom.LOOPBACK, AdminFrom.SOCKET})


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The ways in that are allowed. Immutable."""

    allowed: frozenset[AdminFrom] = DEFAULT_ADMIN_FROM

    def check(self, peer: Peer) -> None:
        """Returns if this caller may operate the server.

        Raises:
            PermissionDenied: It may not; the message says which ways in are allowed.

        """
        if AdminFrom.ANY in self.allowed or peer.listener == ADMIN_LISTENER:
            return
        if ways_of(peer) & self.allowed:
            return
        names = ", ".join(sorted(each.value for each in self.allowed)) or "nowhere else"
        raise PermissionDenied(
            f"{peer.address} may not operate this server: --admin_from allows {names}, "
            "and --admin_socket_path has a socket of its own"
        )


def ways_of(peer: Peer) -> frozenset[AdminFrom]:
    """Returns the ways in that a caller came by."""
    ways = set()
    if peer.address.startswith("unix:"):
        ways.add(AdminFrom.SOCKET)
    elif peer.is_loopback:
        ways.add(AdminFrom.LOOPBACK)
    if peer.identity:
        ways.add(AdminFrom.MTLS)
    return frozenset(ways)


def read_admin_from(text: str) -> frozenset[AdminFrom]:
    """Reads "loopback,socket".

    Raises:
        InvalidArgument: A word is none of the four.

    """
    ways = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            ways.add(AdminFrom(word))
        except ValueError:
            known = ", ".join(each.value for each in AdminFrom)
            raise InvalidArgument(
                f"--admin_from: {word!r} is none of: {known}"
            ) from None
    return frozenset(ways)
