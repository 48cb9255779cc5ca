"""Decides who may operate the server, by the listener through which a call came in.

Over HTTP another rule holds: any web page that an operator opens can send requests from
loopback. So only a verified certificate counts there, or the key that the server made;
and what a browser shows by itself, a certificate or a cookie, not for pages of others.

Behind a sidecar on the same host every caller is loopback (docs/operations.md).
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

from tfs.core.call import Call, Peer
from tfs.core.errors import PermissionDenied

ADMIN_LISTENER: Final = "admin"
"""The name of the listener of --admin_socket_path, which the permissions of its file
protect."""


HTTP: Final = "http"
"""The name of the listener of --rest_api_port; the one of its Unix socket begins so, too."""

KEY_COOKIE: Final = "tfs_key"
"""In which the page keeps the server's key."""


class AdminFrom(enum.Enum):
    """The ways by which a call can come in."""

    LOOPBACK = "loopback"
    SOCKET = "socket"
    MTLS = "mtls"
    ANY = "any"


DEFAULT_ADMIN_FROM: Final = frozenset({AdminFrom.LOOPBACK, AdminFrom.SOCKET})


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The ways in that are allowed. Immutable.

    Attributes:
        allowed: By the listener; over HTTP only ``mtls`` counts.
        key: What callers over HTTP may show instead; empty for none.

    """

    allowed: frozenset[AdminFrom] = DEFAULT_ADMIN_FROM
    key: str = field(default="", repr=False)

    def check(self, call: Call) -> None:
        """Returns if this caller may operate the server.

        Raises:
            PermissionDenied: It may not; the message says which ways in are allowed.

        """
        peer = call.peer
        if peer.listener.startswith(HTTP):
            self._check_http(call)
            return
        if AdminFrom.ANY in self.allowed or peer.listener == ADMIN_LISTENER:
            return
        if ways_of(peer) & self.allowed:
            return
        names = ", ".join(sorted(each.value for each in self.allowed)) or "nowhere else"
        raise PermissionDenied(
            f"{peer.address} may not operate this server: --admin_from allows {names}, "
            "and --admin_socket_path has a socket of its own"
        )

    def _check_http(self, call: Call) -> None:
        headers = {key: str(value) for key, value in call.metadata}
        origin = headers.get("origin")
        # To a browser all ports of a host are one site, so that it shows cookies to each.
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
        if AdminFrom.MTLS in self.allowed and call.peer.identity and is_own:
            return
        shown = _shown_key(headers, with_cookie=is_own)
        if self.key and hmac.compare_digest(shown, self.key.encode()):
            return
        raise PermissionDenied(
            "over HTTP this server is operated with a verified certificate (mtls in "
            "--admin_from) or with its key, as Authorization: Bearer KEY; tfs page "
            "prints it"
        )


def _shown_key(headers: Mapping[str, str], *, with_cookie: bool) -> bytes:
    """Returns the key that a caller over HTTP shows; empty if it shows none."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return shown.strip().encode()
    if not with_cookie:
        return b""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(KEY_COOKIE)
    except CookieError:
        return b""
    return b"" if cookie is None else cookie.value.encode()


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
        ValueError: A word is none of the four.

    """
    words = {part.strip() for part in text.split(",")} - {""}
    known = [each.value for each in AdminFrom]
    if wrong := words - {*known}:
        raise ValueError(f"{', '.join(wrong)} is none of: {', '.join(known)}")
    return frozenset(map(AdminFrom, words))
