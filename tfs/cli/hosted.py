"""``tfs hosted``: serves models on a fleet of servers, and operates it."""

from __future__ import annotations

import argparse
import json
import os
import re
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import count, version_number
from tfs.cli.printing import ago, mebibytes, table
from tfs.core.errors import InvalidArgument

if TYPE_CHECKING:
    import grpc

    from tfs.core.call import ListenerOptions
    from tfs.hosted.controller import Controller
    from tfs.hosted.fleet_store import FleetStore, Revision

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

STORE_VARIABLE: Final = "TFS_HOSTED_STORE"
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_CLOSE_S: Final = 5.0


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
    _add_run(commands)
    _add_status(commands)
    _add_jobs(commands)
    _add_models(commands)
    _add_versions(commands)


def _add_run(commands: Subparsers) -> None:
    parser = _command(
        commands, "run", "answer requests, and keep the fleet's servers in step", _run
    )
    parser.add_argument(
        "--listen",
        default="0.0.0.0:8500",
        metavar="ADDRESS",
        help="HOST:PORT or unix:/path (default 0.0.0.0:8500)",
    )
    parser.add_argument(
        "--only_routes",
        action="store_true",
        help="tell servers nothing: for further routers beside the one that does",
    )
    parser.add_argument(
        "--hedge_budget",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="late requests sent a second time, at most (default 0.05; 0: none)",
    )
    parser.add_argument(
        "--down_after_s",
        type=float,
        default=10.0,
        metavar="S",
        help="without a sign of a server, until others take its place (default 10)",
    )
    parser.add_argument(
        "--drain_timeout_s",
        type=float,
        default=30.0,
        metavar="S",
        help="how long SIGTERM waits for requests under way (default 30)",
    )
    parser.add_argument(
        "--ssl_config_file",
        default="",
        metavar="FILE",
        help="text SSLConfig with PEM contents: TLS to clients, as tfs serve has it",
    )
    group = parser.add_argument_group("TLS to the servers")
    group.add_argument("--ca", metavar="FILE", help="PEM: trust these authorities")
    group.add_argument("--cert", metavar="FILE", help="PEM: who we are")
    group.add_argument("--key", metavar="FILE", help="PEM: the key of --cert")


def _add_status(commands: Subparsers) -> None:
    parser = _command(commands, "status", "show what is wanted, and where", _status)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument(
        "--history", type=count, metavar="N", help="show the last N changes instead"
    )


def _add_jobs(commands: Subparsers) -> None:
    parser = _command(commands, "add-job", "add a server, or change it", _add_job)
    parser.add_argument("address", metavar="ADDRESS", help="HOST:PORT or unix:/path")
    parser.add_argument(
        "--memory",
        type=size,
        required=True,
        metavar="SIZE",
        help="what its models may take together, as its --model_memory_limit_bytes: 8G",
    )
    _add_partition(parser)
    parser = _command(
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
    parser = _command(commands, "add-model", "have a model served", _add_model)
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
    parser = _command(commands, "scale", "change on how many servers it is", _scale)
    parser.add_argument("model", metavar="MODEL")
    _add_replicas(parser)
    parser = _command(
        commands, "remove-model", "have a model served no more", _remove_model
    )
    parser.add_argument("model", metavar="MODEL")


def _add_versions(commands: Subparsers) -> None:
    parser = _command(commands, "canary", "put a version on trial", _canary)
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
        parser = _command(commands, name, what, _primary)
        parser.add_argument("model", metavar="MODEL")
        parser.add_argument(
            "version", metavar="VERSION", type=version_number, nargs="?"
        )
        parser.add_argument(
            "--end", action="store_true", help="let the newest version answer again"
        )


def _command(
    commands: Subparsers, name: str, what: str, run: object
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=f"{what.capitalize()}.")
    parser.add_argument(
        "--store",
        default=os.environ.get(STORE_VARIABLE, ""),
        metavar="FILE",
        help=f"the fleet's state (default ${STORE_VARIABLE})",
    )
    parser.set_defaults(run=run)
    return parser


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


def _store(arguments: argparse.Namespace) -> FleetStore:
    from tfs.hosted.fleet_store import FleetStore

    if not arguments.store:
        raise InvalidArgument(
            f"say where the fleet's state is: --store, ${STORE_VARIABLE}"
        )
    return FleetStore(arguments.store)


def _controller(arguments: argparse.Namespace) -> Controller:
    from tfs.hosted.controller import Controller
    from tfs.hosted.memory_estimate import newest_version_bytes
    from tfs.server.config.server_config import read_model

    return Controller(_store(arguments), read_model, newest_version_bytes)


def _said(revision: Revision) -> int:
    print(f"revision {revision.number}: {revision.why}")
    return 0


def _add_job(arguments: argparse.Namespace) -> int:
    from tfs.hosted.fleet import Job

    job = Job(arguments.address, arguments.memory, arguments.partition)
    return _said(_controller(arguments).add_job(job))


def _remove_job(arguments: argparse.Namespace) -> int:
    return _said(
        _controller(arguments).remove_job(arguments.address, force=arguments.force)
    )


def _add_model(arguments: argparse.Namespace) -> int:
    from tfs.hosted.controller import parse_model_config

    config = parse_model_config(arguments.config)
    config.name, config.base_path = arguments.model, arguments.base_path
    least, most = arguments.replicas
    revision = _controller(arguments).add_model(
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
    return _said(_controller(arguments).scale(arguments.model, *arguments.replicas))


def _remove_model(arguments: argparse.Namespace) -> int:
    return _said(_controller(arguments).remove_model(arguments.model))


def _canary(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import model_config_pb2 as pb

    trial = pb.Canary(
        version=arguments.version,
        tee_fraction=arguments.tee,
        split_fraction=arguments.split,
    )
    traffic = pb.Traffic(primary=arguments.primary, canary=trial)
    return _said(
        _controller(arguments).set_traffic(
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
    return _said(
        _controller(arguments).set_traffic(arguments.model, traffic, f"{why} of")
    )


def _status(arguments: argparse.Namespace) -> int:
    from tfs.hosted.placement import free_bytes

    store = _store(arguments)
    if arguments.history:
        rows = [
            (r.number, ago(r.at_s), r.why) for r in store.history(arguments.history)
        ]
        print(table(("REVISION", "AGO", "CHANGE"), rows))
        return 0
    fleet = store.read().fleet
    if arguments.json:
        print(json.dumps(json.loads(fleet.to_json()), indent=2))
        return 0
    free = free_bytes(fleet.models, fleet.jobs, fleet.placement)
    jobs = [
        (
            job.address,
            "down" if job.is_down else "leaving" if job.is_leaving else "up",
            job.partition or "-",
            mebibytes(job.memory_bytes),
            mebibytes(free[job.address]),
            sum(job.address in at for at in fleet.placement.values()),
        )
        for job in fleet.jobs.values()
    ]
    print(table(("SERVER", "STATE", "PARTITION", "MEMORY", "FREE", "MODELS"), jobs))
    models = [
        (
            model.name,
            f"{len(fleet.placement[model.name])} of {model.num_replicas}",
            mebibytes(model.memory_bytes) + ("" if model.is_estimate else " (fixed)"),
            ", ".join(fleet.placement[model.name]) or "no room",
        )
        for model in fleet.models.values()
    ]
    print()
    print(table(("MODEL", "REPLICAS", "EACH", "SERVERS"), models))
    return 0 if all(fleet.placement.values()) else 1


def _run(arguments: argparse.Namespace) -> int:
    import logging
    import signal
    import sys

    from tfs.core.clock import MonotonicClock
    from tfs.core.log_lines import LOG_FORMAT
    from tfs.hosted.hedging import HedgeOptions
    from tfs.hosted.job_channels import JobChannels
    from tfs.hosted.service import HostedService, ServiceOptions
    from tfs.hosted.synchronizer import SynchronizerOptions
    from tfs.server.memory.malloc import apply_settings
    from tfs.server.signal_inbox import SignalInbox

    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=LOG_FORMAT,
    )
    apply_settings()
    options = ServiceOptions(
        (_door(arguments.listen, arguments.ssl_config_file),),
        HedgeOptions(budget=arguments.hedge_budget),
        SynchronizerOptions(
            down_after_s=arguments.down_after_s, only_routes=arguments.only_routes
        ),
    )
    store = _store(arguments)
    store.read()  # reports a wrong path now, not later
    clock = MonotonicClock()
    channels = JobChannels(_credentials(arguments))
    service = HostedService(store, _controller(arguments), channels, options, clock)
    with SignalInbox() as inbox:
        inbox.hear(signal.SIGTERM, signal.SIGINT)
        try:
            for address in service.start():
                print(f"tfs: listening on {address}", flush=True)
            name = inbox.receive()
            print(f"tfs: {name}: draining", flush=True)
            drained = service.drain(clock.now() + arguments.drain_timeout_s)
        finally:
            service.close(clock.now() + _CLOSE_S)
            channels.close()
    print("tfs: stopped", flush=True)
    return 0 if drained else 1


def _door(address: str, ssl_config_file: str) -> ListenerOptions:
    from tfs.core.call import ListenerOptions
    from tfs.server.tls import TlsFile

    if not re.fullmatch(r"unix:/.+|.+:[0-9]+", address):
        raise InvalidArgument(f"--listen takes HOST:PORT or unix:/path: {address}")
    if ssl_config_file and address.startswith("unix:"):
        raise InvalidArgument(
            "--ssl_config_file is for a TCP port; a socket has no TLS"
        )
    tls = TlsFile(ssl_config_file) if ssl_config_file else None
    return ListenerOptions("grpc", address, tls=tls)


def _credentials(arguments: argparse.Namespace) -> grpc.ChannelCredentials | None:
    if not arguments.ca:
        if arguments.cert or arguments.key:
            raise InvalidArgument("--cert and --key need --ca")
        return None
    from tfs.cli.tls_files import read_credentials

    return read_credentials(arguments.ca, arguments.key, arguments.cert)
