"""``tfs canary``, ``promote``, ``rollback``, ``retry``: which version answers, which is tried."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers, count, version_number
from tfs.cli.connection import add_admin_arguments, answer, ask
from tfs.cli.operating.model_table import canary_lines, models_table, outcome_lines
from tfs.cli.printing import as_json, emit, notes_lines
from tfs.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tfs.proto.tfs.v1 import admin_service_pb2 as pb


_LIMITS = (
    ("min_samples", count, "N", "requests before any limit applies"),
    ("max_top1_disagreement", float, "SHARE", "of rows whose class is another"),
    ("max_mean_abs_diff", float, "X", "of the outputs' elements"),
    ("max_latency_ratio", float, "X", "the canary's mean latency over the primary's"),
    ("max_error_rate", float, "SHARE", "of the canary's requests"),
)


def add_parser(subparsers: Subparsers) -> None:
    """Adds the four commands."""
    canary = _command(
        subparsers,
        "canary",
        "try a version beside the one that serves",
        "With VERSION: puts it on trial. Without: shows how the trial goes. The version "
        "is loaded whatever the version policy says.",
        _run_canary,
    )
    canary.add_argument(
        "--tee", type=float, metavar="SHARE", help="of requests to copy"
    )
    canary.add_argument(
        "--split",
        type=float,
        metavar="SHARE",
        help="of callers that the canary answers itself",
    )
    guard = canary.add_argument_group("guard: what ends the trial")
    for name, kind, metavar, words in _LIMITS:
        guard.add_argument(f"--{name}", type=kind, metavar=metavar, help=words)
    canary.add_argument(
        "--end", action="store_true", help="end the trial; the primary stays"
    )
    promote = _command(
        subparsers,
        "promote",
        "make the version on trial the primary",
        "Makes the version on trial, or VERSION, the one that answers requests that name "
        "none, and ends the trial. It stays so, whatever versions come, until tfs config "
        "reset MODEL.",
        _run_promote,
    )
    promote.add_argument(
        "--force", action="store_true", help="although a guard rejected it"
    )
    rollback = _command(
        subparsers,
        "rollback",
        "return to an older version",
        "Pins VERSION, or the version before the one that answers, as the primary: "
        "whatever versions come, until --end. It waits until that version answers, and "
        "works with the newest version's files damaged or gone.",
        _run_rollback,
    )
    rollback.add_argument(
        "--end", action="store_true", help="end the rollback: the configuration holds"
    )
    _command(
        subparsers,
        "retry",
        "try versions that failed again",
        "Copies and loads VERSION of MODEL again, or all of its versions that failed, "
        "wait for their next attempt or are quarantined; what serves goes on, or makes "
        "way as the model's transition says. Waits for what comes of it.",
        _run_retry,
        dry_run="only say which would be tried",
    )


def _command(
    subparsers: Subparsers,
    name: str,
    what: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
    dry_run: str = "only check whether it could be done",
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(name, help=what, description=description)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("version", metavar="VERSION", type=version_number, nargs="?")
    parser.add_argument("--dry_run", action="store_true", help=dry_run)
    add_admin_arguments(parser)
    parser.set_defaults(run=run)
    return parser


def _run_canary(arguments: argparse.Namespace) -> int:
    """Sends the command and prints the outcome; 0 if the server accepted it."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    settings = ("tee", "split", *(name for name, *_ in _LIMITS))
    given = [name for name in settings if getattr(arguments, name) is not None]
    if arguments.version is None and given:
        raise InvalidArgument(
            f"--{given[0]} is of a trial that begins or changes: say which VERSION"
        )
    if arguments.version is not None and arguments.end:
        raise InvalidArgument("--end takes no version: it ends the trial there is")
    if arguments.version is None and not arguments.end:
        listing = pb.ListModelsRequest(models=[arguments.model])
        (report,) = ask(arguments, "ListModels", listing, pb.ListModelsResponse).models
        if arguments.json:
            print(as_json(report.canary) if report.HasField("canary") else "{}")
        else:
            emit(canary_lines(report))
        return 0
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

    def lines(reply: pb.SetCanaryResponse) -> Iterator[str]:
        yield from outcome_lines(reply.outcome)
        if not arguments.end and not (arguments.tee or arguments.split):
            idle = "it gets no requests but those that name it: --tee and --split are 0"
            yield from notes_lines([idle])

    answer(arguments, request, pb.SetCanaryResponse, lines)
    return 0


def _run_promote(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.PromoteRequest(
        model=arguments.model,
        version=arguments.version,
        force=arguments.force,
        validate_only=arguments.dry_run,
    )
    reply = ask(arguments, "Promote", request, pb.PromoteResponse)
    return show_primary(arguments, reply, reply.version)


def _run_rollback(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    if arguments.end and arguments.version is not None:
        raise InvalidArgument("--end takes no version: the configuration holds again")
    request = pb.RollbackRequest(
        model=arguments.model,
        version=arguments.version,
        end=arguments.end,
        validate_only=arguments.dry_run,
    )
    reply = ask(arguments, "Rollback", request, pb.RollbackResponse)
    version = reply.version if reply.HasField("version") else None
    return show_primary(arguments, reply, version, is_chosen=not arguments.end)


def show_primary(
    arguments: argparse.Namespace,
    reply: pb.PromoteResponse | pb.RollbackResponse,
    version: int | None,
    *,
    is_chosen: bool = True,
) -> int:
    """Prints the outcome, and which version is the primary if there is one.

    Args:
        arguments: Arguments of the command.
        reply: The reply of the server.
        version: The version that was chosen, or that answers now; None if there is
            none.
        is_chosen: Whether ``version`` should answer because of the command.

    Returns:
        The exit code: 1 if the chosen version does not answer.

    """
    model = reply.outcome.model
    answers = model.primary if model.HasField("primary") else None
    is_done = arguments.dry_run or not is_chosen or answers == version
    if arguments.json:
        print(as_json(reply))
        return 0 if is_done else 1
    if not is_done:
        now = "nothing does" if answers is None else f"version {answers} goes on"
        print(f"version {version} of {arguments.model} does not answer yet; {now}")
    elif version is not None:
        verb = "could be" if arguments.dry_run else "is"
        print(f"version {version} of {arguments.model} {verb} the primary")
    emit(outcome_lines(reply.outcome))
    return 0 if is_done else 1


def _run_retry(arguments: argparse.Namespace) -> int:
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
