"""``tfs page``: where the server's page is, with the key that its buttons need."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers
from tfs.cli.connection import add_admin_arguments, answer, target_of
from tfs.core.errors import FailedPrecondition

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

_ANY_HOST = ("0.0.0.0", "[::]")


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "page",
        help="print the address of the server's page",
        description="Prints the URL of the page of --rest_api_port. It holds the key that "
        "was made when the server started: whoever opens it may operate the server.",
    )
    add_admin_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the URL."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    def lines(reply: pb.GetPageResponse) -> Iterator[str]:
        for address in reply.addresses:
            if not address.startswith("unix:"):
                scheme = "https" if reply.tls else "http"
                host = _host(address, target_of(arguments))
                yield f"{scheme}://{host}/#key={reply.key}"
                return
        raise FailedPrecondition(
            "the server has no page: start it with --rest_api_port=8501"
        )

    answer(arguments, pb.GetPageRequest(), pb.GetPageResponse, lines)
    return 0


def _host(address: str, target: str) -> str:
    """Returns the host and the port by which the caller reaches an address."""
    host, _, port = address.rpartition(":")
    if host in _ANY_HOST:
        asked = target.rpartition(":")[0]
        host = "localhost" if target.startswith("unix:") else asked
    return f"{host}:{port}"
