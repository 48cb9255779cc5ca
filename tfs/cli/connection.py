"""Where a command's server is, how to reach it, and one call of its AdminService."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tfs.cli.printing import as_json, emit
from tfs.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unimplemented,
)

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

    from tfs.client import Client

DEFAULT_SOCKET: Final = "/run/tfs/admin.sock"
DEFAULT_ADDRESS: Final = "127.0.0.1:8500"
SOCKET_VARIABLE: Final = "TFS_ADMIN_SOCKET"
ADDRESS_VARIABLE: Final = "TFS_ADDRESS"

_NOT_REACHED: Final = "failed to connect"  # grpc's words
_HOW_TO_REACH_IT: Final = (
    "--address, or for commands --socket, say where it is; --ca speaks TLS and trusts who "
    "signed, --cert with --key shows a certificate of ours"
)

R = TypeVar("R", covariant=True, bound="Message")


class _ReplyType(Protocol[R]):
    """A generated message class."""

    def FromString(self, s: bytes, /) -> R: ...


def add_connection_arguments(
    parser: argparse.ArgumentParser, timeout_s: float = 30.0
) -> argparse._ArgumentGroup:
    """Adds the arguments that every command which speaks to a server takes."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help=f"HOST:PORT or unix:/path (default ${ADDRESS_VARIABLE}, or {DEFAULT_ADDRESS})",
    )
    add_tls_arguments(group)
    group.add_argument(
        "--timeout_s",
        type=float,
        default=timeout_s,
        metavar="S",
        help=f"how long to wait for an answer (default {timeout_s:g})",
    )
    group.set_defaults(socket=None)
    return group


def add_tls_arguments(group: argparse._ArgumentGroup) -> None:
    """Adds what :func:`credentials_of` reads."""
    group.add_argument(
        "--ca", "--ca_file", metavar="PEM", help="speak TLS, and trust what these sign"
    )
    group.add_argument(
        "--cert", "--cert_file", metavar="PEM", help="who we are, for mutual TLS"
    )
    group.add_argument("--key", "--key_file", metavar="PEM", help="the key of --cert")


def add_admin_arguments(
    parser: argparse.ArgumentParser, *, prints_reply: bool = True
) -> None:
    """Adds the arguments of a command that operates a server."""
    group = add_connection_arguments(parser, 60.0)
    group.add_argument(
        "--socket",
        metavar="PATH",
        help="its --admin_socket_path, without an address (default: "
        f"${SOCKET_VARIABLE}, or {DEFAULT_SOCKET} if that is there)",
    )
    parser.set_defaults(operates=True)
    if prints_reply:
        group.add_argument(
            "--json", action="store_true", help="print the reply as JSON"
        )


def target_of(arguments: argparse.Namespace) -> str:
    """Returns where the server is, in the form that grpc takes.

    What the command line says comes first, then the variables, then what is usual.

    Raises:
        InvalidArgument: Both a socket and an address were given, or the address is
            none.

    """
    if arguments.socket and arguments.address:
        raise InvalidArgument("--socket and --address exclude each other")
    socket, address = arguments.socket, arguments.address
    if not socket and not address and hasattr(arguments, "operates"):
        socket = os.environ.get(SOCKET_VARIABLE, "")
    if not socket and not address:
        address = os.environ.get(ADDRESS_VARIABLE, "")
    if not socket and not address and hasattr(arguments, "operates"):
        socket = DEFAULT_SOCKET if Path(DEFAULT_SOCKET).is_socket() else ""
    if socket:
        return f"unix:{Path(socket).absolute()}"
    address = str(address or DEFAULT_ADDRESS)
    if "://" in address or ":" not in address:
        # Without this, grpc would take port 443, or would look up a host named "http".
        raise InvalidArgument(f"--address takes HOST:PORT, no URL: {address}")
    return address


@contextlib.contextmanager
def connect(arguments: argparse.Namespace) -> Iterator[Client]:
    """Yields a client of the server that the arguments name; it connects when it calls.

    Raises:
        InvalidArgument: A certificate cannot be read, or a flag needs another one.
        Unavailable: In the block: nobody listens there; names the flag for the address.
        NotFound: In the block: names the command that shows what there is.

    """
    with _client(arguments, max_attempts=4) as client:
        try:
            yield client
        except NotFound as error:
            raise NotFound(
                f"{error.message}; tfs status, or of a fleet tfs hosted status, says what "
                "is served, or why it is not"
            ) from error


def ask(
    arguments: argparse.Namespace, method: str, request: Message, reply: _ReplyType[R]
) -> R:
    """Calls AdminService once; blocks until the reply or the timeout.

    Raises:
        ServingError: The server's error, or the server cannot be reached.

    """
    with _client(arguments, max_attempts=1) as client:
        try:
            path = f"/tfs.v1.AdminService/{method}"
            answer = client.send(path, request.SerializeToString())
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"the server at {target_of(arguments)} did not answer within "
                f"{arguments.timeout_s:g} s (--timeout_s)"
            ) from error
        except Unimplemented as error:
            raise Unimplemented(
                f"what answers at {target_of(arguments)} takes no commands: a fleet's "
                "router (tfs hosted status tells of the fleet), or no server of ours "
                f"({error.message})"
            ) from error
    return reply.FromString(answer)


def answer(
    arguments: argparse.Namespace,
    request: Message,
    reply: _ReplyType[R],
    lines: Callable[[R], Iterable[str]],
) -> R:
    """Calls the method of AdminService that takes such a request, and prints the reply.

    Args:
        arguments: Say where the server is, and whether to print JSON.
        request: The request.
        reply: The type of the reply.
        lines: Says the same for people.

    Raises:
        ServingError: As ``ask``.

    """
    method = type(request).__name__.removesuffix("Request")
    found = ask(arguments, method, request, reply)
    emit([as_json(found)] if arguments.json else lines(found))
    return found


@contextlib.contextmanager
def _client(arguments: argparse.Namespace, max_attempts: int) -> Iterator[Client]:
    silence_grpc()
    from tfs.client import Client, RetryPolicy

    target = target_of(arguments)
    if not arguments.timeout_s > 0:
        raise InvalidArgument(f"--timeout_s must be positive: {arguments.timeout_s:g}")
    with Client(
        target,
        timeout_s=arguments.timeout_s,
        retry=RetryPolicy(max_attempts=max_attempts),
        credentials=credentials_of(arguments),
    ) as client:
        try:
            yield client
        except Unavailable as error:
            if _NOT_REACHED not in error.message:
                raise
            raise Unavailable(f"{error.message}; {_HOW_TO_REACH_IT}") from error


_CERTIFICATE: Final = "CERTIFICATE"
_KEY: Final = "PRIVATE KEY"


def silence_grpc() -> None:
    """Keeps grpc from writing a line for each handshake that fails.

    The error that the command prints says the same. Call it before grpc is imported. A
    GRPC_VERBOSITY that the user has set stays in force.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def credentials_of(arguments: argparse.Namespace) -> grpc.ChannelCredentials | None:
    """Returns what --ca, --cert and --key say; None for plain text.

    The files are checked here, because grpc does not report a bad one: it tries to
    connect with what it could read.

    Raises:
        InvalidArgument: A flag needs another one; or a file cannot be read or does not
            contain what its flag asks for; names the file.

    """
    ca, cert, key = arguments.ca, arguments.cert, arguments.key
    if bool(cert) != bool(key) or (cert and not ca):
        raise InvalidArgument(
            "--cert and --key go together, and need --ca: without it no TLS"
        )
    if not ca:
        return None
    import grpc

    return grpc.ssl_channel_credentials(
        _read(ca, _CERTIFICATE),
        _read(key, _KEY) if key else None,
        _read(cert, _CERTIFICATE) if cert else None,
    )


def _read(path: str, kind: str) -> bytes:
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
    if f"{kind}-----".encode() not in text:
        raise InvalidArgument(f"{path} holds no {kind} in PEM form")
    return text
