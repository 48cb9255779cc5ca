"""Stands between clients and grpcio, and passes their bytes on.

grpcio cannot be kept from taking what clients send: headers without end, or calls that
are reset at once. And it calls every client of a Unix socket "unix:", so what one of
them sends or leaves unread could not be told from what the others do. So we accept the
clients, and for each we connect to a Unix socket of grpcio's in a directory that nobody
else may enter. The system gives our end of that connection a name, which grpcio tells
us with each call. What clients send is looked at frame by frame
(:mod:`tfs.frontends.rpc.grpcio.request_frames`). Each byte is copied twice more.

Only clients with TLS connect to grpcio itself, which decrypts what they send.

Instead of a directory, grpcio could listen on a loopback port or on an abstract
address. But those have no permissions, and the path of a listener has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Final

from tfs.core.call import ListenerOptions
from tfs.core.errors import Unavailable
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.left_folders import PREFIX, remove_left_folders
from tfs.frontends.rpc.grpcio.relayed_connection import RelayedConnection
from tfs.frontends.rpc.grpcio.sockets import RELAYED, Traffic
from tfs.frontends.rpc.tcp_socket import accept_tcp, bind_tcp
from tfs.frontends.rpc.unix_socket import UNIX, bind_unix, remedy

log = logging.getLogger(__name__)

_ACCEPTS: Final = 64  # clients accepted in one turn of the loop
# A path of a socket may have 107 bytes, and what follows this directory has 16.
_MOST_FOLDER_BYTES: Final = 91
# With the system's 208 KB this thread and grpcio's change places for each part: requests
# of 10 MB take a tenth more then.
_REQUEST_BUFFER_BYTES: Final = 262_144
_LOG_S: Final = 1.0  # between two lines, because who is disconnected may come again
_PAUSE_S: Final = 1.0  # before accepting goes on after it failed: no descriptor is free


@dataclass(frozen=True, slots=True)
class Client:
    """Who a connection's client is. Immutable.

    Attributes:
        address: As in :class:`tfs.core.call.Peer`.
        is_loopback: Whether it is on this machine.

    """

    address: str
    is_loopback: bool


@dataclass(frozen=True, slots=True)
class Door:
    """A listener of ours. Immutable.

    Attributes:
        address: Where it listens, with the real port.
        inner: The options of grpcio's socket behind it.

    """

    address: str
    inner: ListenerOptions


class Relay:
    """Stands between clients and grpcio. Confined to grpcio's thread.

    ``open`` each listener before grpcio's servers start, and call ``start`` afterwards.

    Args:
        gate: Limits the calls of all connections together.
        most_calls: How many calls one connection may have.

    Attributes:
        num_disconnected: Number of connections that were ended by ``disconnect``.

    """

    def __init__(self, gate: CallGate, most_calls: int) -> None:
        self.num_disconnected = 0
        self._gate = gate
        self._most_calls = most_calls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._folder: str | None = None
        self._listening: dict[socket.socket, Door] = {}
        self._paths: list[str] = []
        self._num_doors = 0
        self._num_floods = 0  # that were not logged yet
        self._logged_s = float("-inf")
        self._lines: dict[str, tuple[RelayedConnection, Client]] = {}

    def open(self, listener: ListenerOptions) -> Door:
        """Binds a listener's sockets.

        Raises:
            Unavailable: It cannot be bound.

        """
        path = ""
        address = listener.address
        try:
            if self._folder is None:
                self._folder = _make_folder(listener)
                remove_left_folders(os.path.dirname(self._folder), time.time())
            if address.startswith(UNIX):
                path = address.removeprefix(UNIX)
                sockets = [bind_unix(path, listener.unix_mode)]
                self._paths.append(path)
            else:
                sockets, address = bind_tcp(address)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {listener.address} ({listener.name}): "
                f"{error.strerror or error}; {remedy(path, error)}"
            ) from error
        inner_path = os.path.join(self._folder, str(self._num_doors))
        self._num_doors += 1
        door = Door(address, replace(listener, address=UNIX + inner_path))
        for listening in sockets:
            self._listening[listening] = door
        return door

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
        for line, _ in list(self._lines.values()):
            line.flush()
            line.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def client(self, peer: str) -> Client | None:
        """Returns who a client is; None if it is gone."""
        line = self._lines.get(peer)
        return None if line is None else line[1]

    def traffic(self, peer: str) -> Traffic | None:
        """Returns what went over a client's connection; None if there is none."""
        line = self._lines.get(peer)
        return None if line is None else line[0].traffic()

    def survey(self) -> dict[str, Traffic]:
        """Returns what went over each connection, by the client's name."""
        return {peer: line.traffic() for peer, (line, _) in self._lines.items()}

    def disconnect(self, peer: str) -> bool:
        """Ends a client's connection; returns whether there was one."""
        line = self._lines.get(peer)
        if line is None:
            return False
        line[0].close()
        self.num_disconnected += 1
        return True

    def _accept(self, listening: socket.socket) -> None:
        door = self._listening[listening]
        for _ in range(_ACCEPTS):
            try:
                if listening.family == socket.AF_UNIX:
                    connection = listening.accept()[0]
                    connection.setblocking(False)
                    # Only processes on this machine can open the path.
                    client = Client(door.address, is_loopback=True)
                else:
                    connection, address, is_loopback = accept_tcp(listening)
                    client = Client(address, is_loopback)
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                self._pause(listening)
                return
            self._connect(connection, client, door.inner.address)

    def _pause(self, listening: socket.socket) -> None:
        loop = self._loop
        assert loop is not None
        loop.remove_reader(listening)

        def go_on() -> None:
            if listening in self._listening:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(_PAUSE_S, go_on)

    def _connect(self, connection: socket.socket, client: Client, address: str) -> None:
        """Connects a client to grpcio, or ends its connection."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            try:
                inner = stack.enter_context(socket.socket(socket.AF_UNIX))
                inner.setblocking(False)
                inner.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BUFFER_BYTES
                )
                inner.bind("")  # the system chooses an abstract name
                inner.connect(address.removeprefix(UNIX))
            except OSError:
                return
            name = RELAYED + inner.getsockname()[1:].decode()
            assert self._loop is not None
            line = RelayedConnection(
                self._loop,
                connection,
                inner,
                self._gate,
                self._most_calls,
                lambda: self._lines.pop(name, None),
                functools.partial(self._note_flood, client.address),
            )
            self._lines[name] = line, client
            stack.pop_all()

    def _note_flood(self, address: str, what: str) -> None:
        self.num_disconnected += 1
        self._num_floods += 1
        assert self._loop is not None
        now_s = self._loop.time()
        if now_s - self._logged_s >= _LOG_S:
            log.warning(
                "event=flood peer=%s num_closed=%d note=%r",
                address,
                self._num_floods,
                what,
            )
            self._logged_s = now_s
            self._num_floods = 0


def _make_folder(listener: ListenerOptions) -> str:
    """Makes a directory for grpcio's sockets that only this user may enter.

    It lies beside the path of a Unix listener if the directory for temporary files
    cannot be written, or if its path is too long.

    Raises:
        OSError: It cannot be made.
        Unavailable: Every path would be too long.

    """
    beside = os.path.dirname(listener.address.removeprefix(UNIX))
    with contextlib.suppress(OSError):
        if len(os.fsencode(tempfile.gettempdir())) <= _MOST_FOLDER_BYTES:
            return tempfile.mkdtemp(prefix=PREFIX)
    if len(os.fsencode(beside)) > _MOST_FOLDER_BYTES:
        raise Unavailable(
            f"cannot listen on {listener.address} ({listener.name}): no directory for "
            "temporary files can be used for sockets; set TMPDIR to one that can be "
            f"written, with a path of at most {_MOST_FOLDER_BYTES} bytes"
        )
    return tempfile.mkdtemp(prefix=PREFIX, dir=beside)
