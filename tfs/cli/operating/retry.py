"""``tfs retry``: tries versions that failed again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers, version_number
from tfs.cli.connection import add_admin_arguments, answer
from tfs.cli.operating.model_table import models_table
from tfs.cli.printing import notes_lines

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "retry",
        help="try versions that failed again",
        description="Copies and loads VERSION of MODEL again, or all of its versions that "
        "failed, wait for their next attempt or are quarantined; what serves goes on, or "
        "makes way as the model's transition says. Waits for what comes of it.",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("version", metavar="VERSION", type=version_number, nargs="?")
    parser.add_argument(
        "--dry_run", action="store_true", help="only say which would be tried"
    )
    add_admin_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the outcome; 0 if all versions that were tried answer."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.RetryLoadRequest(
        model=arguments.model,
        version=arguments.version,
        validate_only=arguments.dry_run,
    )

    def lines(reply: pb.RetryLoadResponse) -> Iterator[str]:
        listed = ", ".join(map(str, reply.versions))
        if reply.status.code:
            verb = f"failed again: {reply.status.message}"
        else:
            verb = "could be tried again" if arguments.dry_run else "is available"
        yield f"version {listed} of {arguments.model} {verb}"
        if reply.HasField("model"):
            yield models_table([reply.model])
        yield from notes_lines(reply.notes)

    reply = answer(arguments, request, pb.RetryLoadResponse, lines)
    return 1 if reply.status.code else 0
