"""Short answers of a connection while a long one of it is taken."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.frontends.express.rig import BURST, HOLD, RawClient, Rig, head, hold, running
from tests.frontends.express.wire import PATH, WIDE_HELLO, data_frame, prefixed
from tfs.core.call import Call, ListenerOptions, RpcMethod
from tfs.core.executor import InlineExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2 import frames
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

_LONG: Final = 16 << 20
_BETWEEN: Final = 3 << 19  # bytes of it that may go before a short one that comes later
_SHORT: Final = b"\x0a\x07\x0a\x05short"  # names a model that has no long answers


CROWDED = ExpressOptions(max_receive_bytes=128 << 20)


@pytest.fixture
def crowded_rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path, CROWDED) as rig:
        yield rig


def _reading_a_long_answer(rig: Rig) -> RawClient:
    """Returns a client that takes a long answer on stream 1, and has read 6 MB of it."""
    client = rig.connect(WIDE_HELLO)
    client.send(hold(1))
    rig.step()
    rig.held[0].reply(bytes(_LONG))
    for _ in range(100):
        rig.step()
        client.read(65_536)
    return client


@pytest.mark.parametrize("path", [PATH, BURST])
def test_who_takes_a_long_answer_gets_short_ones_meanwhile(
    crowded_rig: Rig, path: str
) -> None:
    """A request is read and answered while a long answer of its connection is taken."""
    rig = crowded_rig
    rig.on_burst = lambda calls: calls[0].reply(_SHORT)
    client = _reading_a_long_answer(rig)
    client.send(head(3, path) + data_frame(3, prefixed(_SHORT), frames.END_STREAM))
    for _ in range(_BETWEEN // 65_536):
        rig.step(2)
        client.read(65_536)
    assert client.answers[3].messages == [_SHORT]
    assert not client.answers[1].has_ended


def test_who_takes_a_long_answer_may_go_on_asking(
    crowded_rig: Rig,
) -> None:
    """Its window is opened again as short requests use it up; what it reads is not over."""
    rig = crowded_rig
    client = _reading_a_long_answer(rig)
    body = prefixed(_SHORT + bytes(10_000))
    stream_id = 3
    while not client.answers[1].has_ended:
        client.read(65_536)
        if client.window >= len(body):
            client.send(head(stream_id) + data_frame(stream_id, body, 1))
            client.window -= len(body)
            stream_id += 2
        rig.step(2)
        if len(rig.served) > 20:
            break
    assert len(rig.served) > 20
    assert not client.answers[1].has_ended


def _step_until(loop: ServingLoop, is_true: Callable[[], bool]) -> None:
    """Runs rounds until it is so; the kernel delivers over TCP when it likes."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < end_s
        loop.step()


def test_the_kernel_keeps_little_of_long_answers() -> None:
    """Half a megabyte beyond what is on its way, from their first bytes on."""
    loop = ServingLoop(FakeClock(), name="rig")
    transport = ExpressTransport(loop, ExpressOptions(), InlineExecutor())
    calls: list[Call] = []
    (address,) = transport.start(
        [ListenerOptions("test", "127.0.0.1:0")], {HOLD: RpcMethod(HOLD, calls.append)}
    )
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), PATIENCE_S) as client:
            client.sendall(WIDE_HELLO + hold(1))
            _step_until(loop, lambda: bool(calls))
            (session,) = transport.clients.sessions
            option = socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT
            assert session.wire.socket.getsockopt(*option) == 0
            calls[0].reply(bytes(48 << 20))
            _step_until(loop, lambda: bool(session.wire.unsent_bytes))
            assert session.wire.socket.getsockopt(*option) == 524_288
    finally:
        transport.close()
        loop.close()
