"""``tfs rollback``: returns to an older version, and stays there."""

from __future__ import annotations

import argparse

from tfs.cli.admin_client import ask
from tfs.cli.primary_change import add_arguments, show
from tfs.core.errors import InvalidArgument


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "rollback",
        help="return to an older version",
        description="Pins VERSION, or the version before the one that answers, as the "
        "primary: whatever versions come, until --end. It waits until that version "
        "answers, and works with the newest version's files damaged or gone.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--end", action="store_true", help="end the rollback: the configuration holds"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Rolls back and prints the outcome; 0 if that version answers."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    if arguments.version is not None and arguments.end:
        raise InvalidArgument("--end takes no version: the configuration holds again")
    request = pb.RollbackRequest(
        model=arguments.model,
        version=arguments.version,
        end=arguments.end,
        validate_only=arguments.dry_run,
    )
    reply = ask(arguments, "Rollback", request, pb.RollbackResponse)
    version = reply.version if reply.HasField("version") else None
    return show(arguments, reply, version, is_chosen=not arguments.end)
