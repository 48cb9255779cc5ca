"""``tfs hosted``: which models a fleet serves, and which servers may have them."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import count, version_number
from tfs.cli.hosted_run import add_run
from tfs.cli.hosted_status import add_status
from tfs.cli.hosted_store import add_fleet_command, controller_of
from tfs.cli.printing import mebibytes
from tfs.core.errors import InvalidArgument

if TYPE_CHECKING:
    from tfs.hosted.fleet_store import Revision

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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
    add_run(commands)
    add_status(commands)
    _add_jobs(commands)
    _add_models(commands)
    _add_versions(commands)


def _add_jobs(commands: Subparsers) -> None:
    parser = add_fleet_command(
        commands, "add-job", "add a server, or change it", _add_job
    )
    parser.add_argument(
        "address", type=job_address, metavar="ADDRESS", help="HOST:PORT or unix:/path"
    )
    parser.add_argument(
        "--memory",
        type=size,
        required=True,
        metavar="SIZE",
        help="what its models may take together, as its --model_memory_limit_bytes: 8G",
    )
    _add_partition(parser)
    parser = add_fleet_command(
        commands,
        "remove-job",
        "move its models away, and take it out when they answer elsewhere",
        _remove_job,
    )
    parser.add_argument("address", metavar="ADDRESS")
    parser.add_argument(
        "--force", action="store_true", help="at once, also if they have no other place"
    )


def _add_models(commands: Subparsers) -> None:
    parser = add_fleet_command(commands, "add-model", "have a model served", _add_model)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "base_path", metavar="BASE_PATH", help="where its versions are, on every server"
    )
    parser.add_argument(
        "--memory",
        type=size,
        default=0,
        metavar="SIZE",
        help="what a replica takes while versions change: 500M (default: estimated, "
        "then measured)",
    )
    _add_replicas(parser)
    _add_partition(parser)
    parser.add_argument(
        "--config",
        default="",
        metavar="TEXT",
        help="further fields of its ModelConfig: 'transition: RESOURCE_PRESERVING'",
    )
    parser = add_fleet_command(
        commands, "scale", "change on how many servers it is", _scale
    )
    parser.add_argument("model", metavar="MODEL")
    _add_replicas(parser)
    parser = add_fleet_command(
        commands, "remove-model", "have a model served no more", _remove_model
    )
    parser.add_argument("model", metavar="MODEL")


def _add_versions(commands: Subparsers) -> None:
    parser = add_fleet_command(commands, "canary", "put a version on trial", _canary)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("version", metavar="VERSION", type=version_number)
    parser.add_argument(
        "--primary",
        type=version_number,
        required=True,
        metavar="VERSION",
        help="the version that answers meanwhile",
    )
    parser.add_argument("--tee", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--split", type=float, default=0.0, metavar="SHARE")
    for name, what in (
        ("promote", "make a version the primary, everywhere"),
        ("rollback", "return to an older version, everywhere"),
    ):
        parser = add_fleet_command(commands, name, what, _primary)
        parser.add_argument("model", metavar="MODEL")
        parser.add_argument(
            "version", metavar="VERSION", type=version_number, nargs="?"
        )
        parser.add_argument(
            "--end", action="store_true", help="let the newest version answer again"
        )


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas",
        type=_replicas,
        default=(1, 1),
        metavar="N[-M]",
        help="on how many servers; 2-6: two, and up to six if load asks for it",
    )


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partition",
        default="",
        metavar="NAME",
        help="models go to servers of the same partition: gpu, eu",
    )


def job_address(text: str) -> str:
    """Reads the address of a server, for argparse.

    Raises:
        ArgumentTypeError: No server can have it.

    """
    found = re.fullmatch(r"unix:/.+|[^/]+:([0-9]+)", text)
    if not found or (found[1] and not 0 < int(found[1]) < 1 << 16):
        raise argparse.ArgumentTypeError(
            f"an address is HOST:PORT or unix:/path: {text}"
        )
    return text


def size(text: str) -> int:
    """Reads "500M" or "8G" (powers of 1,024), for argparse.

    Raises:
        ArgumentTypeError: It is no size.

    """
    found = re.fullmatch(r"([0-9]+)([KMGT]?)(?:i?B)?", text.strip())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(
            f"a size is a number with K, M, G or T: {text}"
        )
    return int(found[1]) * _UNITS[found[2]]


def _replicas(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    return count(least), count(most or least)


def _said(revision: Revision) -> int:
    print(f"revision {revision.number}: {revision.why}")
    return 0


def _add_job(arguments: argparse.Namespace) -> int:
    from tfs.hosted.fleet import Job

    job = Job(arguments.address, arguments.memory, arguments.partition)
    return _said(controller_of(arguments).add_job(job))


def _remove_job(arguments: argparse.Namespace) -> int:
    return _said(
        controller_of(arguments).remove_job(arguments.address, force=arguments.force)
    )


def _add_model(arguments: argparse.Namespace) -> int:
    from tfs.hosted.controller import parse_model_config

    config = parse_model_config(arguments.config)
    config.name, config.base_path = arguments.model, arguments.base_path
    least, most = arguments.replicas
    revision = controller_of(arguments).add_model(
        config,
        memory_bytes=arguments.memory,
        min_replicas=least,
        max_replicas=most,
        partition=arguments.partition,
    )
    _said(revision)
    model = revision.fleet.models[arguments.model]
    how = "estimated" if model.is_estimate else "as said"
    where = ", ".join(revision.fleet.placement[model.name])
    print(f"{model.name}: {mebibytes(model.memory_bytes)} ({how}) on {where}")
    return 0


def _scale(arguments: argparse.Namespace) -> int:
    return _said(controller_of(arguments).scale(arguments.model, *arguments.replicas))


def _remove_model(arguments: argparse.Namespace) -> int:
    return _said(controller_of(arguments).remove_model(arguments.model))


def _canary(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import model_config_pb2 as pb

    trial = pb.Canary(
        version=arguments.version,
        tee_fraction=arguments.tee,
        split_fraction=arguments.split,
    )
    traffic = pb.Traffic(primary=arguments.primary, canary=trial)
    return _said(
        controller_of(arguments).set_traffic(
            arguments.model, traffic, f"canary {arguments.version} of"
        )
    )


def _primary(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import model_config_pb2 as pb

    why = str(arguments.hosted_command)
    if arguments.end == (arguments.version is not None):
        raise InvalidArgument(f"tfs hosted {why} takes a version, or --end")
    traffic = None if arguments.end else pb.Traffic(primary=arguments.version)
    why += " --end" if arguments.end else f" to {arguments.version}"
    revision = controller_of(arguments).set_traffic(
        arguments.model, traffic, f"{why} of"
    )
    _said(revision)
    if arguments.version is not None:
        _note_if_missing(revision, arguments.model, arguments.version)
    return 0


def _note_if_missing(revision: Revision, name: str, version: int) -> None:
    """Says so if a version is not there, as far as that can be seen from here."""
    from sources.version_policy import list_versions, name_versions
    from tfs.hosted.controller import read_config

    base_path = read_config(revision.fleet.models[name]).base_path
    try:
        versions = name_versions(os.listdir(base_path))
    except OSError:
        return
    if version not in versions:
        there = list_versions(sorted(versions)) or "none"
        print(
            f"note: version {version} is not in {base_path}, which has {there}; until "
            "it is there, what answers now goes on"
        )
