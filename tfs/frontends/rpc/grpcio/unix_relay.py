"""Gives the clients of grpcio's Unix sockets names, and passes their bytes on.

grpcio calls every client of a Unix socket "unix:", so what one of them sends or leaves
unread could not be told from what the others do. So we accept these clients, and for
each we connect to a Unix socket of grpcio's in a directory that nobody else may enter.
The system gives our end of that connection a name, which grpcio tells us with each
call. Each byte is copied twice more.

Instead of a directory, grpcio could listen on a loopback port or on an abstract
address. But those have no permissions, and the path of a listener has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from dataclasses import replace
from typing import Final

from tfs.core.call import ListenerOptions
from tfs.core.errors import Unavailable
from tfs.frontends.rpc.grpcio.relayed_connection import RelayedConnection
from tfs.frontends.rpc.grpcio.sockets import RELAYED, Traffic
from tfs.frontends.rpc.unix_socket import UNIX, bind_unix, remedy

_ACCEPTS: Final = 64  # clients accepted in one turn of the loop
_PREFIX: Final = "tfs-"
# A path of a socket may have 107 bytes, and what follows this directory has 16.
_MOST_FOLDER_BYTES: Final = 91
_PAUSE_S: Final = 1.0  # before accepting goes on after it failed: no descriptor is free


class UnixRelay:
    """Stands between Unix sockets and grpcio. Confined to grpcio's thread.

    ``open`` each listener before grpcio's servers start, and call ``start`` afterwards.

    Attributes:
        num_disconnected: Number of connections that were ended by ``disconnect``.

    """

    def __init__(self) -> None:
        self.num_disconnected = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._folder: str | None = None
        self._listening: dict[socket.socket, ListenerOptions] = {}  # with inner address
        self._paths: list[str] = []
        self._lines: dict[str, RelayedConnection] = {}

    def open(self, listener: ListenerOptions) -> ListenerOptions:
        """Binds a listener's socket; returns the options of grpcio's socket behind it.

        Raises:
            Unavailable: It cannot be bound.

        """
        path = listener.address.removeprefix(UNIX)
        try:
            if self._folder is None:
                self._folder = _make_folder(listener)
            listening = bind_unix(path, listener.unix_mode)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {listener.address} ({listener.name}): "
                f"{error.strerror or error}; {remedy(path, error)}"
            ) from error
        inner_path = os.path.join(self._folder, str(len(self._paths)))
        inner = replace(listener, address=UNIX + inner_path)
        self._paths.append(path)
        self._listening[listening] = inner
        return inner

    def start(self) -> None:
        """Begins to accept clients. On the running loop."""
        self._loop = asyncio.get_running_loop()
        for listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    def stop_listening(self) -> None:
        """Accepts no more clients and removes the paths; idempotent."""
        # This comes first: a path on which nobody listens may be another server's soon.
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._paths.clear()
        for listening in self._listening:
            if self._loop is not None:
                self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()

    def close(self) -> None:
        """Passes on what grpcio has written, then ends all connections; idempotent."""
        self.stop_listening()
        for line in list(self._lines.values()):
            line.flush()
            line.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def traffic(self, peer: str) -> Traffic | None:
        """Returns what went over a client's connection; None if there is none."""
        line = self._lines.get(peer)
        return None if line is None else line.traffic()

    def survey(self) -> dict[str, Traffic]:
        """Returns what went over each connection, by the client's name."""
        return {peer: line.traffic() for peer, line in self._lines.items()}

    def disconnect(self, peer: str) -> bool:
        """Ends a client's connection; returns whether there was one."""
        line = self._lines.get(peer)
        if line is None:
            return False
        line.close()
        self.num_disconnected += 1
        return True

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                client = listening.accept()[0]
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                self._pause(listening)
                return
            self._connect(client, self._listening[listening].address)

    def _pause(self, listening: socket.socket) -> None:
        loop = self._loop
        assert loop is not None
        loop.remove_reader(listening)

        def go_on() -> None:
            if listening in self._listening:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(_PAUSE_S, go_on)

    def _connect(self, client: socket.socket, address: str) -> None:
        """Connects a client to grpcio, or ends its connection."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(client)
            try:
                inner = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                inner.setblocking(False)
                inner.bind("")  # the system chooses an abstract name
                inner.connect(address.removeprefix(UNIX))
            except OSError:
                return
            name = RELAYED + inner.getsockname()[1:].decode()
            assert self._loop is not None
            line = RelayedConnection(
                self._loop, client, inner, lambda: self._lines.pop(name, None)
            )
            self._lines[name] = line
            stack.pop_all()


def _make_folder(listener: ListenerOptions) -> str:
    """Makes a directory for grpcio's sockets that only this user may enter.

    It lies beside the listener's path if the directory for temporary files cannot be
    written, or if its path is too long.

    Raises:
        OSError: It cannot be made.
        Unavailable: Every path would be too long.

    """
    beside = os.path.dirname(listener.address.removeprefix(UNIX))
    with contextlib.suppress(OSError):
        if len(os.fsencode(tempfile.gettempdir())) <= _MOST_FOLDER_BYTES:
            return tempfile.mkdtemp(prefix=_PREFIX)
    if len(os.fsencode(beside)) > _MOST_FOLDER_BYTES:
        raise Unavailable(
            f"cannot listen on {listener.address} ({listener.name}): no directory for "
            "temporary files can be used for sockets; set TMPDIR to one that can be "
            f"written, with a path of at most {_MOST_FOLDER_BYTES} bytes"
        )
    return tempfile.mkdtemp(prefix=_PREFIX, dir=beside)
