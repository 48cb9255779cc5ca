"""``tfs hosted``: which models a fleet serves, and which servers may have them."""

from __future__ import annotations

import argparse
import math

from tfs.cli.argument_range import Subparsers, count, servers, size, version_number
from tfs.cli.connection import add_admin_arguments, answer, target_of
from tfs.cli.hosted.controller import add_change_command
from tfs.cli.hosted.flag import flag
from tfs.cli.hosted.process_flags import add_run, add_up, runner
from tfs.cli.hosted.status import add_status
from tfs.proto.tfs.v1 import admin_service_pb2 as pb


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
    _add_release(commands)
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
    flag(
        parser,
        "--servers N[-M]",
        "with a NAME: how many to start; up to M when models want so many; 0-M, in Temp: "
        "none while there is no model",
        None,
        servers,
    )
    what = "with a NAME: how many processors each of them may use (default all)"
    flag(parser, "--cpus N", what, 0, count)
    _add_partition(parser)
    flag(parser, "--zone NAME", "where it is; copies of a model go to different zones")
    parser.add_argument(
        "--instance",
        choices=("prod", "temp"),
        default="",
        help="temp: for models of Temp alone (default: for any)",
    )
    what = "move its models away, and take it out when they answer elsewhere"
    parser = add_change_command(commands, "remove-job", what)
    parser.add_argument("job", metavar="ADDRESS|NAME")
    flag(parser, "--force", "at once, also if they have no other place")


def _add_release(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "release",
        help="give a server free whose fleet is gone",
        description="Has a server (--source=rpc) forget its fleet, so that another one may "
        "claim it. It goes on serving what it has. A fleet that still names the server "
        "claims it again: say remove-job there first.",
    )
    parser.add_argument("server", metavar="SERVER", help="HOST:PORT or unix:/path")
    add_admin_arguments(parser)
    parser.set_defaults(run=_release)


def _release(arguments: argparse.Namespace) -> int:
    arguments.address = arguments.server

    def lines(reply: pb.LeaveFleetResponse) -> list[str]:
        left = f"has left the fleet {reply.claim.name}"
        said = left if reply.HasField("claim") else "belonged to no fleet"
        return [f"{target_of(arguments)} {said}"]

    answer(arguments, pb.LeaveFleetRequest(), pb.LeaveFleetResponse, lines)
    return 0


def _add_models(commands: Subparsers) -> None:
    parser = add_change_command(commands, "add-model", "have a model served", "MODEL")
    parser.add_argument(
        "base_path", metavar="BASE_PATH", help="where its versions are, on every server"
    )
    _add_model_flags(parser)
    what = (
        "copy a version to where servers find it, and add it, or the model that is new"
    )
    parser = add_change_command(commands, "upload", what, "MODEL")
    parser.set_defaults(run=runner("upload"))
    parser.add_argument("directory", metavar="DIRECTORY", help="the version's files")
    what = "its number (default: the directory's name, or the next one)"
    flag(parser, "--version N", what, None, version_number)
    _add_model_flags(parser)
    what = "change on how many servers it is, or its size"
    _add_hints(add_change_command(commands, "scale", what, "MODEL"))
    what = "change its base path or config"
    parser = add_change_command(commands, "update-model", what, "MODEL")
    flag(parser, "--base_path BASE_PATH", "", None)
    flag(parser, "--config TEXT", "in the place of the fields that it has", None)
    flag(parser, "--partition NAME", "", None)
    add_change_command(commands, "remove-model", "have a model served no more", "MODEL")


def _add_versions(commands: Subparsers) -> None:
    both = "MODEL", "VERSION"
    add_change_command(
        commands, "add-version", "wait for a new version to answer", *both
    )
    parser = add_change_command(commands, "canary", "put a version on trial", *both)
    what = "the version that answers meanwhile (default: the one that answers now)"
    flag(parser, "--primary VERSION", what, None, version_number)
    flag(parser, "--tee SHARE", "", 0.0, float)
    flag(parser, "--split SHARE", "", 0.0, float)
    for name, what in (
        ("promote", "make a version the primary, everywhere"),
        ("rollback", "return to an older version, everywhere"),
    ):
        parser = add_change_command(commands, name, what, "MODEL")
        parser.add_argument(
            "version", metavar="VERSION", type=version_number, nargs="?"
        )
        flag(parser, "--end", "let the newest version answer again")


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    _add_hints(parser, " (default: three, in Temp two, if there are so many)")
    _add_partition(parser)
    what = "further fields of its ModelConfig: 'transition: RESOURCE_PRESERVING'"
    flag(parser, "--config TEXT", what)


def _add_hints(parser: argparse.ArgumentParser, of_new: str = "") -> None:
    flag(
        parser,
        "--replicas N[-M]",
        "on how many servers; 2-6: two, and up to six if load asks for it; 0-2, of a "
        "model of Temp: none while nobody asks for it" + of_new,
        None,
        servers,
    )
    what = "what a replica takes while versions change: 500M (0: as measured)"
    flag(parser, "--memory SIZE", what, None, _size_or_0)
    what = "how many processors a replica keeps busy: 0.5 (0: not known)"
    flag(parser, "--cpus X", what, None, processors)


def _add_partition(parser: argparse.ArgumentParser) -> None:
    what = "models go to servers of the same partition: gpu, eu"
    flag(parser, "--partition NAME", what)


def _size_or_0(text: str) -> int:
    return 0 if text == "0" else size(text)


def processors(text: str) -> float:
    """Returns a number of processors, 0 or more."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number
