"""How commands below ``tfs hosted`` reach the controller of a fleet."""

from __future__ import annotations

import argparse
import os
import uuid
from collections.abc import Callable
from typing import Any, Final

from tfs.cli.argument_range import Subparsers, seconds, version_number
from tfs.cli.connection import add_tls_arguments, credentials_of, silence_grpc
from tfs.cli.hosted.flag import flag
from tfs.cli.hosted.requests import request_of
from tfs.cli.printing import emit, notes_lines, table
from tfs.core.errors import Unavailable
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.server.admin.report_words import mebibytes

DEFAULT_CONTROLLER: Final = "127.0.0.1:8510"
CONTROLLER_VARIABLE: Final = "TFS_HOSTED_CONTROLLER"

_MARGIN_S: Final = 5.0  # for an answer, after what it waits for
_READ_S: Final = 30.0
_NOBODY: Final = "no server answers at"  # the client's words


def add_fleet_command(
    commands: Subparsers, name: str, what: str, run: Callable[..., int]
) -> argparse.ArgumentParser:
    """Adds a command that asks a fleet's controller; returns its parser."""
    parser = commands.add_parser(name, help=what, description=f"{what.capitalize()}.")
    group = parser.add_argument_group("controller")
    flag(
        group,
        "--controller ADDRESS",
        f"HOST:PORT or unix:/path (default ${CONTROLLER_VARIABLE}, or "
        f"{DEFAULT_CONTROLLER})",
        os.environ.get(CONTROLLER_VARIABLE, DEFAULT_CONTROLLER),
    )
    add_tls_arguments(group)
    parser.set_defaults(run=run)
    return parser


def add_change_command(
    commands: Subparsers, name: str, what: str, *words: str
) -> argparse.ArgumentParser:
    """Adds a command that changes a fleet, with these words; returns its parser."""
    parser = add_fleet_command(
        commands, name, what, lambda each: change(each, request_of(each))
    )
    for word in words:
        read = version_number if word == "VERSION" else str
        parser.add_argument(word.lower(), metavar=word, type=read)
    flag(parser, "--wait_s S", "for the change to be in force, at most", 60, seconds)
    what = "only if its generation, as tfs hosted why shows it, is still this one"
    flag(parser, "--if_generation N", what, None, int)
    flag(
        parser,
        "--request_id ID",
        "repeat a request whose answer was lost; it acts once (default: a new one)",
    )
    flag(parser, "--dry_run", "say what it would do, and do nothing")
    return parser


def change(arguments: argparse.Namespace, request: Any) -> int:
    """Sends a request that has an Edit, or simulates it; prints what becomes of it.

    Returns 0 if it is in force, or would be done, and 1 if it still waits.
    """
    edit, method = request.edit, type(request).__name__.removesuffix("Request")
    if arguments.if_generation is not None:
        edit.if_generation = arguments.if_generation
    if arguments.dry_run:
        field = "".join(f"_{c.lower()}" if c.isupper() else c for c in method)[1:]
        asked = pb.SimulateRequest(**{field: request})
        return _print_simulation(ask(arguments, "Simulate", asked, pb.Simulation))
    edit.request_id = arguments.request_id or str(uuid.uuid4())
    edit.wait_s = arguments.wait_s
    timeout_s = arguments.wait_s + _MARGIN_S
    op: pb.Op = ask(arguments, method, request, pb.Op, timeout_s)
    print(f"revision {op.revision}: {op.what}")
    emit(notes_lines(op.notes))
    if op.waits_for:
        print(f"waits for {op.waits_for}")
    return 1 if op.waits_for else 0


def ask(
    arguments: argparse.Namespace,
    method: str,
    request: Any,
    reply: Any,
    timeout_s: float = _READ_S,
) -> Any:
    """Calls the controller once; blocks until the reply or the timeout.

    Raises:
        ServingError: The controller's error, or it cannot be reached.

    """
    silence_grpc()
    from tfs.client import Client, RetryPolicy

    with Client(
        arguments.controller,
        timeout_s=timeout_s,
        retry=RetryPolicy(max_attempts=1),
        credentials=credentials_of(arguments),
    ) as client:
        try:
            path = f"/tfs.v1.Controller/{method}"
            return reply.FromString(client.send(path, request.SerializeToString()))
        except Unavailable as error:
            if not error.message.startswith(_NOBODY):
                raise
            raise Unavailable(
                f"cannot reach a controller at {arguments.controller}: start tfs hosted "
                f"up, or say where it is with --controller ({error.message})"
            ) from error


def _print_simulation(simulation: pb.Simulation) -> int:
    emit(notes_lines(simulation.notes))
    if simulation.refusal:
        print(f"would be refused: {simulation.refusal}")
        return 1
    moves = [
        (
            each.model,
            mebibytes(each.memory_bytes),
            ", ".join(each.from_jobs) or "-",
            ", ".join(each.to_jobs) or "-",
        )
        for each in simulation.moves
    ]
    if moves:
        print(table(("MODEL", "EACH", "FROM", "TO"), moves))
    else:
        print("no model would move")
    rows = [
        (each.job, mebibytes(each.memory_bytes), mebibytes(each.free_bytes))
        for each in simulation.jobs
    ]
    print(table(("JOB", "MEMORY", "FREE AFTERWARDS"), rows))
    return 0
