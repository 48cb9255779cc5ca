"""Calls AdminService for commands: one call, one answer, one clear error."""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tfs.cli.tls_files import read_credentials, silence_grpc
from tfs.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    Unavailable,
    Unimplemented,
)

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

DEFAULT_SOCKET: Final = "/run/tfs/admin.sock"
DEFAULT_ADDRESS: Final = "127.0.0.1:8500"
SOCKET_VARIABLE: Final = "TFS_ADMIN_SOCKET"

_DENIED: Final = os.strerror(errno.EACCES)

# What our servers, and those of grpc, say of a method that they do not have.
_NO_METHOD: Final = ("unknown method", "method not found")

R = TypeVar("R", covariant=True)


class _ReplyType(Protocol[R]):
    """A generated message class."""

    def FromString(self, s: bytes, /) -> R: ...


def add_connection_arguments(
    parser: argparse.ArgumentParser, *, prints_reply: bool = True
) -> None:
    """Adds the arguments that every command which speaks to a server takes."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--socket",
        metavar="PATH",
        help=f"its --admin_socket_path (default: ${SOCKET_VARIABLE}, or "
        f"{DEFAULT_SOCKET} if that is there)",
    )
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help=f"its gRPC address, without a socket (default {DEFAULT_ADDRESS})",
    )
    group.add_argument(
        "--ca",
        "--ca_file",
        metavar="FILE",
        help="PEM: speak TLS, and trust these authorities",
    )
    group.add_argument(
        "--cert",
        "--cert_file",
        metavar="FILE",
        help="PEM: who we are, for --admin_from=mtls",
    )
    group.add_argument(
        "--key", "--key_file", metavar="FILE", help="PEM: the key of --cert"
    )
    group.add_argument(
        "--timeout_s",
        type=float,
        default=60.0,
        metavar="S",
        help="how long to wait for it (default 60)",
    )
    if prints_reply:
        group.add_argument(
            "--json", action="store_true", help="print the reply as JSON"
        )


def target_of(arguments: argparse.Namespace) -> str:
    """Returns where the server is, in the form that grpc takes.

    Raises:
        InvalidArgument: Both a socket and an address were given, or the address is
            none.

    """
    if arguments.socket and arguments.address:
        raise InvalidArgument("--socket and --address exclude each other")
    if arguments.address:
        address = str(arguments.address)
        if "://" in address or ":" not in address:
            # Without this, grpc would take port 443, or would look up a host named
            # "http".
            raise InvalidArgument(f"--address takes HOST:PORT, no URL: {address}")
        return address
    socket = arguments.socket or os.environ.get(SOCKET_VARIABLE, "")
    if not socket and Path(DEFAULT_SOCKET).is_socket():
        socket = DEFAULT_SOCKET
    return f"unix:{Path(socket).absolute()}" if socket else DEFAULT_ADDRESS


def ask(
    arguments: argparse.Namespace, method: str, request: Message, reply: _ReplyType[R]
) -> R:
    """Calls AdminService once; blocks until the reply or the timeout.

    Raises:
        ServingError: The server's error, or the server cannot be reached.

    """
    silence_grpc()
    import grpc

    from tfs.client.call_errors import read_error

    target = target_of(arguments)
    if not arguments.timeout_s > 0:
        raise InvalidArgument(f"--timeout_s must be positive: {arguments.timeout_s:g}")
    with _channel(arguments, target) as channel:
        call: Any = channel.unary_unary(f"/tfs.v1.AdminService/{method}", None, None)
        try:
            answer = call(request.SerializeToString(), timeout=arguments.timeout_s)
        except grpc.RpcError as rpc_error:
            error = read_error(rpc_error)
            if isinstance(error, Unavailable):
                advice = _advice(target, error.message, has_ca=bool(arguments.ca))
                raise Unavailable(
                    f"cannot reach a server at {target}; {advice} ({error.message})"
                ) from rpc_error
            if isinstance(error, DeadlineExceeded):
                raise DeadlineExceeded(
                    f"the server at {target} did not answer within "
                    f"{arguments.timeout_s:g} s (--timeout_s)"
                ) from rpc_error
            if error.message.lower().startswith(_NO_METHOD):
                raise Unimplemented(
                    f"what answers at {target} takes no commands: a fleet's router "
                    "(tfs hosted status tells of the fleet), or no server of ours "
                    f"({error.message})"
                ) from rpc_error
            raise error from rpc_error
    return reply.FromString(answer)


def _advice(target: str, problem: str, *, has_ca: bool) -> str:
    """Returns what to do about a server that was not reached, from grpc's message."""
    from tfs.client.call_errors import HUNG_UP, NO_TLS, UNTRUSTED

    if target.startswith("unix:"):
        if _DENIED in problem:
            return (
                "its socket is another user's: call as the user that the server runs "
                "as, or over --address"
            )
    elif any(words in problem for words in NO_TLS):
        return "what listens there speaks no TLS: leave out --ca"
    elif has_ca and any(words in problem for words in (*HUNG_UP, *UNTRUSTED)):
        return (
            "TLS failed: see whether --ca signed its certificate, and whether it wants "
            "one of ours, --cert with --key"
        )
    elif any(words in problem for words in HUNG_UP):
        return "something listens there and hung up: if it speaks TLS, give --ca"
    return "say where it is with --socket or --address"


def _channel(arguments: argparse.Namespace, target: str) -> grpc.Channel:
    import grpc

    options = [("grpc.max_receive_message_length", -1)]
    if not arguments.ca:
        if arguments.cert or arguments.key:
            raise InvalidArgument("--cert and --key need --ca: without it no TLS")
        return grpc.insecure_channel(target, options)
    credentials = read_credentials(arguments.ca, arguments.key, arguments.cert)
    return grpc.secure_channel(target, credentials, options)
