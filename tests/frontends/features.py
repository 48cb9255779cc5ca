"""What every transport must do for every peer, as functions; the pages about transports.

``python -m tests.frontends.features`` prints docs/transports.md and
docs/hostile-clients.md: a feature is listed as working only because the function beside
its name passes in the suite, and as refused only because the refusal is tested.
"""

from __future__ import annotations

import base64
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.certificates import CLIENT_NAME, Certificates
from tests.frontends.peers import H2, PEERS, Peer, Trust, is_ping_answered
from tfs.core.call import (
    Call,
    Handler,
    ListenerOptions,
    RpcMethod,
    TlsOptions,
    TlsSource,
    Transport,
)
from tfs.core.errors import Code, Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.grpcio.transport import GrpcioOptions, GrpcioTransport
from tfs.frontends.http2.state import ConnectionLimits
from tfs.proto.google.rpc import error_details_pb2, status_pb2

PATH: Final = "/test.Service/Ask"
LIMIT_BYTES: Final = 1 << 20
_DOCS: Final = Path(__file__).parents[2] / "docs"


def _grpcio(loop: ServingLoop, max_message_bytes: int) -> Transport:
    return GrpcioTransport(loop, GrpcioOptions(max_message_bytes=max_message_bytes))


def _express(loop: ServingLoop, max_message_bytes: int) -> Transport:
    limits = ConnectionLimits(max_message_bytes=max_message_bytes)
    return ExpressTransport(loop, ExpressOptions(limits=limits))


TRANSPORTS: Final[dict[str, Callable[[ServingLoop, int], Transport]]] = {
    "grpcio": _grpcio,
    "express": _express,
}


@contextlib.contextmanager
def served(
    transport: str,
    handler: Handler,
    *,
    address: str = "127.0.0.1:0",
    tls: TlsSource | None = None,
    max_message_bytes: int = 64 << 20,
) -> Iterator[str]:
    """Serves one method; yields the address."""
    loop = ServingLoop()
    loop.start()
    made = TRANSPORTS[transport](loop, max_message_bytes)
    try:
        (found,) = made.start(
            [ListenerOptions("grpc", address, tls=tls)],
            {PATH: RpcMethod(PATH, handler)},
        )
        yield found
    finally:
        made.close()
        loop.close()


def _echo(call: Call) -> None:
    call.reply(bytes(call.message))


def tcp(transport: str, peer: Peer) -> None:
    with served(transport, _echo) as address:
        assert peer.call(address, PATH, b"abc").message == b"abc"


def unix_socket(transport: str, peer: Peer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"unix:{folder}/tfs.sock"
        with served(transport, _echo, address=path) as address:
            assert peer.call(address, PATH, b"abc").message == b"abc"
        assert not Path(folder, "tfs.sock").exists()


def large_message(transport: str, peer: Peer) -> None:
    message = bytes(range(256)) * (20 << 10)
    with served(transport, _echo) as address:
        assert peer.call(address, PATH, message).message == message


def gzip_request(transport: str, peer: Peer) -> None:
    message = b"abc" * 10_000
    with served(transport, _echo) as address:
        assert peer.call(address, PATH, message, gzip=True).message == message


def gzip_bomb(transport: str, peer: Peer) -> None:
    message = bytes(8 * LIMIT_BYTES)
    with served(transport, _echo, max_message_bytes=LIMIT_BYTES) as address:
        answer = peer.call(address, PATH, message, gzip=True)
        assert answer.code == Code.RESOURCE_EXHAUSTED
        assert peer.call(address, PATH, b"abc").message == b"abc"


def request_limit(transport: str, peer: Peer) -> None:
    with served(transport, _echo, max_message_bytes=LIMIT_BYTES) as address:
        answer = peer.call(address, PATH, bytes(LIMIT_BYTES + 1))
        assert answer.code == Code.RESOURCE_EXHAUSTED
        assert peer.call(address, PATH, b"abc").message == b"abc"


def reply_limit(transport: str, peer: Peer) -> None:
    def too_much(call: Call) -> None:
        call.reply(bytes(LIMIT_BYTES + 1))

    with served(transport, too_much, max_message_bytes=LIMIT_BYTES) as address:
        assert peer.call(address, PATH, b"abc").code == Code.RESOURCE_EXHAUSTED


def deadline(transport: str, peer: Peer) -> None:
    with served(transport, lambda call: None) as address:
        answer = peer.call(address, PATH, b"", timeout_s=0.2)
        assert answer.code == Code.DEADLINE_EXCEEDED


def retry_info(transport: str, peer: Peer) -> None:
    def full(call: Call) -> None:
        call.fail(Unavailable("full", retry_after_s=1.5))

    with served(transport, full) as address:
        answer = peer.call(address, PATH, b"")
    assert answer.code == Code.UNAVAILABLE
    details = answer.trailers["grpc-status-details-bin"]
    if peer is H2:  # nobody has decoded it yet
        details = base64.b64decode(bytes(details) + b"==")  # type: ignore[arg-type]
    (detail,) = status_pb2.Status.FromString(details).details  # type: ignore[arg-type]
    delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
    assert (delay.seconds, delay.nanos) == (1, 500_000_000)


def metadata(transport: str, peer: Peer) -> None:
    def read(call: Call) -> None:
        found = dict(call.metadata)
        assert found["tfs-routing-key"] == "me"
        assert found["some-bin"] == b"\x00\xff"
        call.reply(b"read")

    sent: tuple[tuple[str, str | bytes], ...] = (
        ("tfs-routing-key", "me"),
        ("some-bin", b"\x00\xff"),
    )
    with served(transport, read) as address:
        assert peer.call(address, PATH, b"", metadata=sent).message == b"read"


def unknown_method(transport: str, peer: Peer) -> None:
    with served(transport, _echo) as address:
        answer = peer.call(address, "/test.Service/Other", b"")
        assert answer.code == Code.UNIMPLEMENTED


def ping(transport: str, peer: Peer) -> None:
    assert peer is H2  # the others never show us their PINGs
    with served(transport, _echo) as address:
        assert is_ping_answered(address)


def tls(transport: str, peer: Peer) -> None:
    made = Certificates()
    with served(transport, _echo, tls=made.tls()) as address:
        trust = Trust(made.authority)
        assert peer.call(address, PATH, b"abc", trust=trust).message == b"abc"
        assert peer.call(address, PATH, b"abc", timeout_s=2.0).code != Code.OK


def mutual_tls(transport: str, peer: Peer) -> None:
    def who(call: Call) -> None:
        call.reply(" ".join(call.peer.identity).encode())

    made = Certificates()
    with served(transport, who, tls=made.tls(mutual=True)) as address:
        trust = Trust(made.authority, *made.client_pem())
        names = peer.call(address, PATH, b"", trust=trust).message.decode()
        assert CLIENT_NAME in names.split()
        nobody = Trust(made.authority)
        answer = peer.call(address, PATH, b"", trust=nobody, timeout_s=2.0)
        assert answer.code != Code.OK


class _Renewable:
    """Certificates that a test changes; see :class:`tfs.core.call.TlsSource`."""

    def __init__(self, tls: TlsOptions) -> None:
        self.tls = tls

    def current(self) -> TlsOptions:
        return self.tls


def renewed_certificates(transport: str, peer: Peer) -> None:
    old, new = Certificates(), Certificates()
    source = _Renewable(old.tls())
    with served(transport, _echo, tls=source) as address:
        trust = Trust(old.authority)
        assert peer.call(address, PATH, b"abc", trust=trust).message == b"abc"
        source.tls = TlsOptions(b"no key", b"no certificate")
        assert peer.call(address, PATH, b"abc", trust=trust).message == b"abc"
        source.tls = new.tls()
        trust = Trust(new.authority)
        assert peer.call(address, PATH, b"abc", trust=trust).message == b"abc"
        trust = Trust(old.authority)
        answer = peer.call(address, PATH, b"abc", trust=trust, timeout_s=2.0)
        assert answer.code != Code.OK


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the matrix.

    Attributes:
        name: For people.
        check: Fails if the transport does not do it for the peer.
        peers: Names of the peers it can be shown with.

    """

    name: str
    check: Callable[[str, Peer], None]
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)


FEATURES: Final = (
    Feature("unary calls over TCP", tcp),
    Feature("unary calls over a Unix socket", unix_socket),
    Feature("messages of 5 MiB both ways", large_message),
    Feature("gzip requests", gzip_request),
    Feature("gzip requests that unpack beyond the limit are refused", gzip_bomb),
    Feature("requests beyond `--max_message_bytes` are refused", request_limit),
    Feature("replies beyond `--max_message_bytes` are refused", reply_limit),
    Feature("deadlines", deadline),
    Feature("errors with RetryInfo", retry_info),
    Feature("metadata, binary values too", metadata),
    Feature("unknown methods are UNIMPLEMENTED", unknown_method),
    Feature("keep-alive: PINGs are answered without a call", ping, ("h2",)),
    Feature("TLS, plain text refused", tls),
    Feature("mutual TLS, client's names known, strangers refused", mutual_tls),
    Feature("renewed certificates, for new connections", renewed_certificates),
)

_HEAD = """\
# The transports

Two implementations speak gRPC; a method, an error or a health check is the same through both.
**express**, our own HTTP/2 server, is what `--grpc_transport=auto`, the default, means. It needs a
fraction of the CPU, and bounds [what clients can take](hostile-clients.md). **grpcio** is Google's
library as it is, for trusted networks, where `--grpc_transport=grpcio` asks for it.

Of `--grpc_channel_arguments` express takes `grpc.max_connection_age_ms`,
`grpc.max_connection_age_grace_ms`, `grpc.max_concurrent_streams`, `grpc.keepalive_time_ms`,
`grpc.max_metadata_size` and `grpc.max_receive_message_length`; a warning names the others. grpcio
takes all.

Every entry below is a test (`tests/frontends/test_features.py`); *-* cannot be seen from that client.

"""
_TAIL = """
Every method, dtype and error is called through both transports by grpcio, grpcio.aio and h2
(`make test`), and by tensorflow-serving-api, @grpc/grpc-js, curl and h2load (`make test-clients`).
Tried by hand with express: gRPC for Java and for Ruby, grpclib, httpx, and hyper by way of pyqwest;
grpcio behind nginx (`grpc_pass`), HAProxy and nghttpx.

Through express a request may have 16 KB of headers. One with more is RESOURCE_EXHAUSTED; one
with more than 64 KB ends the connection, and everything else that was on it.

Replies are never compressed. A client that was silent for five minutes
(`grpc.keepalive_time_ms`) is asked for a sign of life.

## Numbers

`make bench-rpc` measures gRPC on your machine, and `make bench-http` HTTP: user and system time of the
server's process tree for each request, pinned to one core, beside the servers of
`tests/benchmarks/reference_server.py` and `fastapi_server.py`. Run them on a quiet machine.
"""
_HOSTILE = """\
# Hostile clients

There are three limits, which express and the HTTP port share; [grpcio](transports.md) is for
trusted networks.

1. **One budget of memory**, `--max_receive_bytes`, for all that clients make the server keep:
   streams (1 KB), TLS handshakes, requests from their first byte until they are answered, and answers
   until their clients have taken them. What waits for clients may take fifteen sixteenths of it; the rest
   is for whole requests. Connections (10,000 at most) take 4 KB each beside it. A request beyond 64 KB, or
   with an answer beyond, is admitted before its bytes come: three quarters for all of these, a quarter
   for a connection, or one alone; a sixteenth stays for short ones. What is not admitted waits in one
   queue, first come, first served; what a whole request takes beside its message goes before that.
   What there is no room for is RESOURCE_EXHAUSTED. The longest request is seven eighths of the budget.
2. **One timeout**: what waits for its client (the beginning of a connection, an unfinished frame,
   request or unread answer, the answer to a PING) moves by 64 KB within ten seconds, or ends. What
   waits ten seconds for the budget is RESOURCE_EXHAUSTED.
3. **One counter of nuisances** for each connection: frames that ask for nothing, and calls that are
   reset at once. Beyond 2,048, of which 100 a second and 4 an answer are forgotten, the connection
   ends with ENHANCE_YOUR_CALM and says which frames were too many.

So the server's resident memory grows by at most `--max_receive_bytes` and 64 MB. Each row is a test
(`tests/frontends/express/test_hostile.py`), with a good client beside it that is answered:

| what a client does | how it ends |
|---|---|
| resets its calls at once (CVE-2023-44487), makes the server reset them (CVE-2025-8671) | disconnected |
| sends CONTINUATION (CVE-2024-27316), PING, SETTINGS, PRIORITY or empty DATA without end | disconnected |
| makes megabytes of headers of a few kilobytes (HPACK bomb) | disconnected |
| says nothing, or leaves a frame unfinished | disconnected after ten seconds |
| opens no window for answers, or reads none | its calls end after ten seconds; further ones are RESOURCE_EXHAUSTED |
| sends all but the end of requests, or a body byte by byte | the same |
| sends 48 KB of a long request, as one of thousands | served in turn, or RESOURCE_EXHAUSTED |
| opens streams by the thousand | RESOURCE_EXHAUSTED beyond the budget |

What a request takes beyond what was sent (`--max_filled_bytes`, parsed JSON) counts in the same
budget; a compressed message is counted before it is unpacked. A good client beside a crowd that fills the budget has its short requests answered; its
long ones wait until those that make no progress have ended.

This page is printed by `python -m tests.frontends.features`.
"""
_DETAILS = """
## TLS, and details that differ

TLS is 1.2 or 1.3, with `h2` agreed by ALPN. A handshake is done on a thread of its own and may take
ten seconds. A Unix socket is never encrypted, as in TensorFlow Serving: the permissions of the file
(0660) and of its directory protect it.

A call that reaches grpcio in the instant in which the server ends may be told CANCELLED; through
express it is UNAVAILABLE. Clients that retry should retry both.

A client that closes only its sending direction (`shutdown(SHUT_WR)`) is gone: calls that are not
answered by then are cancelled.

A request whose headers break the rules of HTTP/2 is reset by express (PROTOCOL_ERROR), and the
other calls of its connection go on. Metadata that is not ASCII is passed on as Latin-1. A request
that is not gRPC gets an HTTP status, and a sentence in `grpc-message`: 415 for another content-type,
405 for another method than POST, 400 without `te: trailers`.

This page is printed by `python -m tests.frontends.features`.
"""


def pages() -> dict[Path, str]:
    """Returns docs/transports.md and docs/hostile-clients.md, by path."""
    return {
        _DOCS / "transports.md": _HEAD + _matrix() + _TAIL + _DETAILS,
        _DOCS / "hostile-clients.md": _HOSTILE,
    }


def _matrix() -> str:
    """Returns the table of features by transport and client."""
    columns = [(transport, peer.name) for transport in TRANSPORTS for peer in PEERS]
    lines = [
        "| feature | " + " | ".join(f"{t}, {p} client" for t, p in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for feature in FEATURES:
        cells = []
        for _, peer in columns:
            cells.append("yes" if peer in feature.peers else "-")
        lines.append(f"| {feature.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
