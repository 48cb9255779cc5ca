"""What every :class:`tfs.core.call.Transport` and its calls promise.

A real gRPC client on the loopback interface talks to the transport, whose handlers
run on a serving loop of their own. Nothing here knows protobuf: messages are bytes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias, cast

import grpc
import pytest

from tests.certificates import Certificates
from tfs.core.call import (
    Call,
    Handler,
    ListenerOptions,
    MethodKind,
    MethodTable,
    Peer,
    RpcMethod,
    StreamCall,
    Transport,
)
from tfs.core.clock import MonotonicClock
from tfs.core.errors import BY_CODE, Cancelled, Code, NotFound, Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.testing.patience import PATIENCE_S

_TLS: Final = "tls:"
ECHO: Final = "/tfs.conformance.Echo/Echo"

MakeTransport = Callable[[ServingLoop], Transport]
"""Makes a transport whose handlers run on the given loop; the loop runs already."""
TransportCheck = Callable[[MakeTransport], None]
Unary: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"

_MAX_MESSAGE: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Every test has a connection of its own: a closed server's must not be reused.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


@dataclass
class Seen:
    """What handlers note for the test's thread. Thread-safe."""

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _notes: list[object] = field(default_factory=list)

    def note(self, what: object) -> None:
        """Notes ``what``."""
        with self._changed:
            self._notes.append(what)
            self._changed.notify_all()

    def wait(self, num: int = 1) -> list[object]:
        """Blocks until there are ``num`` notes; returns all."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._notes) >= num, PATIENCE_S)
            return list(self._notes)

    @property
    def notes(self) -> list[object]:
        """All so far."""
        with self._changed:
            return list(self._notes)


@dataclass
class Running:
    """A started transport, its loop and its addresses in the listeners' order."""

    transport: Transport
    loop: ServingLoop
    addresses: Sequence[str]


@contextlib.contextmanager
def running(
    make: MakeTransport,
    handlers: Mapping[str, Handler | RpcMethod],
    listeners: Sequence[ListenerOptions] = (ListenerOptions("grpc", "127.0.0.1:0"),),
) -> Iterator[Running]:
    """Yields a transport that serves ``handlers``, and takes it down afterwards."""
    loop = ServingLoop(name="conformance-loop")
    loop.start()
    transport = make(loop)
    methods = {
        path: handler if isinstance(handler, RpcMethod) else RpcMethod(path, handler)
        for path, handler in handlers.items()
    }
    try:
        addresses = transport.start(listeners, methods)
        yield Running(transport, loop, addresses)
    finally:
        transport.close()
        loop.close(MonotonicClock.now() + PATIENCE_S)


@functools.cache
def _certificates() -> Certificates:
    return Certificates()


class _OverTls:
    """A transport whose TCP doors are encrypted; their addresses say so."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.drain = inner.drain
        self.close = inner.close

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the doors."""
        tls = _certificates().tls()
        addresses = self._inner.start(
            [
                door if door.address.startswith("unix:") else replace(door, tls=tls)
                for door in listeners
            ],
            methods,
        )
        return [
            address if address.startswith("unix:") else _TLS + address
            for address in addresses
        ]


def over_tls(make: MakeTransport) -> MakeTransport:
    """Returns what makes the same transport, to be checked over TLS."""
    return lambda loop: _OverTls(make(loop))


class Stream(Protocol):
    """A client's end of a stream of answers."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes: ...
    def cancel(self) -> object: ...


class Client:
    """A channel whose messages are bytes. Thread-safe."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary(self, path: str) -> Unary:
        """Returns the function for a unary method."""
        return self._channel.unary_unary(path, bytes, bytes)

    def server_stream(self, path: str, message: bytes) -> Stream:
        """Calls a server-streaming method."""
        call = self._channel.unary_stream(path, bytes, bytes)
        return cast(Stream, call(message, timeout=PATIENCE_S))

    def bidirectional(self, path: str, messages: Iterable[bytes]) -> Stream:
        """Calls a bidirectional method."""
        call = self._channel.stream_stream(path, bytes, bytes)
        return cast(Stream, call(iter(messages), timeout=PATIENCE_S))


@contextlib.contextmanager
def connected(address: str) -> Iterator[Client]:
    """Yields a client of ``address``."""
    if address.startswith(_TLS):
        channel = grpc.secure_channel(
            address.removeprefix(_TLS),
            _certificates().client_credentials(),
            options=_MAX_MESSAGE,
        )
    else:
        channel = grpc.insecure_channel(address, options=_MAX_MESSAGE)
    try:
        yield Client(channel)
    finally:
        channel.close()


@contextlib.contextmanager
def serving(
    make: MakeTransport, handler: Handler, path: str = ECHO
) -> Iterator[tuple[Unary, Running]]:
    """Yields a client's function for one served method."""
    with running(make, {path: handler}) as run, connected(run.addresses[0]) as client:
        yield client.unary(path), run


def _echo(call: Call) -> None:
    call.reply(bytes(call.message))


def _code(error: grpc.RpcError) -> int:
    assert isinstance(error, grpc.Call)
    return int(error.code().value[0])


def _fails(
    method: Unary, message: bytes = b"", timeout: float = PATIENCE_S
) -> grpc.RpcError:
    """Calls, and returns the error it must end with."""
    with pytest.raises(grpc.RpcError) as caught:
        method(message, timeout=timeout)
    return caught.value


def a_message_is_answered(make: MakeTransport) -> None:
    """The handler's bytes reach the client, whatever they are."""
    with serving(make, _echo) as (echo, _):
        for message in (b"", b"hello", bytes(range(256))):
            assert echo(message, timeout=PATIENCE_S) == message


def large_messages_pass_both_ways(make: MakeTransport) -> None:
    """A message larger than any frame or flow-control window passes whole."""
    message = os.urandom(1 << 16) * 160  # 10 MiB
    with serving(make, _echo) as (echo, _):
        assert echo(message, timeout=PATIENCE_S) == message


def handlers_run_on_the_loop(make: MakeTransport) -> None:
    """A handler may use what belongs to the loop."""
    seen = Seen()

    def handle(call: Call) -> None:
        seen.note(loop_of[0].is_loop_thread)
        call.reply(b"")

    loop_of: list[ServingLoop] = []
    with serving(make, handle) as (echo, run):
        loop_of.append(run.loop)
        echo(b"", timeout=PATIENCE_S)
    assert seen.notes == [True]


def a_call_says_what_it_is(make: MakeTransport) -> None:
    """Method, metadata and peer reach the handler; -bin metadata as bytes."""
    seen: list[tuple[str, dict[str, str | bytes], Peer, float | None]] = []

    def handle(call: Call) -> None:
        seen.append((call.method, dict(call.metadata), call.peer, call.deadline_s))
        call.reply(b"")

    with serving(make, handle) as (echo, _):
        echo(
            b"",
            timeout=PATIENCE_S,
            metadata=(("tfs-routing-key", "alice"), ("trace-bin", b"\x00\xff")),
        )
        echo(b"")
    method, metadata, peer, deadline_s = seen[0]
    assert method == ECHO
    assert metadata["tfs-routing-key"] == "alice"
    assert metadata["trace-bin"] == b"\x00\xff"
    assert peer.listener == "grpc"
    assert peer.is_loopback
    host, _, port = peer.address.rpartition(":")
    assert (host, port.isdigit()) == ("127.0.0.1", True)
    assert peer.identity == ()
    assert deadline_s is not None
    # Clients round grpc-timeout up to three digits or so: 20.0 s may travel as 20.1.
    assert 0 < deadline_s - MonotonicClock.now() <= PATIENCE_S * 1.02
    assert seen[1][3] is None


def every_code_reaches_the_client(make: MakeTransport) -> None:
    """A failed call ends with the error's code and message."""
    codes = [code for code in Code if code is not Code.OK]

    def handle(call: Call) -> None:
        code = Code(int(bytes(call.message)))
        call.fail(BY_CODE[code](f"what {code.name} says: 100% ünïcode"))

    with serving(make, handle) as (echo, _):
        for code in codes:
            error = _fails(echo, b"%d" % code)
            assert _code(error) == code
            assert isinstance(error, grpc.Call)
            assert error.details() == f"what {code.name} says: 100% ünïcode"


def a_retry_hint_reaches_the_client(make: MakeTransport) -> None:
    """RetryInfo comes in the status details, and only where there is a hint."""

    def handle(call: Call) -> None:
        hint_s = 1.5 if call.message else None
        call.fail(Unavailable("queue full", retry_after_s=hint_s))

    with serving(make, handle) as (echo, _):
        error = _fails(echo, b"hint")
        assert isinstance(error, grpc.Call)
        trailers = dict(error.trailing_metadata())
        details = trailers["grpc-status-details-bin"]
        assert isinstance(details, bytes)
        assert details.startswith(b"\x08\x0e")  # google.rpc.Status.code = UNAVAILABLE
        assert b"type.googleapis.com/google.rpc.RetryInfo" in details
        assert b"\x08\x01\x10\x80\xca\xb5\xee\x01" in details  # a Duration of 1.5 s
        plain = _fails(echo, b"")
        assert isinstance(plain, grpc.Call)
        assert "grpc-status-details-bin" not in dict(plain.trailing_metadata())


def a_reply_in_parts_is_one_message(make: MakeTransport) -> None:
    """Whatever its parts are, from the loop or from another thread."""
    image = bytes(range(256)) * 2400

    def reply(call: Call) -> None:
        parts = (b"begin", memoryview(image)[1:], b"", b"end")
        if call.message:
            threading.Thread(target=lambda: call.reply_parts(parts)).start()
        else:
            call.reply_parts(parts)

    with serving(make, reply) as (echo, _):
        for message in (b"", b"elsewhere"):
            answer = echo(message, timeout=PATIENCE_S)
            assert answer == b"begin" + image[1:] + b"end"


def the_first_finish_wins(make: MakeTransport) -> None:
    """Later replies and failures of a call do nothing."""

    def reply_first(call: Call) -> None:
        call.reply(b"first")
        call.reply(b"second")
        call.fail(NotFound("third"))

    def fail_first(call: Call) -> None:
        call.fail(NotFound("first"))
        call.reply(b"second")

    with serving(make, reply_first) as (echo, _):
        assert echo(b"", timeout=PATIENCE_S) == b"first"
    with serving(make, fail_first) as (echo, _):
        assert _code(_fails(echo)) == Code.NOT_FOUND


def a_call_is_finished_from_any_thread(make: MakeTransport) -> None:
    """The answer may come later, from elsewhere, and the message stays valid."""
    threads: list[threading.Thread] = []

    def handle(call: Call) -> None:
        thread = threading.Thread(target=lambda: call.reply(bytes(call.message)))
        threads.append(thread)
        thread.start()

    with serving(make, handle) as (echo, _):
        for index in range(5):
            assert echo(b"%d" % index, timeout=PATIENCE_S) == b"%d" % index
    for thread in threads:
        thread.join(PATIENCE_S)


def calls_of_one_connection_run_side_by_side(make: MakeTransport) -> None:
    """A call that waits delays no other; answers go out in any order."""
    waiting: list[Call] = []
    seen = Seen()

    def handle(call: Call) -> None:
        waiting.append(call)
        if len(waiting) == 50:
            for each in reversed(waiting):
                each.reply(bytes(each.message))
            seen.note("all")

    with serving(make, handle) as (echo, _):
        futures = [
            echo.future(b"%d" % index, timeout=PATIENCE_S) for index in range(50)
        ]
        assert [future.result(PATIENCE_S) for future in futures] == [
            b"%d" % index for index in range(50)
        ]
    assert seen.notes == ["all"]


def a_deadline_ends_the_call(make: MakeTransport) -> None:
    """At the deadline the client has its answer and the handler's side is told."""
    seen = Seen()
    calls: list[Call] = []

    def handle(call: Call) -> None:
        calls.append(call)
        call.on_cancel(lambda: seen.note(loop_of[0].is_loop_thread))

    loop_of: list[ServingLoop] = []
    with serving(make, handle) as (echo, run):
        loop_of.append(run.loop)
        assert _code(_fails(echo, timeout=0.3)) == Code.DEADLINE_EXCEEDED
        seen.wait()
        (call,) = calls
        # The client gives up at the same moment: either of the two may be first.
        assert call.cancel.error is not None
        assert call.cancel.error.code in (Code.DEADLINE_EXCEEDED, Code.CANCELLED)
        call.reply(b"too late")
        call.fail(NotFound("too late"))
    assert seen.notes == [True]


def a_cancelled_call_is_told_once(make: MakeTransport) -> None:
    """When the client cancels, on_cancel runs once, on the loop."""
    seen = Seen()
    calls: list[Call] = []

    def handle(call: Call) -> None:
        call.on_cancel(lambda: seen.note("cancelled"))
        calls.append(call)
        seen.note("started")

    with serving(make, handle) as (echo, run):
        future = echo.future(b"")
        seen.wait(1)
        future.cancel()  # type: ignore[no-untyped-call]
        assert seen.wait(2) == ["started", "cancelled"]
        assert isinstance(calls[0].cancel.error, Cancelled)
        calls[0].reply(b"nobody listens")
        run.loop.post(lambda: calls[0].on_cancel(lambda: seen.note("at once")))
        assert seen.wait(3) == ["started", "cancelled", "at once"]


def an_answered_call_is_not_cancelled(make: MakeTransport) -> None:
    """on_cancel is for calls that end without their handler."""
    seen = Seen()

    def handle(call: Call) -> None:
        call.on_cancel(lambda: seen.note("cancelled"))
        call.reply(b"")

    with serving(make, handle) as (echo, _):
        for _ in range(5):
            echo(b"", timeout=PATIENCE_S)
    assert seen.notes == []


def a_call_that_is_over_is_let_go(make: MakeTransport) -> None:
    """Answered or failed: no cycle keeps it, and its message, for the collector."""
    freed = Seen()

    def handler(call: Call) -> None:
        weakref.finalize(call, freed.note, bytes(call.message))
        if call.message == b"fail":
            call.fail(NotFound("no"))
        else:
            call.reply(b"")

    gc.collect()
    gc.disable()
    try:
        with serving(make, handler) as (ask, _):
            ask(b"answer", timeout=PATIENCE_S)
            _fails(ask, b"fail")
            assert sorted(freed.wait(2), key=str) == [b"answer", b"fail"]
    finally:
        gc.enable()


def a_handler_that_raises_fails_its_call(make: MakeTransport) -> None:
    """An exception is INTERNAL for its caller, and the next call is fine."""

    def handle(call: Call) -> None:
        if call.message:
            raise ValueError("meant to fail")
        call.reply(b"fine")

    with serving(make, handle) as (echo, _):
        assert _code(_fails(echo, b"bad")) == Code.INTERNAL
        assert echo(b"", timeout=PATIENCE_S) == b"fine"


def an_unknown_method_is_unimplemented(make: MakeTransport) -> None:
    """Nobody knows it: UNIMPLEMENTED, for a known service as for an unknown one."""
    with running(make, {ECHO: _echo}) as run, connected(run.addresses[0]) as client:
        for path in ("/tfs.conformance.Echo/Other", "/nobody.Knows/This"):
            error = _fails(client.unary(path))
            assert _code(error) == Code.UNIMPLEMENTED


def a_listener_shows_its_services_only(make: MakeTransport) -> None:
    """What a listener does not expose does not exist there."""
    handlers: dict[str, Handler | RpcMethod] = {"/a.A/M": _echo, "/a.B/M": _echo}
    listeners = (
        ListenerOptions("a", "127.0.0.1:0", frozenset({"a.A"})),
        ListenerOptions("b", "127.0.0.1:0", frozenset({"a.B"})),
        ListenerOptions("all", "127.0.0.1:0"),
    )
    with running(make, handlers, listeners) as run:
        allowed = (("/a.A/M",), ("/a.B/M",), ("/a.A/M", "/a.B/M"))
        for address, shown in zip(run.addresses, allowed, strict=True):
            with connected(address) as client:
                for path in handlers:
                    method = client.unary(path)
                    if path in shown:
                        assert method(b"x", timeout=PATIENCE_S) == b"x"
                    else:
                        assert _code(_fails(method)) == Code.UNIMPLEMENTED


def a_peer_names_its_listener(make: MakeTransport) -> None:
    """A handler can tell through which door a call came."""

    def handle(call: Call) -> None:
        call.reply(call.peer.listener.encode())

    listeners = [ListenerOptions(name, "127.0.0.1:0") for name in ("one", "two")]
    with running(make, {ECHO: handle}, listeners) as run:
        for options, address in zip(listeners, run.addresses, strict=True):
            with connected(address) as client:
                answer = client.unary(ECHO)(b"", timeout=PATIENCE_S)
                assert answer == options.name.encode()


def a_unix_socket_is_a_listener(make: MakeTransport) -> None:
    """A Unix socket serves, has the permissions asked for, and says that it is one."""
    seen = Seen()

    def handle(call: Call) -> None:
        seen.note(call.peer)
        call.reply(b"")

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tfs.sock")
        listener = ListenerOptions("admin", f"unix:{path}", unix_mode=0o600)
        with running(make, {ECHO: handle}, [listener]) as run:
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            with connected(run.addresses[0]) as client:
                client.unary(ECHO)(b"", timeout=PATIENCE_S)
    (peer,) = seen.notes
    assert peer.listener == "admin"  # type: ignore[attr-defined]
    assert peer.address.startswith("unix:")  # type: ignore[attr-defined]


def a_live_unix_socket_is_taken(make: MakeTransport) -> None:
    """A server does not push another off its socket, but replaces a dead one's."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tfs.sock")
        listener = ListenerOptions("admin", f"unix:{path}")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        with running(make, {ECHO: _echo}, [listener]) as run:
            with (
                pytest.raises(Unavailable, match=path),
                running(make, {ECHO: _echo}, [listener]),
            ):
                pass
            with connected(run.addresses[0]) as client:
                assert client.unary(ECHO)(b"x", timeout=PATIENCE_S) == b"x"


def all_listeners_are_bound_or_none(make: MakeTransport) -> None:
    """An address in use is UNAVAILABLE, named, and leaves nothing open."""
    with socket.socket() as taken, socket.socket() as probe:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
        probe.close()
        loop = ServingLoop(name="conformance-loop")
        loop.start()
        transport = make(loop)
        try:
            with pytest.raises(Unavailable, match=in_use.rpartition(":")[2]):
                transport.start(
                    [
                        ListenerOptions("free", f"127.0.0.1:{free_port}"),
                        ListenerOptions("taken", in_use),
                    ],
                    {ECHO: RpcMethod(ECHO, _echo)},
                )
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", free_port)) != 0
        finally:
            transport.close()
            loop.close(MonotonicClock.now() + PATIENCE_S)


def draining_finishes_what_was_taken(make: MakeTransport) -> None:
    """Calls in flight are answered, new ones refused, and drain says it is done."""
    seen = Seen()
    calls: list[Call] = []

    def handle(call: Call) -> None:
        calls.append(call)
        seen.note("taken")

    with serving(make, handle) as (echo, run):
        future = echo.future(b"", timeout=PATIENCE_S)
        seen.wait()
        done: list[bool] = []
        drainer = threading.Thread(
            target=lambda: done.append(
                run.transport.drain(MonotonicClock.now() + PATIENCE_S)
            )
        )
        drainer.start()
        with connected(run.addresses[0]) as other:
            # From some moment on a new call is refused; those before it are taken
            # and answered, so that drain can end.
            refused = None
            for _ in range(1000):
                late = other.unary(ECHO).future(b"", timeout=0.5)
                error = late.exception()
                assert isinstance(error, grpc.RpcError)
                if _code(error) == Code.UNAVAILABLE:
                    refused = error
                    break
            assert refused is not None
        assert not done
        for call in calls:
            call.reply(b"finished")
        assert future.result(PATIENCE_S) == b"finished"
        drainer.join(PATIENCE_S)
        assert done == [True]


def draining_gives_up_at_its_deadline(make: MakeTransport) -> None:
    """A call that is never answered does not hold the server up; close ends it."""
    seen = Seen()

    with serving(make, lambda call: seen.note(call)) as (echo, run):
        future = echo.future(b"", timeout=PATIENCE_S)
        seen.wait()
        assert not run.transport.drain(MonotonicClock.now() + 0.05)
        run.transport.close()
        error = future.exception()
        assert isinstance(error, grpc.RpcError)
        assert _code(error) in (Code.UNAVAILABLE, Code.CANCELLED)
        run.transport.close()


def draining_an_idle_transport_is_immediate(make: MakeTransport) -> None:
    """Nothing in flight: drained at once, however often it is asked."""
    with serving(make, _echo) as (echo, run):
        echo(b"", timeout=PATIENCE_S)
        assert run.transport.drain(MonotonicClock.now() + PATIENCE_S)
        assert run.transport.drain(MonotonicClock.now() + PATIENCE_S)


TRANSPORT_CHECKS: tuple[TransportCheck, ...] = (
    a_message_is_answered,
    large_messages_pass_both_ways,
    handlers_run_on_the_loop,
    a_call_says_what_it_is,
    every_code_reaches_the_client,
    a_retry_hint_reaches_the_client,
    a_reply_in_parts_is_one_message,
    the_first_finish_wins,
    a_call_is_finished_from_any_thread,
    calls_of_one_connection_run_side_by_side,
    a_deadline_ends_the_call,
    a_cancelled_call_is_told_once,
    an_answered_call_is_not_cancelled,
    a_call_that_is_over_is_let_go,
    a_handler_that_raises_fails_its_call,
    an_unknown_method_is_unimplemented,
    a_listener_shows_its_services_only,
    a_peer_names_its_listener,
    a_unix_socket_is_a_listener,
    a_live_unix_socket_is_taken,
    all_listeners_are_bound_or_none,
    draining_finishes_what_was_taken,
    draining_gives_up_at_its_deadline,
    draining_an_idle_transport_is_immediate,
)


# -- streams ---------------------------------------------------------------------------


def a_server_streams_messages(make: MakeTransport) -> None:
    """All messages arrive in order, and the stream ends well."""

    def handle(call: StreamCall) -> None:
        for index in range(10):
            assert call.send(b"%d" % index)
        call.finish()

    method = RpcMethod(ECHO, handle, MethodKind.SERVER_STREAM)
    with running(make, {ECHO: method}) as run, connected(run.addresses[0]) as client:
        answers = client.server_stream(ECHO, b"go")
        assert list(answers) == [b"%d" % index for index in range(10)]


def a_stream_may_end_with_a_reply_or_an_error(make: MakeTransport) -> None:
    """The last message may come with the end; an error comes after the messages."""

    def handle(call: StreamCall) -> None:
        call.send(b"one")
        if call.message:
            call.fail(NotFound("no more"))
        else:
            call.reply(b"two")

    method = RpcMethod(ECHO, handle, MethodKind.SERVER_STREAM)
    with running(make, {ECHO: method}) as run, connected(run.addresses[0]) as client:
        assert list(client.server_stream(ECHO, b"")) == [b"one", b"two"]
        answers = client.server_stream(ECHO, b"fail")
        assert next(answers) == b"one"
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert _code(caught.value) == Code.NOT_FOUND


def both_sides_stream(make: MakeTransport) -> None:
    """Every request message is seen, answered, and the client's end is told."""

    def handle(call: StreamCall) -> None:
        def answer(message: bytes | memoryview) -> None:
            call.send(bytes(message))

        # The first message came with the call, the others follow.
        call.send(bytes(call.message))
        call.on_message(answer)
        call.on_half_close(call.finish)

    method = RpcMethod(ECHO, handle, MethodKind.BIDIRECTIONAL)
    with running(make, {ECHO: method}) as run, connected(run.addresses[0]) as client:
        sent = [b"%d" % index for index in range(10)]
        answers = client.bidirectional(ECHO, sent)
        assert list(answers) == sent


def a_cancelled_stream_is_told(make: MakeTransport) -> None:
    """A client that leaves a stream ends it for the handler too."""
    seen = Seen()

    def handle(call: StreamCall) -> None:
        call.on_cancel(lambda: seen.note("cancelled"))
        call.send(b"one")

    method = RpcMethod(ECHO, handle, MethodKind.SERVER_STREAM)
    with running(make, {ECHO: method}) as run, connected(run.addresses[0]) as client:
        answers = client.server_stream(ECHO, b"")
        assert next(answers) == b"one"
        answers.cancel()
        assert seen.wait() == ["cancelled"]


def a_stream_that_is_over_is_let_go(make: MakeTransport) -> None:
    """However it ends: what its handler asked to be told of keeps it no longer."""
    freed = Seen()

    def handle(call: StreamCall) -> None:
        weakref.finalize(call, freed.note, bytes(call.message))
        if call.message == b"fail first":
            call.fail(NotFound("no"))
        call.on_cancel(lambda: call.finish())
        call.on_message(lambda message: call.fail(NotFound("no")))
        call.on_half_close(lambda: call.finish())

    method = RpcMethod(ECHO, handle, MethodKind.BIDIRECTIONAL)
    gc.collect()
    gc.disable()
    try:
        with (
            running(make, {ECHO: method}) as run,
            connected(run.addresses[0]) as client,
        ):
            list(client.bidirectional(ECHO, [b"half-closed"]))
            for first in (b"fail first", b"fail later"):
                with pytest.raises(grpc.RpcError):
                    list(client.bidirectional(ECHO, [first, b"more"]))
            assert sorted(freed.wait(3), key=str) == [
                b"fail first",
                b"fail later",
                b"half-closed",
            ]
    finally:
        gc.enable()


def a_stream_that_fails_without_its_handler_is_told(make: MakeTransport) -> None:
    """Whoever keeps open streams hears that one has failed, or it is kept for ever."""
    seen = Seen()

    def fail() -> None:
        raise ValueError("meant to fail")

    def handle(call: StreamCall) -> None:
        kind = bytes(call.message)
        call.on_cancel(lambda: seen.note(kind))
        if kind == b"handler":
            fail()
        elif kind == b"message":
            call.on_message(lambda message: fail())
        else:
            call.on_message(lambda message: None)
            call.on_half_close(fail)

    method = RpcMethod(ECHO, handle, MethodKind.BIDIRECTIONAL)
    with running(make, {ECHO: method}) as run, connected(run.addresses[0]) as client:
        for first in (b"handler", b"message", b"end"):
            with pytest.raises(grpc.RpcError) as caught:
                list(client.bidirectional(ECHO, [first, b"more"]))
            assert _code(caught.value) == Code.INTERNAL
        assert seen.wait(3) == [b"handler", b"message", b"end"]


STREAM_CHECKS: tuple[TransportCheck, ...] = (
    a_server_streams_messages,
    a_stream_may_end_with_a_reply_or_an_error,
    both_sides_stream,
    a_cancelled_stream_is_told,
    a_stream_that_is_over_is_let_go,
    a_stream_that_fails_without_its_handler_is_told,
)


def check_transport(make: MakeTransport) -> None:
    """Runs every check of a transport, streams included."""
    for check in TRANSPORT_CHECKS + STREAM_CHECKS:
        check(make)
