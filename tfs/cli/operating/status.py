"""``tfs status`` and ``tfs models``: how a running server and its models do."""

from __future__ import annotations

import argparse

from tfs.cli.connection import add_admin_arguments, ask
from tfs.cli.operating.model_table import (
    models_table,
    server_lines,
    stats_table,
    versions_table,
)
from tfs.cli.operating.queue_table import batching_table
from tfs.cli.printing import as_json, emit, notes_lines


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds both commands."""
    status = subparsers.add_parser(
        "status",
        help="how a running server does",
        description="Shows the server, and one line for each model: what answers, how "
        "fast, what is on trial, what is wrong. With --batching, one line for each batch "
        "queue instead: how requests are joined, and what came of it.",
    )
    status.add_argument("--batching", action="store_true", help="show the batch queues")
    status.add_argument(
        "--stats",
        action="store_true",
        help="what is counted too: requests, connections, batches, logs",
    )
    status.set_defaults(run=_run_status)
    models = subparsers.add_parser(
        "models",
        help="versions of a running server's models",
        description="Shows one line for each version: its state, since when, its "
        "memory, and why.",
    )
    models.add_argument(
        "--stats", action="store_true", help="with histograms (JSON only)"
    )
    models.set_defaults(run=_run_models)
    for parser in (status, models):
        parser.add_argument("models", nargs="*", metavar="MODEL", help="only these")
        add_admin_arguments(parser)


def _run_status(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    batching: bool = arguments.batching
    request = pb.ListModelsRequest(
        models=arguments.models,
        include_stats=batching or arguments.stats or not arguments.json,
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


def _run_models(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ListModelsRequest(
        models=arguments.models, include_stats=arguments.stats
    )
    reply = ask(arguments, "ListModels", request, pb.ListModelsResponse)
    print(as_json(reply) if arguments.json else versions_table(reply.models))
    return 0
