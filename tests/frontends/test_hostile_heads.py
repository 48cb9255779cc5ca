"""No header block ends what others ask for, or the server behind the relay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.certificates import Certificates
from tests.frontends.express.wire import (
    HELLO,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
)
from tests.frontends.hostile_heads import conversations, converse
from tests.frontends.peers import Trust, connect
from tests.runtime.process_host import until
from tfs.core.call import ListenerOptions, RpcMethod
from tfs.core.serving_loop import ServingLoop
from tfs.frontends.rpc.grpcio.transport import GrpcioTransport
from tfs.testing.patience import PATIENCE_S

PATH = "/test.Service/Echo"
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
DOORS = ("tcp", "unix", "tls")


class Served:
    """A grpcio transport, and a good client of it."""

    def __init__(self, door: str, folder: Path) -> None:
        address = f"unix:{folder}/tfs.sock" if door == "unix" else "127.0.0.1:0"
        tls = None
        self.trust: Trust | None = None
        if door == "tls":
            made = Certificates()
            tls = made.tls()
            self.trust = Trust(made.authority)
        self._loop = ServingLoop()
        self._loop.start()
        self.transport = GrpcioTransport(self._loop)
        (self.address,) = self.transport.start(
            [ListenerOptions("grpc", address, tls=tls)],
            {PATH: RpcMethod(PATH, lambda call: call.reply(b"here"))},
        )
        self.server = self.transport._servers[0]

    def channel(self) -> grpc.Channel:
        if self.trust is None:
            return grpc.insecure_channel(self.address, OPTIONS)
        credentials = grpc.ssl_channel_credentials(self.trust.authority)
        return grpc.secure_channel(self.address, credentials, OPTIONS)

    @property
    def is_the_same(self) -> bool:
        """Whether grpcio's first server still runs."""
        server: Any = self.server
        return self.transport._servers == [server] and server._server.is_running()

    def close(self) -> None:
        self.transport.close()
        self._loop.close()


@contextlib.contextmanager
def serving(door: str, folder: Path) -> Iterator[Served]:
    served = Served(door, folder)
    try:
        yield served
    finally:
        served.close()


@contextlib.contextmanager
def good_calls(served: Served) -> Iterator[list[bytes]]:
    """Calls one after the other meanwhile; yields the answers."""
    is_over = threading.Event()
    answers: list[bytes] = []
    faults: list[grpc.RpcError] = []

    def call() -> None:
        with served.channel() as channel:
            echo = channel.unary_unary(PATH, bytes, bytes)
            try:
                while not is_over.is_set():
                    answers.append(echo(b"", timeout=PATIENCE_S))
            except grpc.RpcError as error:
                faults.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        until(lambda: bool(answers) or bool(faults), "a good call")
        yield answers
    finally:
        is_over.set()
        thread.join(PATIENCE_S)
    assert not faults


@pytest.mark.parametrize("door", DOORS)
def test_a_path_that_is_no_text_costs_its_sender_that_call(
    door: str, tmp_path: Path
) -> None:
    """Calls of others go on, and so do those of the same connection."""
    bad = literal_block(grpc_headers(path="/test.Service/\xff"))
    good = literal_block(grpc_headers(path=PATH))
    with serving(door, tmp_path) as served, good_calls(served):
        with connect(served.address, served.trust) as client:
            client.sendall(
                HELLO
                + headers_frame(1, bad)
                + data_frame(1, bytes(5))
                + headers_frame(3, good)
                + data_frame(3, bytes(5))
            )
            received = b""
            while b"here" not in received:
                data = client.recv(1 << 16)
                assert data, "the connection ended"
                received += data
        assert served.is_the_same


def _try(door: str, folder: Path, seed: int, num_calls: int) -> None:
    with serving(door, folder) as served:
        with good_calls(served) as answers:
            for sent in conversations(seed, PATH, num_calls):
                with connect(served.address, served.trust) as client:
                    converse(client, sent)
            num_answers = len(answers)
            until(lambda: len(answers) > num_answers + 1, "one more good call")
        assert served.is_the_same


@pytest.mark.parametrize("door", DOORS)
def test_no_header_block_ends_the_calls_of_others(door: str, tmp_path: Path) -> None:
    """Hundreds of heads, mutated in text and in bytes, beside a good client."""
    _try(door, tmp_path, seed=1, num_calls=600)


@pytest.mark.stress
@pytest.mark.parametrize("door", DOORS)
def test_no_header_block_ends_the_calls_of_others_at_length(
    door: str, tmp_path: Path
) -> None:
    """The same with ten thousand."""
    _try(door, tmp_path, seed=2, num_calls=10_000)
