"""``tfs hosted``: which models a fleet serves, and which servers may have them."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from tfs.cli.argument_range import count, servers, size, version_number
from tfs.cli.hosted.controller import add_change_command
from tfs.cli.hosted.release import add_release
from tfs.cli.hosted.run import add_run
from tfs.cli.hosted.status import add_status
from tfs.cli.hosted.up import add_up
from tfs.cli.hosted.upload import upload

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command and those below it."""
    parser = subparsers.add_parser(
        "hosted",
        help="serve models on a fleet of servers",
        description="Operates a fleet: which models there are, and which servers may have "
        "them. The fleet finds each a server with room, and routes requests.",
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="hosted_command", required=True
    )
    add_up(commands)
    add_run(commands)
    add_status(commands)
    _add_jobs(commands)
    add_release(commands)
    _add_models(commands)
    _add_versions(commands)


def _add_jobs(commands: Subparsers) -> None:
    parser = add_change_command(
        commands, "add-job", "add a job of servers, or change it"
    )
    parser.add_argument(
        "job",
        metavar="ADDRESS|NAME",
        help="the HOST:PORT or unix:/path of a server that runs; or a name, for a job "
        "whose servers the fleet starts",
    )
    parser.add_argument(
        "--memory",
        type=size,
        required=True,
        metavar="SIZE",
        help="what the models of each server may take together: 8G",
    )
    parser.add_argument(
        "--servers",
        type=servers,
        metavar="N[-M]",
        help="with a NAME: how many to start; up to M when models want so many; 0-M, in "
        "Temp: none while there is no model",
    )
    parser.add_argument(
        "--cpus",
        type=count,
        default=0,
        metavar="N",
        help="with a NAME: how many processors each of them may use (default all)",
    )
    _add_partition(parser)
    parser.add_argument(
        "--zone",
        default="",
        metavar="NAME",
        help="where it is; copies of a model go to different zones",
    )
    parser.add_argument(
        "--instance",
        choices=("prod", "temp"),
        default="",
        help="temp: for models of Temp alone (default: for any)",
    )
    parser = add_change_command(
        commands,
        "remove-job",
        "move its models away, and take it out when they answer elsewhere",
    )
    parser.add_argument("job", metavar="ADDRESS|NAME")
    parser.add_argument(
        "--force", action="store_true", help="at once, also if they have no other place"
    )


def _add_models(commands: Subparsers) -> None:
    parser = add_change_command(commands, "add-model", "have a model served")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "base_path", metavar="BASE_PATH", help="where its versions are, on every server"
    )
    _add_model_arguments(parser)
    parser = add_change_command(
        commands,
        "upload",
        "copy a version to where servers find it, and add it, or the model that is new",
    )
    parser.set_defaults(run=upload)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("directory", metavar="DIRECTORY", help="the version's files")
    parser.add_argument(
        "--version",
        type=version_number,
        metavar="N",
        help="its number (default: the directory's name, or the next one)",
    )
    _add_model_arguments(parser)
    parser = add_change_command(
        commands, "scale", "change on how many servers it is, or its size"
    )
    parser.add_argument("model", metavar="MODEL")
    _add_hints(parser)
    parser = add_change_command(
        commands, "update-model", "change its base path or config"
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--base_path", metavar="BASE_PATH")
    parser.add_argument(
        "--config", metavar="TEXT", help="in the place of the fields that it has"
    )
    parser.add_argument("--partition", metavar="NAME")
    parser = add_change_command(commands, "remove-model", "have a model served no more")
    parser.add_argument("model", metavar="MODEL")


def _add_versions(commands: Subparsers) -> None:
    parser = add_change_command(
        commands, "add-version", "wait for a new version to answer"
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("version", metavar="VERSION", type=version_number)
    parser = add_change_command(commands, "canary", "put a version on trial")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("version", metavar="VERSION", type=version_number)
    parser.add_argument(
        "--primary",
        type=version_number,
        metavar="VERSION",
        help="the version that answers meanwhile (default: the one that answers now)",
    )
    parser.add_argument("--tee", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--split", type=float, default=0.0, metavar="SHARE")
    for name, what in (
        ("promote", "make a version the primary, everywhere"),
        ("rollback", "return to an older version, everywhere"),
    ):
        parser = add_change_command(commands, name, what)
        parser.add_argument("model", metavar="MODEL")
        parser.add_argument(
            "version", metavar="VERSION", type=version_number, nargs="?"
        )
        parser.add_argument(
            "--end", action="store_true", help="let the newest version answer again"
        )


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    _add_hints(parser, " (default: three, in Temp two, if there are so many)")
    _add_partition(parser)
    parser.add_argument(
        "--config",
        default="",
        metavar="TEXT",
        help="further fields of its ModelConfig: 'transition: RESOURCE_PRESERVING'",
    )


def _add_hints(parser: argparse.ArgumentParser, of_new: str = "") -> None:
    parser.add_argument(
        "--replicas",
        type=servers,
        metavar="N[-M]",
        help="on how many servers; 2-6: two, and up to six if load asks for it; 0-2, of a "
        "model of Temp: none while nobody asks for it" + of_new,
    )
    parser.add_argument(
        "--memory",
        type=lambda text: 0 if text == "0" else size(text),
        metavar="SIZE",
        help="what a replica takes while versions change: 500M (0: as measured)",
    )
    parser.add_argument(
        "--cpus",
        type=processors,
        metavar="X",
        help="how many processors a replica keeps busy: 0.5 (0: not known)",
    )


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partition",
        default="",
        metavar="NAME",
        help="models go to servers of the same partition: gpu, eu",
    )


def processors(text: str) -> float:
    """Returns a number of processors, 0 or more."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number
