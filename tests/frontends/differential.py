"""Two servers that differ in their transport, handlers that do as they are asked, and calls."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.core.conformance.transport import MakeTransport
from tfs.core.call import Call, MethodKind, RpcMethod, StreamCall, Transport
from tfs.core.errors import BY_CODE, Code, NotFound, ServingError
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.grpcio.transport import GrpcioOptions, GrpcioTransport
from tfs.frontends.http2.state import ConnectionLimits
from tfs.testing.patience import PATIENCE_S

MAX_MESSAGE_BYTES: Final = 300_000

SHORT_S: Final = 0.05

CALL_NAME: Final = "call-name"

SERVICE: Final = "/tfs.differential.Test/"

FAILURES: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind for kind in (ValueError, MemoryError, TimeoutError, NotFound)
}

# Refusals that grpcio's core writes before it asks us; only their code is compared.
_CORE_TEXTS: Final = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED})

_CLIENTS_OWN: Final = frozenset(
    {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
)

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass
class Handlers:
    """Answers as the request asks. Runs on the serving loop.

    Attributes:
        held: calls of Hold by what their client named them; set once they are cut off.
    """

    held: dict[str, threading.Event] = field(default_factory=dict)

    def methods(self) -> dict[str, RpcMethod]:
        unary, stream = MethodKind.UNARY, MethodKind.SERVER_STREAM
        table = (
            RpcMethod(SERVICE + "Echo", self.echo, unary),
            RpcMethod(SERVICE + "Seen", self.seen, unary),
            RpcMethod(SERVICE + "Size", self.size, unary),
            RpcMethod(SERVICE + "Fail", self.fail, unary),
            RpcMethod(SERVICE + "Raise", self.raise_, unary),
            RpcMethod(SERVICE + "Later", self.later, unary),
            RpcMethod(SERVICE + "Hold", self.hold, unary),
            RpcMethod(SERVICE + "Stream", self.stream, stream),
            RpcMethod(SERVICE + "Chat", self.chat, MethodKind.BIDIRECTIONAL),
        )
        return {method.path: method for method in table}

    def echo(self, call: Call) -> None:
        call.reply(bytes(call.message))

    def seen(self, call: Call) -> None:
        seen = [
            (key, value if isinstance(value, str) else list(value))
            for key, value in call.metadata
            if key != "user-agent"
        ]
        about = [call.method, seen, call.deadline_s is not None, call.peer.listener]
        call.reply(json.dumps(about).encode())

    def size(self, call: Call) -> None:
        call.reply(b"x" * int(bytes(call.message)))

    def fail(self, call: Call) -> None:
        call.fail(_error(json.loads(bytes(call.message))))

    def raise_(self, call: Call) -> None:
        raise FAILURES[bytes(call.message).decode()]("meant to fail")

    def later(self, call: Call) -> None:
        message = bytes(call.message)
        threading.Thread(target=lambda: call.reply(message)).start()

    def hold(self, call: Call) -> None:
        told = threading.Event()
        self.held[str(dict(call.metadata)[CALL_NAME])] = told
        call.on_cancel(told.set)

    def stream(self, call: StreamCall) -> None:
        """Sends messages of the sizes asked for, then ends as asked."""
        asked = json.loads(bytes(call.message))
        for size in asked["sizes"]:
            call.send(b"m" * size)
        _end(call, asked["end"])

    def chat(self, call: StreamCall) -> None:
        """Echoes every message; "end …" ends the stream, as asked."""

        def answer(message: bytes | memoryview) -> None:
            text = bytes(message)
            if text.startswith(b"end "):
                _end(call, json.loads(text[4:]))
            else:
                call.send(text)

        answer(call.message)
        call.on_message(answer)
        call.on_half_close(call.finish)


def _error(asked: Sequence[Any]) -> ServingError:
    code, message, retry_after_s = asked
    return BY_CODE[Code(code)](message, retry_after_s=retry_after_s)


def _end(call: StreamCall, end: Any) -> None:
    if isinstance(end, str):
        call.reply(end.encode())
    elif end is None:
        call.finish()
    else:
        call.fail(_error(end))


@dataclass(frozen=True, slots=True)
class Sent:
    """A call to make.

    Attributes:
        messages: what the client sends; a unary method wants one.
        ends: how the client ends it: by waiting, or by cancelling, or by deadline.
    """

    method: str
    messages: tuple[bytes, ...] = field(default=(b"",), repr=False)
    metadata: Metadata = ()
    timeout_s: float | None = PATIENCE_S
    compression: grpc.Compression = grpc.Compression.NoCompression
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a client can know of a call."""

    code: grpc.StatusCode
    message: str | None
    replies: tuple[bytes, ...]
    initial: Metadata
    trailing: Metadata

    @property
    def short(self) -> str:
        """The outcome in words, with the lengths of what may be long."""
        lengths = [len(reply) for reply in self.replies]
        message = None if self.message is None else self.message[:100]
        return f"{self.code} {message!r} {lengths} {self.initial} {self.trailing}"


@dataclass(frozen=True, slots=True)
class Started:
    """A call on its way, and its name if somebody is to hold it."""

    name: str
    call: grpc.Call


class Side:
    """One transport and one client's connection to it."""

    def __init__(self, address: str, handlers: Handlers) -> None:
        self.address = address
        self._handlers = handlers
        self._names = (str(number) for number in itertools.count())
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
            ],
        )

    def close(self) -> None:
        self._channel.close()

    def start(self, sent: Sent) -> Started:
        """Begins the call: streaming both ways, whatever the method expects."""
        name = next(self._names)
        named = ((CALL_NAME, name),) if sent.method == "Hold" else ()
        method = self._channel.stream_stream(SERVICE + sent.method, bytes, bytes)
        call: grpc.Call = method(
            iter(sent.messages),
            timeout=sent.timeout_s,
            metadata=(*sent.metadata, *named),
            compression=sent.compression,
        )
        if sent.is_cancelled:
            call.cancel()  # type: ignore[no-untyped-call]
        return Started(name, call)

    def finish(self, sent: Sent, started: Started) -> Outcome:
        """Waits for the call's end, and until whoever held it was told.

        On a busy machine a short deadline is over before anybody holds the call.
        """
        call = started.call
        replies = []
        with contextlib.suppress(grpc.RpcError):
            replies.extend(iter(call))  # type: ignore[call-overload]
        code = call.code()
        is_ours = sent.method == "Fail" or code not in _CORE_TEXTS | _CLIENTS_OWN
        told = self._handlers.held.get(started.name)
        assert told is None or told.wait(PATIENCE_S), f"{sent} was cut off, untold"
        return Outcome(
            code,
            call.details() if is_ours else None,
            tuple(replies),
            _pairs(call.initial_metadata()) if is_ours else (),
            _pairs(call.trailing_metadata()) if is_ours else (),
        )

    def run(self, calls: Sequence[Sent]) -> list[Outcome]:
        """Makes the calls one after the other."""
        return [self.finish(sent, self.start(sent)) for sent in calls]

    def run_at_once(self, calls: Sequence[Sent]) -> list[Outcome]:
        """Makes all calls, then waits for their ends."""
        begun = [self.start(sent) for sent in calls]
        return [self.finish(*pair) for pair in zip(calls, begun, strict=True)]


def _pairs(metadata: object) -> Metadata:
    return tuple((key, value) for key, value in metadata or ())  # type: ignore


def make_grpcio(loop: ServingLoop) -> Transport:
    return GrpcioTransport(loop, GrpcioOptions(max_message_bytes=MAX_MESSAGE_BYTES))


def make_express(loop: ServingLoop) -> Transport:
    limits = ConnectionLimits(max_message_bytes=MAX_MESSAGE_BYTES)
    return ExpressTransport(loop, ExpressOptions(limits=limits))


MAKERS: Final[Mapping[str, MakeTransport]] = {
    "grpcio": make_grpcio,
    "express": make_express,
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Both transports."""

    grpcio: Side
    express: Side

    def check(self, calls: Sequence[Sent], *, at_once: bool = False) -> list[Outcome]:
        """Makes the calls to both, compares, returns what both answered."""
        run: Callable[[Side], list[Outcome]] = lambda side: (  # noqa: E731
            side.run_at_once(calls) if at_once else side.run(calls)
        )
        theirs, ours = run(self.grpcio), run(self.express)
        for sent, reference, outcome in zip(calls, theirs, ours, strict=True):
            assert outcome == reference, (
                f"{sent}: {outcome.short} through express, {reference.short} through "
                "grpcio"
            )
        return ours


_NAMES = st.from_regex(r"x[a-z0-9_.\-]{0,20}", fullmatch=True)

_TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)

_PLAIN_PAIRS = st.tuples(_NAMES.filter(lambda name: not name.endswith("-bin")), _TEXTS)

_BINARY_PAIRS = st.tuples(
    _NAMES.map(lambda name: name + "-bin"), st.binary(max_size=60)
)

METADATA = st.lists(_PLAIN_PAIRS | _BINARY_PAIRS, max_size=6).map(tuple)

COMPRESSION = st.sampled_from(list(grpc.Compression))

SIZES = st.sampled_from([0, 1, 100, 16_379, 16_384, 65_536, 200_000])

MESSAGES = SIZES.map(lambda size: b"abcdefgh" * (size // 8) + b"z" * (size % 8))

OVERSIZE = st.sampled_from([MAX_MESSAGE_BYTES + 1, 3 * MAX_MESSAGE_BYTES]).map(bytes)

ERRORS = st.tuples(
    st.sampled_from([int(code) for code in BY_CODE if code is not Code.OK]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.sampled_from(
        ["ä" * 1024, "x" * 1025, "%41 100 %", "日本" * 1000, "a\nb\tc\0"]
    ),
    st.sampled_from([None, 0.0, 1.5, 2.0]),
)

ENDS = st.none() | st.text(max_size=5) | ERRORS

SHORT = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Other examples each time; whoever sees one fail is told how to repeat it.
LONG = settings(SHORT, derandomize=False, print_blob=True)
