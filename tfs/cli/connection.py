"""The flags that say where a command's server is and how to reach it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tfs.cli.tls_files import read_credentials, silence_grpc
from tfs.core.errors import InvalidArgument, NotFound, Unavailable

if TYPE_CHECKING:
    from tfs.client import Client

DEFAULT_ADDRESS: Final = "127.0.0.1:8500"


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that :func:`connect` reads."""
    group = parser.add_argument_group("the server")
    group.add_argument(
        "--address",
        default=DEFAULT_ADDRESS,
        help=f"host:port or unix:/path (default {DEFAULT_ADDRESS})",
    )
    group.add_argument(
        "--timeout_s", type=float, default=30.0, help="for each call (default 30)"
    )
    group.add_argument(
        "--ca_file", "--ca", metavar="PEM", help="speak TLS, and trust what these sign"
    )
    group.add_argument(
        "--cert_file",
        "--cert",
        metavar="PEM",
        help="with mutual TLS: our certificate chain",
    )
    group.add_argument(
        "--key_file", "--key", metavar="PEM", help="with mutual TLS: its key"
    )


@contextlib.contextmanager
def connect(arguments: argparse.Namespace) -> Iterator[Client]:
    """Yields a client of the server that the flags name; it connects when it calls.

    Raises:
        InvalidArgument: A certificate cannot be read, or a flag needs another one.
        Unavailable: In the block: nobody listens there; names the flag for the address.
        NotFound: In the block: names the command that shows what there is.

    """
    silence_grpc()
    from tfs.client import Client
    from tfs.client.call_errors import HUNG_UP, NO_TLS, UNTRUSTED

    credentials = None
    if bool(arguments.cert_file) != bool(arguments.key_file):
        raise InvalidArgument("--cert_file and --key_file go together")
    if arguments.ca_file:
        credentials = read_credentials(
            arguments.ca_file, arguments.key_file, arguments.cert_file
        )
    elif arguments.cert_file:
        raise InvalidArgument("--cert_file needs --ca_file")
    client = Client(
        arguments.address, timeout_s=arguments.timeout_s, credentials=credentials
    )
    with client:
        try:
            yield client
        except Unavailable as error:
            if _NOBODY not in error.message:
                raise
            advice = "say with --address where it is"
            if any(words in error.message for words in HUNG_UP):
                advice = "--ca_file speaks TLS, --cert_file shows a certificate"
            elif any(words in error.message for words in NO_TLS):
                advice = "leave out --ca_file"
            elif any(words in error.message for words in UNTRUSTED):
                advice = "--ca_file is to hold who signed it"
            raise Unavailable(f"{error.message}; {advice}") from error
        except NotFound as error:
            status = "tfs status"
            if _OF_A_FLEET in error.message:
                status = "tfs hosted status"
            raise NotFound(
                f"{error.message}; {status} says what is served, or why it is not"
            ) from error


_NOBODY: Final = "failed to connect"
"""Part of grpcio's messages about connections that could not be made."""

_OF_A_FLEET: Final = "served by this fleet"
"""Part of a router's message about a model that it does not know."""
