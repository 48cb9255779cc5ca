"""A session over TLS.

Everything that is sent goes through ``_queue_output``, which encrypts it. So
``_unsent`` holds ciphertext.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

from tfs.core.call import MethodTable, Peer
from tfs.frontends.rpc.express.session import Session
from tfs.frontends.rpc.express.shared_state import SharedState
from tfs.frontends.rpc.tls.tls_stream import TlsFault, TlsStream

_MAX_FILL_BYTES: Final = 1 << 18  # bytes of queued answers encrypted at a time


class TlsSession(Session):
    """A client's connection over TLS, after the handshake.

    Args:
        tls: Its encryption; may hold bytes that the client sent after the handshake.
        unsent: The rest of the handshake that is still to be sent.

    """

    __slots__ = ("_tls",)

    def __init__(
        self,
        shared: SharedState,
        client: socket.socket,
        peer: Peer,
        methods: MethodTable,
        on_closed: Callable[[Session], None],
        tls: TlsStream,
        unsent: bytes,
    ) -> None:
        self._tls = tls
        super().__init__(shared, client, peer, methods, on_closed)
        if unsent:
            self._queue(unsent)
            self._watch()

    def begin(self) -> None:
        """Takes bytes that came with the handshake's end; contains every exception."""
        try:
            self._take(b"")
        except Exception as error:
            self.on_failure(error)

    def close(self) -> None:
        """Sends TLS's closing alert, if the socket has room, and closes the session."""
        if self.is_closed:
            return
        if not self._unsent:
            with contextlib.suppress(OSError):
                self._socket.send(self._tls.end())
        del self._tls  # frees 20 KB now and not at the next garbage collection
        super().close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(self._shared.turns.current.num_read_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()

    def _take(self, data: bytes) -> None:
        try:
            plain, has_ended = self._tls.decrypt(data)
        except TlsFault:
            self._shared.counters.faults += 1
            self._flush_tls()  # tries to send the alert
            self.close()
            return
        if plain:
            self._receive(plain)
        if self.is_closed:
            return
        if has_ended:
            self.close()
        else:
            self._flush_tls()

    def _flush_tls(self) -> None:
        """Sends TLS's own output: the answer to a key update, or an alert."""
        output = self._tls.take_output()
        if output:
            self._queue(output)
            self._send_unsent()

    def _queue(self, output: bytes) -> None:
        if not self._unsent:
            self._written_s = self._now()
        self._unsent.append(memoryview(output))
        self._unsent_bytes += len(output)

    def _queue_output(self) -> None:
        connection = self.connection
        data = b"".join(connection.out)
        connection.out.clear()
        connection.has_large_output = False
        if data:
            for part in self._tls.encrypt(data):
                self._queue(part)

    def _write(self) -> None:
        connection = self.connection
        if connection.has_sendable and not self._unsent:
            num_bytes = self._shared.turns.current.num_written_bytes
            self._fill(min(num_bytes, _MAX_FILL_BYTES))
        if self._unsent:
            self._queue_output()  # continued when the socket is ready
            self._watch()
            return
        self._queue_output()
        self._send_unsent()
        if self.is_closed or self._unsent:
            return
        if connection.has_sendable:
            self._shared.wants_round = True
            self.is_dirty = True
            self._shared.late.append(self.flush)
        elif connection.is_closed or connection.is_drained:
            self.close()
