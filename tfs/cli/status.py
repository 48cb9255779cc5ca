"""``tfs status``: shows how a running server and its models are doing."""

from __future__ import annotations

import argparse

from tfs.cli.admin_client import add_connection_arguments, ask
from tfs.cli.batching_table import batching_table
from tfs.cli.model_tables import models_table, server_lines, stats_table
from tfs.cli.printing import as_json, emit, notes_lines


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "status",
        help="how a running server does",
        description="Shows the server, and one line for each model: what answers, "
        "what is on trial, what is wrong. With --batching, one line for each batch "
        "queue instead: how requests are joined, and what came of it.",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only these")
    parser.add_argument("--batching", action="store_true", help="show the batch queues")
    parser.add_argument(
        "--stats",
        action="store_true",
        help="what is counted too: requests, connections, batches, logs",
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the status; 0 if the server answered."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    batching: bool = arguments.batching
    request = pb.ListModelsRequest(
        models=arguments.models, include_stats=batching or arguments.stats
    )
    reply = ask(arguments, "ListModels", request, pb.ListModelsResponse)
    if arguments.json:
        print(as_json(reply))
        return 0
    emit(server_lines(reply.server, len(reply.models)))
    if reply.models:
        print()
        print((batching_table if batching else models_table)(reply.models))
    if arguments.stats:
        print()
        print(stats_table(reply.server.stats))
    emit(notes_lines(reply.notes))
    return 0
