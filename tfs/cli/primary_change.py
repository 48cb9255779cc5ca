"""Code that ``tfs promote`` and ``tfs rollback`` share: both choose a model's primary."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tfs.cli.admin_client import add_connection_arguments
from tfs.cli.argument_range import version_number
from tfs.cli.change_report import outcome_lines
from tfs.cli.printing import as_json, emit

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments: model, version, ``--dry_run`` and the server's address."""
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("version", metavar="VERSION", type=version_number, nargs="?")
    parser.add_argument(
        "--dry_run", action="store_true", help="only check whether it could be done"
    )
    add_connection_arguments(parser)


def show(
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
    elif not is_done:
        now = "nothing does" if answers is None else f"version {answers} goes on"
        print(f"version {version} of {arguments.model} does not answer yet; {now}")
    elif version is not None:
        verb = "could be" if arguments.dry_run else "is"
        print(f"version {version} of {arguments.model} {verb} the primary")
    if not arguments.json:
        emit(outcome_lines(reply.outcome))
    return 0 if is_done else 1
