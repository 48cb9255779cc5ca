"""``tfs promote``: makes a version the primary."""

from __future__ import annotations

import argparse

from tfs.cli.admin_client import ask
from tfs.cli.primary_change import add_arguments, show


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "promote",
        help="make the version on trial the primary",
        description="Makes the version on trial, or VERSION, the one that answers "
        "requests that name none, and ends the trial. It stays so, whatever versions "
        "come, until tfs config reset MODEL.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--force", action="store_true", help="although a guard rejected it"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Promotes a version and prints the outcome; 0 if that version answers."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.PromoteRequest(
        model=arguments.model,
        version=arguments.version,
        force=arguments.force,
        validate_only=arguments.dry_run,
    )
    reply = ask(arguments, "Promote", request, pb.PromoteResponse)
    return show(arguments, reply, reply.version)
