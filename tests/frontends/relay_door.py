"""A relay with a client's side, and a server's as grpcio would be behind it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from tfs.core.call import ListenerOptions, TlsSource
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.executor import Executor, InlineExecutor
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.relay import Relay
from tfs.frontends.rpc.unix_socket import UNIX
from tfs.testing.patience import PATIENCE_S


def open_files() -> set[str]:
    """Returns the descriptors of this process.

    Compared as sets, because what earlier tests left may be closed meanwhile.
    """
    return set(os.listdir("/proc/self/fd"))


def make_relay(
    gate: CallGate | None = None,
    clock: Clock | None = None,
    executor: Executor | None = None,
) -> Relay:
    """Returns a relay whose connections may have 64 calls each."""
    gate = gate or CallGate(lambda: 0.0)
    return Relay(gate, 64, clock or MonotonicClock(), executor or InlineExecutor())


class Door:
    """A relay, and the socket behind it at which grpcio would listen."""

    def __init__(
        self,
        path: str,
        tls: TlsSource | None,
        clock: Clock | None,
        executor: Executor | None,
    ) -> None:
        self.path = path
        self.gate = CallGate(lambda: 0.0)
        self.relay = make_relay(self.gate, clock, executor)
        door = self.relay.open(ListenerOptions("grpc", UNIX + path, tls=tls))
        self.inner_path = door.inner_address.removeprefix(UNIX)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.inner_path)
        self._listening.listen()
        self._listening.setblocking(False)
        self.relay.start()

    async def connect(self) -> tuple[socket.socket, socket.socket, str]:
        """Returns a client's socket, the server's, and how grpcio calls the client."""
        client = await self.reach()
        return client, *await self.accept()

    async def reach(self) -> socket.socket:
        """Returns a client's socket."""
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, self.path)
        return client

    async def accept(self) -> tuple[socket.socket, str]:
        """Returns the server's socket, and how grpcio calls the client."""
        server, name = await asyncio.get_running_loop().sock_accept(self._listening)
        return server, f"unix-abstract:{name[1:].decode()}"

    def close(self) -> None:
        self.relay.close()
        self._listening.close()


def run(
    body: Callable[[Door], Awaitable[None]],
    folder: Path,
    tls: TlsSource | None = None,
    *,
    clock: Clock | None = None,
    executor: Executor | None = None,
) -> None:
    """Runs ``body`` with a door, in a bounded time."""

    async def main() -> None:
        door = Door(str(folder / "tfs.sock"), tls, clock, executor)
        try:
            await asyncio.wait_for(body(door), PATIENCE_S)
        finally:
            door.close()

    asyncio.run(main())
