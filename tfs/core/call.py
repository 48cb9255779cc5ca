"""The seam between transports and handlers: one RPC as an object.

A transport turns bytes into calls and finished calls into bytes; a handler knows
nothing of HTTP/2, grpcio or sockets. Both sides run on the serving loop, except
that a call may be finished from any thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tfs.core.errors import ServingError
from tfs.core.servable import CancelToken, Trace

Metadata = Sequence[tuple[str, str | bytes]]

PRIORITY_KEY: Final = "tfs-priority"
"""The metadata key by which a caller says that others come first."""


def is_low_priority(metadata: Metadata) -> bool:
    """Returns whether the caller gives way: ``tfs-priority: low``."""
    return (PRIORITY_KEY, "low") in metadata


@dataclass(frozen=True, slots=True)
class Peer:
    """Who calls, and through which listener. Immutable.

    Attributes:
        address: "127.0.0.1:51024", "[::1]:51024" or "unix:/run/tfs.sock".
        listener: Name of the listener that accepted the connection.
        is_loopback: Whether the address is a loopback one.
        identity: Verified TLS names of the client; empty without mutual TLS.

    """

    address: str
    listener: str
    is_loopback: bool = False
    identity: tuple[str, ...] = ()


class Call(Protocol):
    """One RPC in progress. Finishing is thread-safe; the rest is the loop's.

    Implementors promise:

    1. the first ``reply`` or ``fail`` wins; later ones do nothing and are counted;
    2. finishing never blocks and never raises, also when the client is gone;
    3. when the deadline passes or the client cancels, the call is finished by the
       transport at once (DEADLINE_EXCEEDED, CANCELLED), ``cancel`` is marked with
       that error, and the ``on_cancel`` functions run, once, on the loop;
    4. ``message`` stays valid until the call is finished *and* its handler's last
       function has returned;
    5. after ``take_room`` has returned False, the handler is called again with the same
       call, unless that ends before.
    """

    @property
    def method(self) -> str:
        """The path: ``/tensorflow.serving.PredictionService/Predict``."""
        ...

    @property
    def message(self) -> bytes | memoryview:
        """The request, uncompressed; for client streaming the first one."""
        ...

    @property
    def deadline_s(self) -> float | None:
        """Absolute, monotonic, fixed when the headers arrived; None for none."""
        ...

    @property
    def opened_s(self) -> float:
        """When the headers arrived, monotonic."""
        ...

    @property
    def metadata(self) -> Metadata:
        """The request's metadata, lower-case keys; ``-bin`` values are bytes."""
        ...

    @property
    def peer(self) -> Peer:
        """The caller."""
        ...

    @property
    def cancel(self) -> CancelToken:
        """Marked when nobody waits any more; handed on with the task."""
        ...

    def reply(self, message: bytes) -> None:
        """Finishes the call with OK and ``message``."""
        ...

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Does as ``reply`` with the parts joined, without copying them.

        The caller must not change the parts any more.
        """
        ...

    def fail(self, error: ServingError) -> None:
        """Finishes the call with the error's code, message and retry hint."""
        ...

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` if the call ends without being finished by its handler.

        If it has ended already, ``fn`` is called before this returns.
        """
        ...

    def take_room(self, num_bytes: int, *, is_all: bool = False) -> bool:
        """Takes room for what will be far longer in memory than what was sent.

        Args:
            num_bytes: How long it will be.
            is_all: Whether that is all, such as a long answer; otherwise it is the
                request, and its answer is expected to be as long.

        Returns:
            Whether there is room. If not, the handler must forget the call for now: it
            is called again once there is, and then this returns True for as much.

        Raises:
            ResourceExhausted: There is never room for so much.

        """
        ...


class BurstCall(Call, Protocol):
    """A unary call that arrived together with others; see :class:`RpcMethod`.

    Attributes:
        is_finished: Whether it has ended, by its handler or otherwise.

    """

    @property
    def is_finished(self) -> bool: ...

    @staticmethod
    def reply_all(calls: Sequence[Any], messages: Sequence[Any]) -> None:
        """Does as ``reply`` of each call with its message, but at less cost.

        Messages are bytes; or tuples of them, where the transport's writers make such.

        All calls must be of this class. Thread-safe.
        """
        ...


class StreamCall(Call, Protocol):
    """A call with any number of messages in either direction.

    ``reply`` sends a last message and ends the stream; ``finish`` just ends it.
    """

    def send(self, message: bytes) -> bool:
        """Queues one message; False, and nothing sent, if the client reads too slowly.

        The bound is the transport's; the handler may drop, coalesce or fail.
        """
        ...

    def on_message(self, fn: Callable[[bytes | memoryview], None]) -> None:
        """Calls ``fn`` on the loop for each later request message.

        To be called before the handler returns, as ``on_half_close``.
        """
        ...

    def on_half_close(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` once, on the loop, when the client will send no more."""
        ...

    def finish(self) -> None:
        """Ends the stream with OK."""
        ...


class MethodKind(enum.Enum):
    """How many messages each side sends."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDIRECTIONAL = "bidirectional"


Handler = Callable[[Call], None]
BurstHandler = Callable[[Sequence[BurstCall]], None]
StreamHandler = Callable[[StreamCall], None]


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """How one path is answered. The handler runs on the serving loop; never blocks.

    A handler that raises fails its call with INTERNAL; the transport logs it.

    Attributes:
        path: ``/package.Service/Method``.
        handler: Takes a call whose request has arrived.
        kind: How many messages each side sends.
        burst_handler: For a unary method: used in the place of ``handler`` for calls
            that arrived together, in order; None if nothing is gained by that. Some of
            the calls may have ended since; ``cancel`` says so. A transport need not use
            it.

    """

    path: str
    handler: Handler | StreamHandler
    kind: MethodKind = MethodKind.UNARY
    burst_handler: BurstHandler | None = None

    @property
    def service(self) -> str:
        """The full service name within the path."""
        return self.path[1 : self.path.rindex("/")]


MethodTable = Mapping[str, RpcMethod]
"""Methods by path."""


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """One listener: its address, which services it exposes, and how it is secured.

    Attributes:
        name: Its name in logs and access rules ("grpc", "admin").
        address: "0.0.0.0:8500", "[::]:8500" (port 0 picks a free one) or
            "unix:/absolute/path".
        services: Full names of the services it exposes; None exposes all.
        unix_mode: Permissions of a Unix socket.
        tls: Where certificates come from; None for plain text.
        protocol: What is spoken within TLS, by its name there: "h2" or "http/1.1".

    """

    name: str
    address: str
    services: frozenset[str] | None = None
    unix_mode: int = 0o660
    tls: TlsSource | None = None
    protocol: str = "h2"


class TlsSource(Protocol):
    """Certificates that may be renewed while a listener is open.

    Implementors promise: whether clients are verified never changes.
    """

    def current(self) -> TlsOptions:
        """Returns the certificates for a new connection; the same object while equal.

        Thread-safe; never raises; may read files, so not for the serving loop.
        """
        ...


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM contents, not paths (as TensorFlow Serving's SSLConfig). Immutable.

    As a :class:`TlsSource` these certificates are never renewed.
    """

    server_key: bytes = field(repr=False)
    server_cert: bytes
    client_ca: bytes = b""
    verify_client: bool = False

    def current(self) -> TlsOptions:
        """Returns itself."""
        return self


class Transport(Protocol):
    """Speaks gRPC on some listeners. ``start`` and the rest run off the loop.

    Implementors promise: ``start`` binds all listeners or none. A method that a
    listener does not expose, or that nobody knows, is answered with UNIMPLEMENTED. Once
    ``drain`` has begun, no new call is taken (UNAVAILABLE, or GOAWAY), and those taken
    are finished. ``close`` ends what is left.
    """

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the listeners; returns their addresses with the real ports.

        Raises:
            Unavailable: An address is in use or cannot be bound; nothing is open.

        """
        ...

    def drain(self, deadline_s: float) -> bool:
        """Takes no new calls; blocks until those taken are finished.

        Returns whether all were finished by the (monotonic) deadline.
        """
        ...

    def close(self) -> None:
        """Closes every connection and listener; idempotent."""
        ...


class Tracer(Protocol):
    """Decides which requests are traced. Confined to the serving loop; never raises."""

    def begin(self, call: Call, method: str) -> Trace | None:
        """Begins the trace of a request, if it is sampled."""
        ...

    def begin_some(self, calls: Sequence[Call], method: str) -> bool:
        """Begins the traces of those requests that are sampled; returns if any is."""
        ...


class Tracing:
    """What traces requests of this process; one for all, as its environment says.

    A request that is sampled carries a :class:`~tfs.core.servable.Trace` on its cancel token,
    and its task carries the one under which it is computed. Without a tracer nothing is
    made, and nothing is looked at but :data:`TRACING`.

    Attributes:
        tracer: None if nothing does.

    """

    __slots__ = ("tracer",)

    def __init__(self) -> None:
        self.tracer: Tracer | None = None


TRACING: Final = Tracing()


def begin_trace(call: Call, method: str) -> bool:
    """Begins the trace of a call, once, if it is sampled; returns whether it has one."""
    tracer = TRACING.tracer
    if tracer is None:
        return False
    token = call.cancel
    if token.trace is None:
        token.trace = tracer.begin(call, method)
    return token.trace is not None
