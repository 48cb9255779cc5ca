"""``tfs canary``: puts a version on trial, shows how it goes, ends it."""

from __future__ import annotations

import argparse

from tfs.cli.admin_client import add_connection_arguments, ask
from tfs.cli.argument_range import count, version_number
from tfs.cli.change_report import canary_lines, outcome_lines
from tfs.cli.printing import as_json, emit, notes_lines
from tfs.core.errors import InvalidArgument

_LIMITS = (
    ("min_samples", count, "N", "requests before any limit applies"),
    ("max_top1_disagreement", float, "SHARE", "of rows whose class is another"),
    ("max_mean_abs_diff", float, "X", "of the outputs' elements"),
    ("max_latency_ratio", float, "X", "the canary's mean latency over the primary's"),
    ("max_error_rate", float, "SHARE", "of the canary's requests"),
)


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "canary",
        help="try a version beside the one that serves",
        description="With VERSION: puts it on trial. Without: shows how the trial "
        "goes. The version is loaded whatever the version policy says.",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("version", metavar="VERSION", type=version_number, nargs="?")
    parser.add_argument(
        "--tee", type=float, metavar="SHARE", help="of requests to copy"
    )
    parser.add_argument(
        "--split",
        type=float,
        metavar="SHARE",
        help="of callers that the canary answers itself",
    )
    guard = parser.add_argument_group("guard: what ends the trial")
    for name, kind, metavar, words in _LIMITS:
        guard.add_argument(f"--{name}", type=kind, metavar=metavar, help=words)
    parser.add_argument(
        "--end", action="store_true", help="end the trial; the primary stays"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="only check whether it could be done"
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Sends the command and prints the outcome; 0 if the server accepted it."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    settings = ("tee", "split", *(name for name, *_ in _LIMITS))
    given = [name for name in settings if getattr(arguments, name) is not None]
    if arguments.version is None and given:
        raise InvalidArgument(
            f"--{given[0]} is of a trial that begins or changes: say which VERSION"
        )
    if arguments.version is None and not arguments.end:
        listing = pb.ListModelsRequest(models=[arguments.model])
        listed = ask(arguments, "ListModels", listing, pb.ListModelsResponse)
        report = listed.models[0]
        if arguments.json:
            print(as_json(report.canary) if report.HasField("canary") else "{}")
        else:
            emit(canary_lines(report))
        return 0
    if arguments.version is not None and arguments.end:
        raise InvalidArgument("--end takes no version: it ends the trial there is")
    request = pb.SetCanaryRequest(
        model=arguments.model, validate_only=arguments.dry_run
    )
    if not arguments.end:
        request.canary.version = arguments.version
        request.canary.tee_fraction = arguments.tee or 0.0
        request.canary.split_fraction = arguments.split or 0.0
        for name, *_ in _LIMITS:
            value = getattr(arguments, name)
            if value is not None:
                setattr(request.canary.guard, name, value)
    reply = ask(arguments, "SetCanary", request, pb.SetCanaryResponse)
    if arguments.json:
        print(as_json(reply))
        return 0
    emit(outcome_lines(reply.outcome))
    if not arguments.end and not (arguments.tee or arguments.split):
        idle = "it gets no requests but those that name it: --tee and --split are 0"
        emit(notes_lines([idle]))
    return 0
