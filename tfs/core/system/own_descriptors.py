"""What a server keeps from processes that models fork from it: its ports and locks.

A model in the server's own process may fork, and its child may outlive the server. It has
copies of all descriptors. So a server that was killed went on listening in that child:
its clients waited for their deadlines instead of being told that nobody answers, and the
next server found its port, and its state directory, in use. A child therefore looks
through its descriptors first of all. Closing them would not do: objects that own them
would later close numbers that are something else by then, so each leads to /dev/null.

Sockets are told by the address that they have here, because connections come and go, and
those of grpcio are known to nobody else. (Models' own connections have other ports.)
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import Final

_UNIX: Final = "unix:"


class OwnDescriptors:
    """Thread-safe: its sets are changed by single operations."""

    def __init__(self) -> None:
        self._places: set[int | str] = set()  # ports, and paths of Unix sockets
        self._fds: set[int] = set()

    def add_address(self, address: str) -> None:
        """Keeps the sockets at an address to ourselves, connections to it included.

        Args:
            address: "host:port" or "unix:/path".

        """
        self._places.add(_place(address))

    def remove_address(self, address: str) -> None:
        """Takes an address back that is not ours any more."""
        self._places.discard(_place(address))

    def add(self, fd: int) -> None:
        """Keeps a descriptor to ourselves, until ``remove``: before it is closed."""
        self._fds.add(fd)

    def remove(self, fd: int) -> None:
        """Takes a descriptor back."""
        self._fds.discard(fd)

    def drop(self) -> None:
        """Lets all of them go, in a process that was just forked."""
        if not self._places and not self._fds:
            return
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd in self._fds or self._is_here(fd):
                os.dup2(nothing, fd, inheritable=False)
        os.close(nothing)

    def _is_here(self, fd: int) -> bool:
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return self._is_at_our_place(socket.socket(fileno=fd))
        return False

    def _is_at_our_place(self, opened: socket.socket) -> bool:
        try:
            name = opened.getsockname()
        finally:
            opened.detach()
        place = name[1] if isinstance(name, tuple) else name
        return place in self._places


def _place(address: str) -> int | str:
    if address.startswith(_UNIX):
        return address.removeprefix(_UNIX)
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else address


OWN: Final = OwnDescriptors()
"""Of this process."""

os.register_at_fork(after_in_child=OWN.drop)
