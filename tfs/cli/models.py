"""``tfs models``: prints every version of every model, its state and the reason."""

from __future__ import annotations

import argparse

from tfs.cli.admin_client import add_connection_arguments, ask
from tfs.cli.model_tables import versions_table
from tfs.cli.printing import as_json


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "models",
        help="versions of a running server's models",
        description="Shows one line for each version: its state, since when, its "
        "memory, and why.",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only these")
    parser.add_argument(
        "--stats", action="store_true", help="with histograms (JSON only)"
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the versions; 0 if the server answered."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ListModelsRequest(
        models=arguments.models, include_stats=arguments.stats
    )
    reply = ask(arguments, "ListModels", request, pb.ListModelsResponse)
    print(as_json(reply) if arguments.json else versions_table(reply.models))
    return 0
