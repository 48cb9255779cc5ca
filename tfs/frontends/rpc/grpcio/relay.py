"""Stands between clients and grpcio, and passes their bytes on.

grpcio cannot be kept from taking what clients send: headers without end, or calls that
are reset at once. And it calls every client of a Unix socket "unix:", so what one of
them sends or leaves unread could not be told from what the others do. So we accept the
clients, and for each we connect to a Unix socket of grpcio's in a directory that nobody
else may enter. Our end of that connection has a name, which grpcio tells us with each
call. What clients send is looked at frame by frame
(:mod:`tfs.frontends.rpc.grpcio.request_frames`). Each byte is copied twice more.

TLS ends here, too. So grpcio knows no certificates. Who a call's client is, its
certificate's names included, is looked up by the name of our end of the connection,
which no client can choose and which is never used again.

Instead of a directory, grpcio could listen on a loopback port or on an abstract
address. But those have no permissions, and the path of a listener has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from typing import Final

from tfs.core.call import ListenerOptions, Peer
from tfs.core.clock import Clock
from tfs.core.errors import Unavailable
from tfs.core.executor import Executor
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.client_heads import HeadLimits
from tfs.frontends.rpc.grpcio.connections import Traffic
from tfs.frontends.rpc.grpcio.leaving_clients import LeavingClients
from tfs.frontends.rpc.grpcio.left_folders import PREFIX, remove_left_folders
from tfs.frontends.rpc.grpcio.read_turns import ReadTurns
from tfs.frontends.rpc.grpcio.relayed_connection import RelayedConnection
from tfs.frontends.rpc.grpcio.watched_loop import WatchedLoop
from tfs.frontends.rpc.listener import Listener
from tfs.frontends.rpc.tls.handshakes import Handshakes
from tfs.frontends.rpc.tls.tls_stream import TlsStream
from tfs.frontends.rpc.unix_socket import UNIX

log = logging.getLogger(__name__)

# What grpcio calls a client of a Unix socket begins with this.
_RELAYED: Final = "unix-abstract:"
# The same limits as through express.
_MOST_HANDSHAKES: Final = 1024
_HANDSHAKE_S: Final = 10.0
_ACCEPTS: Final = 8  # clients accepted in one turn of the loop, 0.1 ms each
# A path of a socket may have 107 bytes, and what follows this directory has 16.
_MOST_FOLDER_BYTES: Final = 91
# With the system's 208 KB this thread and grpcio's change places for each part: requests
# of 10 MB take a tenth more then.
_REQUEST_BUFFER_BYTES: Final = 262_144
_LOG_S: Final = 1.0  # between two lines, because who is disconnected may come again
_PAUSE_S: Final = 1.0  # before accepting goes on after it failed: no descriptor is free


@dataclass(frozen=True, slots=True)
class Door:
    """A listener of ours. Immutable.

    Attributes:
        listener: It.
        inner_address: Of grpcio's socket behind it.

    """

    listener: Listener
    inner_address: str


class Relay:
    """Stands between clients and grpcio. Confined to grpcio's thread.

    ``open`` each listener before grpcio's servers start, and call ``start`` afterwards.

    Args:
        gate: Limits the calls of all connections together.
        most_calls: How many calls one connection may have.
        clock: The clock.
        executor: Does the cryptography of TLS handshakes.
        head_limits: How long a request's headers may be.

    Attributes:
        num_disconnected: Number of connections that were ended by ``disconnect``.
        num_failed_accepts: How often a client could not be taken. None is accepted for a
            second after that, because the next would fare no better: a descriptor is
            missing, or grpcio is.

    """

    def __init__(
        self,
        gate: CallGate,
        most_calls: int,
        clock: Clock,
        executor: Executor,
        head_limits: HeadLimits = HeadLimits(),  # noqa: B008 - immutable
    ) -> None:
        self.num_disconnected = 0
        self.num_failed_accepts = 0
        self._gate = gate
        self._most_calls = most_calls
        self._clock = clock
        self._executor = executor
        self._head_limits = head_limits
        self._handshakes: Handshakes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: ReadTurns | None = None
        self._folder: str | None = None
        self._doors: list[Door] = []
        self._num_floods = 0  # that were not logged yet
        self._logged_s = float("-inf")
        self._lines: dict[str, tuple[RelayedConnection, Peer]] = {}
        self._leaving = LeavingClients(self._note_gone)
        self._is_empty = asyncio.Event()
        self._is_paused = False

    def open(self, options: ListenerOptions) -> Door:
        """Binds a listener's sockets.

        Raises:
            Unavailable: It cannot be bound, or its certificates cannot be used.

        """
        listener = Listener(options)
        try:
            if self._folder is None:
                self._folder = _make_folder(options)
                remove_left_folders(os.path.dirname(self._folder), time.time())
        except BaseException:
            listener.close()
            raise
        inner_path = os.path.join(self._folder, str(len(self._doors)))
        door = Door(listener, UNIX + inner_path)
        self._doors.append(door)
        return door

    def start(self) -> None:
        """Begins to accept clients. On the running loop."""
        self._loop = asyncio.get_running_loop()
        self._turns = ReadTurns(self._loop)
        self._handshakes = Handshakes(
            WatchedLoop(self._loop, self._clock),
            self._executor,
            _MOST_HANDSHAKES,
            _HANDSHAKE_S,
        )
        self._watch_doors()

    def look(self) -> None:
        """Gives up handshakes that take too long; to be called now and then."""
        if self._handshakes is not None:
            self._handshakes.sweep(self._clock.now())

    def stop_listening(self) -> None:
        """Accepts no more clients and removes the paths; idempotent."""
        doors, self._doors = self._doors, []
        for door in doors:
            if self._loop is not None:
                for listening in door.listener.sockets:
                    self._loop.remove_reader(listening)
            door.listener.close()
        if self._handshakes is not None:
            self._handshakes.close()

    def let_idle_go(self) -> None:
        """Ends connections without calls, as grpcio does when it is stopped.

        It asks each client for a sign of life before, and waits twenty seconds for it.
        """
        for line, _ in list(self._lines.values()):
            line.leave_if_idle()

    async def wait_until_empty(self, timeout_s: float) -> None:
        """Waits until all connections have ended, or for so long.

        To be called when grpcio has ended its own: clients may still be reading.
        """
        if self._lines or self._leaving:
            self._is_empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), timeout_s)

    def close(self) -> None:
        """Passes on what grpcio has written, then ends all connections; idempotent."""
        self.stop_listening()
        for line, _ in list(self._lines.values()):
            line.flush()
            line.close()
        self._leaving.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def client(self, peer: str) -> Peer | None:
        """Returns who a client is; None if it is gone."""
        line = self._lines.get(peer)
        return None if line is None else line[1]

    def address(self, peer: str) -> str:
        """Returns a client's address; its name if it is gone."""
        client = self.client(peer)
        return peer if client is None else client.address

    def note_taken(self, peer: str, is_read: bool) -> None:
        """Notes that grpcio has handed over a call of a client.

        Args:
            peer: The client.
            is_read: Whether the request is going to be read to its end, for which the
                client must be able to send it.

        """
        line = self._lines.get(peer)
        if line is not None:
            line[0].note_taken(is_read)
        else:
            self._gate.note_orphan_taken()

    def traffic(self, peer: str) -> Traffic | None:
        """Returns what went over a client's connection; None if there is none."""
        line = self._lines.get(peer)
        return None if line is None else line[0].traffic()

    def disconnect(self, peer: str) -> bool:
        """Ends a client's connection; returns whether there was one."""
        line = self._lines.get(peer)
        if line is None:
            return False
        line[0].close()
        self.num_disconnected += 1
        return True

    def _watch_doors(self) -> None:
        self._is_paused = False
        assert self._loop is not None
        for door in self._doors:
            for listening in door.listener.sockets:
                self._loop.add_reader(listening, self._accept, door, listening)

    def _accept(self, door: Door, listening: socket.socket) -> None:
        listener = door.listener
        on_done = functools.partial(self._connect, door.inner_address)
        for _ in range(_ACCEPTS):
            if self._is_paused:
                return
            try:
                client, peer = listener.accept(listening)
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                self._note_failure(listener.options.name, error)
                return
            if listener.tls is None:
                on_done(client, peer)
            else:
                assert self._handshakes is not None
                self._handshakes.begin(listener.tls, client, peer, on_done)

    def _note_failure(self, listener: str, error: OSError) -> None:
        """Has clients wait for a second, because one could not be taken."""
        self.num_failed_accepts += 1
        if self._is_paused:  # this client's handshake had begun before
            return
        log.error(
            "event=accept_failed listener=%s num_failed=%d error=%s",
            listener,
            self.num_failed_accepts,
            error,
        )
        self._is_paused = True
        loop = self._loop
        assert loop is not None
        for door in self._doors:
            for listening in door.listener.sockets:
                loop.remove_reader(listening)
        loop.call_later(_PAUSE_S, self._watch_doors)

    def _connect(
        self,
        address: str,
        client: socket.socket,
        peer: Peer,
        tls: TlsStream | None = None,
        unsent: bytes = b"",
    ) -> None:
        """Connects a client to grpcio, or ends its connection."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(client)
            # Of calls that grpcio still holds when their client is gone, nobody must
            # take the next client for theirs. So no name comes twice, as those would
            # that the system chooses.
            name = secrets.token_hex(16)
            try:
                inner = stack.enter_context(socket.socket(socket.AF_UNIX))
                inner.setblocking(False)
                inner.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BUFFER_BYTES
                )
                inner.bind("\0" + name)
                inner.connect(address.removeprefix(UNIX))
            except OSError as error:
                self._note_failure(peer.listener, error)
                return
            name = _RELAYED + name
            assert self._loop is not None
            assert self._turns is not None
            line = RelayedConnection(
                self._loop,
                client,
                inner,
                self._gate,
                self._turns,
                self._most_calls,
                functools.partial(self._note_end, name),
                functools.partial(self._note_flood, peer.address),
                tls,
                self._leaving.take,
                self._head_limits,
            )
            self._lines[name] = line, peer
            stack.pop_all()
        if tls is not None:
            line.finish_handshake(unsent)

    def _note_end(self, name: str) -> None:
        self._lines.pop(name, None)
        self._note_gone()

    def _note_gone(self) -> None:
        if not self._lines and not self._leaving:
            self._is_empty.set()

    def _note_flood(self, address: str, what: str) -> None:
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


def _make_folder(options: ListenerOptions) -> str:
    """Makes a directory for grpcio's sockets that only this user may enter.

    It lies beside the path of a Unix listener if the directory for temporary files
    cannot be written, or if its path is too long.

    Raises:
        Unavailable: It cannot be made, or every path would be too long.

    """
    beside = os.path.dirname(options.address.removeprefix(UNIX))
    with contextlib.suppress(OSError):
        if len(os.fsencode(tempfile.gettempdir())) <= _MOST_FOLDER_BYTES:
            return tempfile.mkdtemp(prefix=PREFIX)
    with contextlib.suppress(OSError):
        if len(os.fsencode(beside)) <= _MOST_FOLDER_BYTES:
            return tempfile.mkdtemp(prefix=PREFIX, dir=beside)
    raise Unavailable(
        f"cannot listen on {options.address} ({options.name}): no directory for "
        "temporary files can be used for sockets; set TMPDIR to one that can be "
        f"written, with a path of at most {_MOST_FOLDER_BYTES} bytes"
    )
