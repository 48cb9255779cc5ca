"""Requests to jobs: one connection each, made when needed, and closed behind the last call."""

from __future__ import annotations

import gc
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.certificates import Certificates
from tests.hosted.routing.fake_servers import FakeServer
from tfs.core.call import Call, ListenerOptions, RpcMethod
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2.unary_request import Outcome
from tfs.hosted.routing.job_connection import JobConnection, TlsFiles
from tfs.hosted.routing.job_requests import JobRequests
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

PATH = "/a.B/C"
T = TypeVar("T")


class Asker:
    """A loop that has requests sent."""

    def __init__(self, tls: TlsFiles | None = None, clock: Clock | None = None) -> None:
        self.loop = ServingLoop(clock)
        self.requests = JobRequests(self.loop, tls)
        self.loop.start()

    def on_loop(self, fn: Callable[[], T]) -> T:
        done: queue.SimpleQueue[T] = queue.SimpleQueue()
        self.loop.post(lambda: done.put(fn()))
        return done.get(timeout=PATIENCE_S)

    def send(
        self, address: str, message: bytes = b"one"
    ) -> tuple[queue.SimpleQueue[Outcome], Callable[[], None]]:
        outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        send = partial(self.requests.send, address, PATH, message, 20.0, ())
        return outcomes, self.on_loop(lambda: send(outcomes.put))

    def ask(self, address: str, message: bytes = b"one") -> Outcome:
        return self.send(address, message)[0].get(timeout=PATIENCE_S)

    def keep(self, *addresses: str) -> None:
        self.on_loop(lambda: self.requests.keep(addresses))

    def close(self) -> None:
        self.on_loop(self.requests.close)
        self.loop.close(MonotonicClock.now() + PATIENCE_S)


@pytest.fixture
def asker() -> Iterator[Asker]:
    """An asker without TLS."""
    made = Asker()
    yield made
    made.close()


class SlowServer(FakeServer):
    """Answers when it is let."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.arrived = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.answer = self._late

    def _late(self, message: bytes, context: Any) -> bytes:
        self.arrived.release()
        assert self.may_answer.wait(PATIENCE_S)
        return self.plain(message, context)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowServer]:
    """A slow server that has started."""
    made = SlowServer(tmp_path, "s")
    made.start()
    yield made
    made.may_answer.set()
    made.stop()


def test_a_job_that_is_let_go_answers_what_it_was_sent(
    asker: Asker, slow: SlowServer
) -> None:
    """The connection closes behind the last request, not under it; the next makes another."""
    outcomes, _ = asker.send(slow.address)
    assert slow.arrived.acquire(timeout=PATIENCE_S)
    asker.keep("elsewhere")
    slow.may_answer.set()
    assert outcomes.get(timeout=PATIENCE_S) == b"s:one"
    assert asker.ask(slow.address, b"two") == b"s:two"


def test_a_job_that_is_let_go_before_it_is_connected_answers(
    asker: Asker, tmp_path: Path
) -> None:
    """And its one connection closes then. So does the next, which nobody uses any more."""
    echo = Echo(ListenerOptions("grpc", f"unix:{tmp_path}/e"))
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def send() -> None:
        for _ in range(3):
            asker.requests.send(echo.address, PATH, b"one", 20.0, (), outcomes.put)
        asker.requests.keep(())

    asker.on_loop(send)
    answers = [outcomes.get(timeout=PATIENCE_S) for _ in range(3)]
    assert answers == [b"one"] * 3
    clients = echo.transport.clients
    patient = threading.Event()
    for num_connections in (1, 2):
        while clients.sessions:
            assert not patient.wait(0.02)
        assert clients.counters.connections == num_connections
        answers = [asker.ask(echo.address) for _ in range(3)]
        assert answers == [b"one"] * 3
        asker.keep()
    echo.close()


def test_closing_ends_requests_also_of_jobs_let_go(slow: SlowServer) -> None:
    """Whoever closes waits for nobody."""
    asker = Asker()
    outcomes, _ = asker.send(slow.address)
    assert slow.arrived.acquire(timeout=PATIENCE_S)
    asker.keep()
    asker.close()
    outcome = outcomes.get(timeout=PATIENCE_S)
    assert isinstance(outcome, Unavailable)
    assert f"{slow.address} was lost: the router ends" in outcome.message


def test_who_gives_up_hears_nothing(asker: Asker, slow: SlowServer) -> None:
    """Whether the request waits for a connection, or for its answer."""
    waiting, give_up = asker.send(slow.address)
    asker.on_loop(give_up)
    under_way, give_up = asker.send(slow.address)
    assert slow.arrived.acquire(timeout=PATIENCE_S)
    asker.on_loop(give_up)
    slow.may_answer.set()
    assert asker.ask(slow.address, b"two") == b"s:two"
    assert waiting.empty()
    assert under_way.empty()


def test_a_job_that_cannot_be_reached_is_told_apart(asker: Asker) -> None:
    """UNAVAILABLE with its address, at once."""
    for address in (
        *("127.0.0.1", "127.0.0.1:x", f"127.0.0.1:{1 << 64}"),
        *("unix:", "unix:/nobody", "[::1]:1"),
    ):
        outcome = asker.ask(address)
        assert isinstance(outcome, Unavailable)
        assert address in outcome.message


def test_a_job_is_not_looked_for_all_the_time(tmp_path: Path) -> None:
    """Requests fail at once for a fifth of a second, then the next one tries again."""
    clock = FakeClock()
    asker = Asker(clock=clock)
    server = FakeServer(tmp_path, "a")
    for _ in range(3):
        assert isinstance(asker.ask(server.address), Unavailable)
        server.start()
        clock.advance(0.19)
        assert isinstance(asker.ask(server.address), Unavailable)
        server.stop()
        clock.advance(0.02)
    server.start()
    assert asker.ask(server.address) == b"a:one"
    server.stop()
    while isinstance(asker.ask(server.address), bytes):
        pass
    server.start()
    clock.advance(0.21)
    assert asker.ask(server.address) == b"a:one"
    asker.close()
    server.stop()


class Port:
    """Takes connections that a test ends, or says nothing on them."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.taken: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._listening.settimeout(PATIENCE_S)

    def take(self) -> socket.socket:
        """Returns the next connection, once its preface has come."""
        self.taken.append(self._listening.accept()[0])
        assert self.taken[-1].recv(24).startswith(b"PRI")
        return self.taken[-1]

    def is_asked(self) -> bool:
        """Whether another connection waits."""
        return bool(select.select([self._listening], [], [], 0)[0])

    def close(self) -> None:
        for each in (*self.taken, self._listening):
            each.close()


def test_a_job_that_hangs_up_is_not_called_all_the_time(tmp_path: Path) -> None:
    """It is given the same pause as one that is not there, however many ask."""
    clock = FakeClock()
    asker = Asker(clock=clock)
    port = Port(tmp_path / "p")
    for _ in range(2):
        outcomes, _ = asker.send(port.address)
        port.take().close()
        assert isinstance(outcomes.get(timeout=PATIENCE_S), Unavailable)
        assert isinstance(asker.ask(port.address), Unavailable)
        assert not port.is_asked()
        clock.advance(0.21)
    asker.close()
    port.close()


def test_what_speaks_no_http2_keeps_no_request(tmp_path: Path) -> None:
    """It has as long for its first SETTINGS as for its connection; then others are asked."""
    clock = FakeClock()
    asker = Asker(clock=clock)
    port = Port(tmp_path / "p")
    outcomes, _ = asker.send(port.address)
    port.take()
    clock.advance(2.9)
    asker.on_loop(lambda: None)
    assert outcomes.empty()
    clock.advance(0.2)
    asker.on_loop(lambda: None)
    outcome = outcomes.get(timeout=PATIENCE_S)
    assert isinstance(outcome, Unavailable)
    assert "does not speak HTTP/2" in outcome.message
    asker.close()
    port.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_what_fails_with_others_may_give_them_up(
    asker: Asker, slow: SlowServer, is_there: bool
) -> None:
    """Those hear nothing; what it sends at once does, whether the server ends or was
    never there.
    """
    address = slow.address if is_there else f"{slow.address}/nobody"
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()

    def send() -> None:
        def send_one(index: int) -> Callable[[], None]:
            hear_it = partial(hear, index)
            return asker.requests.send(address, PATH, b"", 20.0, (), hear_it)

        def hear(index: int, _: Outcome) -> None:
            heard.put(index)
            for each in given[1:]:
                each()
            if not index:
                send_one(3)

        given = [send_one(index) for index in range(3)]

    asker.on_loop(send)
    if is_there:
        assert slow.arrived.acquire(timeout=PATIENCE_S)
        asker.on_loop(asker.requests.close)
    assert [heard.get(timeout=PATIENCE_S) for _ in range(2)] == [0, 3]
    assert heard.empty()


def test_an_outcome_that_raises_harms_no_other(asker: Asker, tmp_path: Path) -> None:
    """Those behind it on the same connection are told theirs, and the log what happened."""
    echo = Echo(ListenerOptions("grpc", f"unix:{tmp_path}/e"))
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def hear(index: int, outcome: Outcome) -> None:
        if index == 1:
            raise RuntimeError("a fault of whoever asked")
        outcomes.put(outcome)

    def send() -> None:
        for index in range(3):
            done = partial(hear, index)
            asker.requests.send(echo.address, PATH, b"one", 20.0, (), done)

    asker.on_loop(send)
    assert [outcomes.get(timeout=PATIENCE_S) for _ in range(2)] == [b"one"] * 2
    echo.close()


def test_after_the_end_nothing_is_sent(slow: SlowServer) -> None:
    """It is UNAVAILABLE; no request is forgotten."""
    asker = Asker()
    asker.on_loop(asker.requests.close)
    assert isinstance(asker.ask(slow.address), Unavailable)
    asker.close()


def test_a_server_that_restarts_gets_a_new_connection(
    asker: Asker, tmp_path: Path
) -> None:
    """The first request after it is answered, unless it was on the way."""
    server = FakeServer(tmp_path, "a")
    for _ in range(5):
        server.start()
        patient = threading.Event()
        while asker.ask(server.address) != b"a:one":
            assert not patient.wait(0.02)
        server.stop()


class Echo:
    """A server of ours that answers with the request."""

    def __init__(
        self, listener: ListenerOptions, options: ExpressOptions | None = None
    ) -> None:
        self.held: list[Call] = []
        self.loop = ServingLoop()
        self.transport = ExpressTransport(self.loop, options)
        self.loop.start()
        (self.address,) = self.transport.start(
            [listener], {PATH: RpcMethod(PATH, self._answer)}
        )

    def _answer(self, call: Call) -> None:
        if call.message == b"hold":
            self.held.append(call)
        else:
            call.reply(bytes(call.message))

    def close(self) -> None:
        self.transport.close()
        self.loop.close(MonotonicClock.now() + PATIENCE_S)


@pytest.mark.parametrize("size", [0, 1, 4096, 70_000, 300_000, 9_000_000])
def test_a_server_of_ours_answers_requests_of_any_length(
    asker: Asker, tmp_path: Path, size: int
) -> None:
    """Those that are admitted first, too; several at a time."""
    echo = Echo(ListenerOptions("grpc", f"unix:{tmp_path}/e"))
    messages = [bytes([index + 1]) * (size + index) for index in range(3)]
    asked = [asker.send(echo.address, each)[0] for each in messages]
    assert [each.get(timeout=PATIENCE_S) for each in asked] == messages
    echo.close()


def test_a_server_that_drains_loses_no_request(asker: Asker, tmp_path: Path) -> None:
    """Those under way are answered, and its successor gets the next."""
    listener = ListenerOptions("grpc", f"unix:{tmp_path}/e")
    for _ in range(5):
        echo = Echo(listener)
        asked = [asker.send(echo.address)[0] for _ in range(50)]
        assert asked[0].get(timeout=PATIENCE_S) == b"one"
        assert echo.transport.drain(MonotonicClock.now() + PATIENCE_S)
        echo.close()
        for each in asked[1:]:
            assert each.get(timeout=PATIENCE_S) == b"one"


def test_connections_that_the_server_ends_for_their_age_lose_no_request(
    asker: Asker, tmp_path: Path
) -> None:
    """What it had not begun goes over the next one, and what it had is waited for. Nothing
    is left of those that ended.
    """
    options = ExpressOptions(sweep_interval_s=0.01, max_connection_age_s=0.02)
    echo = Echo(ListenerOptions("grpc", f"unix:{tmp_path}/e"), options)
    held, _ = asker.send(echo.address, b"hold")
    connections = echo.transport.clients.counters
    while connections.connections < 9:
        assert asker.ask(echo.address) == b"one"
    gc.collect()
    assert sum(isinstance(each, JobConnection) for each in gc.get_objects()) < 5
    echo.held[0].reply(b"at last")
    assert held.get(timeout=PATIENCE_S) == b"at last"
    echo.close()


def test_tls_is_mutual_where_certificates_are_given(tmp_path: Path) -> None:
    """A server's has to be of whom we trust, and for its host; it sees ours."""
    certificates, stranger = Certificates(), Certificates()
    files = {
        "ca": certificates.authority,
        "key": certificates.client_pem()[0],
        "cert": certificates.client_pem()[1],
        "other": stranger.authority,
    }
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)
    ca, cert, key, other = (
        str(tmp_path / each) for each in ("ca", "cert", "key", "other")
    )
    mutual = certificates.tls(mutual=True)
    echo = Echo(ListenerOptions("grpc", "127.0.0.1:0", tls=mutual))
    message = b"m" * 1_000_000
    for tls, is_trusted in (
        (TlsFiles(ca, cert, key), True),
        (TlsFiles(ca), False),
        (TlsFiles(other, cert, key), False),
        (None, False),
    ):
        asker = Asker(tls)
        outcome = asker.ask(echo.address, message)
        assert (outcome == message) is is_trusted
        assert is_trusted or isinstance(outcome, Unavailable)
        asker.close()
    echo.close()
