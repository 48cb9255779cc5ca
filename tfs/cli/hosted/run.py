"""``tfs hosted run``: answers requests for a fleet's models, and keeps its servers in step.

``tfs hosted up`` runs the same process, once as a router and once as all the rest.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tfs.cli.argument_range import seconds
from tfs.cli.hosted.controller import (
    DEFAULT_CONTROLLER,
    STORE_VARIABLE,
    add_tls_flags,
    credentials_of,
)
from tfs.cli.hosted.upload import add_store_flag, read_stores
from tfs.core.errors import InvalidArgument
from tfs.server.system.process_settings import open_missing_streams

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from tfs.core.call import ListenerOptions
    from tfs.core.clock import Clock
    from tfs.hosted.edit_reader import EditReader
    from tfs.hosted.identities import ControlOptions
    from tfs.hosted.jobs.running_jobs import RunningJobs
    from tfs.hosted.routing.envoy_config import EnvoyOptions
    from tfs.hosted.service import HostedService, PythonRouterOptions
    from tfs.hosted.store.state_store import StateStore

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_CLOSE_S: Final = 5.0
_ONE_WISH_S: Final = 0.05  # signals that come this close together count as one
_FORCED_EXIT: Final = 130


def add_run(commands: Subparsers) -> None:
    """Adds the command."""
    what = "answer requests, and keep the fleet's servers in step"
    parser = commands.add_parser("run", help=what, description=f"{what.capitalize()}.")
    parser.set_defaults(run=_run)
    parser.add_argument(
        "--store",
        default=os.environ.get(STORE_VARIABLE, ""),
        metavar="FILE|URL",
        help="the fleet's state: a file on this machine, or postgresql://HOST/DATABASE "
        f"(default ${STORE_VARIABLE})",
    )
    add_doors(parser)
    parser.add_argument(
        "--control_key",
        default="",
        metavar="FILE",
        help="where a key for commands over HTTP is written at the start (default: "
        "certificates alone count)",
    )
    parser.add_argument(
        "--copy",
        default="",
        metavar="FILE",
        help="keep a copy of the wanted state here, to start with while the store is away",
    )
    add_store_flag(parser, "none")
    parser.add_argument(
        "--only_routes",
        action="store_true",
        help="take no commands and tell servers nothing: only a router",
    )
    parser.add_argument(
        "--take_over",
        action="store_true",
        help="take servers from another fleet, or from a newer copy of this one's store",
    )
    _add_running(parser)
    _add_routing(parser)
    parser.add_argument(
        "--down_after_s",
        type=seconds,
        default=10.0,
        metavar="S",
        help="without a sign of a server, until others take its place (default 10)",
    )
    parser.add_argument(
        "--drain_timeout_s",
        type=seconds,
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
    add_tls_flags(parser.add_argument_group("TLS to the servers"))


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ray",
        default="",
        metavar="ADDRESS",
        help="start the servers of jobs on this Ray cluster: HOST:PORT, or auto",
    )
    parser.add_argument(
        "--kubernetes",
        default="",
        metavar="NAMESPACE",
        help="scale the StatefulSets of jobs in this namespace",
    )
    parser.add_argument(
        "--jobs_folder",
        default="/tmp/tfs-jobs",
        metavar="FOLDER",
        help="with --ray: where each node keeps files of servers (default /tmp/tfs-jobs)",
    )
    parser.add_argument(
        "--server_flags",
        default="",
        metavar="FLAGS",
        help="with --ray: further flags of tfs serve for all servers",
    )


def _add_routing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hedge_budget",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="late requests sent a second time, at most (default 0.05; 0: none)",
    )
    parser.add_argument(
        "--envoy",
        default="",
        metavar="FOLDER",
        help="route by Envoy, with its files in this folder, instead of in Python",
    )
    parser.add_argument(
        "--hedge_after_s",
        type=seconds,
        default=0.2,
        metavar="S",
        help="with --envoy: when a late request is sent a second time (default 0.2)",
    )
    parser.add_argument(
        "--xds",
        default="",
        metavar="ADDRESS",
        help="where gRPC clients of xds:///MODEL ask for its servers (default nowhere)",
    )


def _run(arguments: argparse.Namespace) -> int:
    from tfs.core.clock import MonotonicClock
    from tfs.core.system.log_lines import log_to_stderr
    from tfs.hosted.fleet_state import FleetState
    from tfs.hosted.identities import ControlOptions
    from tfs.hosted.routing.job_channels import JobChannels
    from tfs.hosted.service import HostedService, ServiceOptions
    from tfs.hosted.snapshot import FleetCopy
    from tfs.hosted.synchronizer import SynchronizerOptions
    from tfs.server.system.malloc import apply_settings

    open_missing_streams()
    log_to_stderr("info")
    apply_settings()
    control = ControlOptions()
    if not arguments.only_routes:
        key_file = Path(arguments.control_key) if arguments.control_key else None
        control = control_options(arguments, key_file)
    options = ServiceOptions(
        control,
        _router(arguments),
        synchronizing=SynchronizerOptions(
            down_after_s=arguments.down_after_s,
            only_routes=arguments.only_routes,
            take_over=arguments.take_over,
        ),
        model_stores=read_stores(arguments.model_store, ""),
        xds=door(arguments.xds, arguments.ssl_config_file, "--xds")
        if arguments.xds
        else None,
    )
    copy = FleetCopy(arguments.copy)
    store = open_store(arguments.store)
    state = FleetState(store, copy, take_over=arguments.take_over)
    if not arguments.copy:
        state.read()  # reports a wrong path now, not later
    clock = MonotonicClock()
    channels = JobChannels(credentials_of(arguments))
    jobs = None if arguments.only_routes else _jobs(arguments, clock)
    reader = None
    if not arguments.only_routes:
        reader = edit_reader(may_run_jobs=jobs is not None)
    service = HostedService(state, channels, options, clock, reader, jobs)

    def drain() -> bool:
        return service.drain(clock.now() + arguments.drain_timeout_s)

    if jobs is not None:
        jobs.start()
    try:
        return serve_until_told(service, drain, clock)
    finally:
        channels.close()
        if jobs is not None:
            jobs.close()
        state.store.close()


def _jobs(arguments: argparse.Namespace, clock: Clock) -> RunningJobs | None:
    """Returns the jobs that this process runs; None: others do."""
    from tfs.hosted.jobs.running_jobs import RunningJobs

    if arguments.kubernetes:
        from tfs.hosted.jobs import kubernetes_jobs

        api = kubernetes_jobs.connect()
        runtime = kubernetes_jobs.KubernetesJobs(api, arguments.kubernetes)
        return RunningJobs(runtime, clock)
    if not arguments.ray:
        return None
    from tfs.hosted.jobs.ray_jobs import RayJobs, connect

    command = [
        *("{python}", "-m", "tfs", "serve", "--grpc_host={host}", "--port={port}"),
        *("--source=rpc", "--state_dir={folder}/state"),
        "--model_memory_limit_bytes={memory_bytes}",
        *arguments.server_flags.split(),
    ]
    channel = credentials_of(arguments)
    ray_jobs = RayJobs(
        connect(arguments.ray),
        arguments.jobs_folder,
        command,
        lambda address: is_ready(address, channel),
    )
    return RunningJobs(ray_jobs, clock)


def _router(arguments: argparse.Namespace) -> PythonRouterOptions | EnvoyOptions:
    from tfs.hosted.routing.envoy_config import EnvoyOptions
    from tfs.hosted.routing.job_connection import TlsFiles
    from tfs.hosted.service import PythonRouterOptions

    listen = door(arguments.listen, arguments.ssl_config_file)
    tls = None
    if arguments.ca:
        tls = TlsFiles(arguments.ca, arguments.cert or "", arguments.key or "")
    if not arguments.envoy:
        return PythonRouterOptions([listen], arguments.hedge_budget, tls)
    if arguments.ssl_config_file:
        raise InvalidArgument("--ssl_config_file is for the router in Python")
    return EnvoyOptions(arguments.listen, arguments.envoy, arguments.hedge_after_s, tls)


def serve_until_told(
    service: HostedService,
    drain: Callable[[], bool],
    clock: Clock,
    on_started: Callable[[Callable[[str], None]], None] = lambda say: None,
    on_forced: Callable[[], None] = lambda: None,
) -> int:
    """Runs a service until SIGTERM or Ctrl-C, and drains it; returns the exit code.

    Args:
        service: Not started yet; is closed.
        drain: Drains it, and whatever belongs to it; returns whether it all was done.
        clock: Times the end.
        on_started: Called when the service has, with what prints a line.
        on_forced: Called when a second signal ends everything at once.

    """
    import signal

    from tfs.core.system.log_lines import LineOutput
    from tfs.server.system.signal_inbox import LOOK, SignalInbox

    say = LineOutput(sys.stdout).write

    def end_at_once(number: int, frame: object) -> None:
        on_forced()
        os._exit(_FORCED_EXIT)

    with SignalInbox() as inbox:
        inbox.hear_unless_ignored(LOOK)
        inbox.hear(signal.SIGTERM, signal.SIGINT)
        try:
            for address in service.start():
                say(f"tfs: listening on {address}")
            on_started(say)
            while (name := inbox.receive()) == LOOK.name:
                say(f"tfs: {name}: the store is looked at every second anyway")
            inbox.drop_repeats(_ONE_WISH_S)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, end_at_once)
            say(f"tfs: {name}: draining; again to end at once")
            drained = drain()
        finally:
            service.close(clock.now() + _CLOSE_S)
    say("tfs: stopped")
    return 0 if drained else 1


def is_ready(address: str, credentials: grpc.ChannelCredentials | None = None) -> bool:
    """Whether the health service at an address says that requests may come."""
    import grpc

    from tfs.proto.grpc.health.v1 import health_pb2 as pb

    with (
        grpc.secure_channel(address, credentials)
        if credentials
        else grpc.insecure_channel(address)
    ) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
        try:
            reply = check(pb.HealthCheckRequest().SerializeToString(), timeout=1.0)
        except grpc.RpcError:
            return False
    status = pb.HealthCheckResponse.FromString(reply).status
    return bool(status == pb.HealthCheckResponse.SERVING)


def edit_reader(*, may_run_jobs: bool) -> EditReader:
    """Returns what reads the requests of commands."""
    from tfs.hosted.edit_reader import EditReader
    from tfs.hosted.probes import newest_version_bytes
    from tfs.server.config.server_config import read_model

    return EditReader(read_model, newest_version_bytes, may_run_jobs)


def open_store(text: str) -> StateStore:
    """Returns the store that the command line names.

    Raises:
        InvalidArgument: It names none.
        FailedPrecondition: It needs an extra that is not installed.

    """
    if not text:
        raise InvalidArgument(
            f"say where the fleet's state is: --store, ${STORE_VARIABLE}"
        )
    from tfs.hosted.store.state_store import StateStore

    if text.startswith(("postgresql://", "postgres://")):
        from tfs.hosted.store.postgres import PostgresDatabase

        return StateStore(PostgresDatabase(text))
    from tfs.hosted.store.sqlite import SqliteDatabase

    return StateStore(SqliteDatabase(text))


def add_doors(parser: argparse.ArgumentParser) -> None:
    """Adds what says where requests are answered, and where and how commands are taken."""
    parser.add_argument(
        "--listen",
        default="0.0.0.0:8500",
        metavar="ADDRESS",
        help="where requests are answered: HOST:PORT or unix:/path (default 0.0.0.0:8500)",
    )
    parser.add_argument(
        "--control",
        default=DEFAULT_CONTROLLER,
        metavar="ADDRESS",
        help=f"where commands are taken (default {DEFAULT_CONTROLLER})",
    )
    parser.add_argument(
        "--control_http",
        default="",
        metavar="ADDRESS",
        help="where commands are taken over HTTP too, as JSON (default nowhere)",
    )
    parser.add_argument(
        "--control_ssl_config_file",
        default="",
        metavar="FILE",
        help="text SSLConfig with PEM contents: TLS where commands are taken",
    )
    parser.add_argument(
        "--identities",
        default="",
        metavar="FILE",
        help="JSON: roles and quotas by the name of the client certificate (default: "
        "whoever has a verified one may do everything)",
    )


def control_options(
    arguments: argparse.Namespace, key_file: Path | None
) -> ControlOptions:
    """Returns where commands are taken, and from whom.

    A key for callers over HTTP is made and written to a file that its owner alone can
    read, if there is such a file.
    """
    from dataclasses import replace

    from tfs.hosted.identities import ControlOptions, read_identities

    ssl = arguments.control_ssl_config_file
    control = ControlOptions([door(arguments.control, ssl, "--control")])
    if arguments.identities:
        if not ssl:
            raise InvalidArgument("--identities needs --control_ssl_config_file")
        try:
            text = Path(arguments.identities).read_text()
        except OSError as error:
            raise InvalidArgument(f"--identities: {error}") from None
        control = replace(control, identities=read_identities(text))
    if not arguments.control_http:
        return control
    http = door(arguments.control_http, ssl, "--control_http")
    return replace(
        control,
        http_listeners=[replace(http, name="http", protocol="http/1.1")],
        http_key="" if key_file is None else _make_key(key_file),
    )


def _make_key(path: Path) -> str:
    import secrets

    key = secrets.token_urlsafe()
    try:
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidArgument(f"the key for --control_http: {error}") from None
    with os.fdopen(file, "w") as out:
        out.write(key + "\n")
    return key


def door(address: str, ssl_config_file: str, flag: str = "--listen") -> ListenerOptions:
    """Returns where a process listens.

    Raises:
        InvalidArgument: The flag's value is no address, or TLS does not go with it.

    """
    from tfs.core.call import ListenerOptions
    from tfs.server.ports.tls_file import TlsFile

    if not re.fullmatch(r"unix:/.+|.+:[0-9]+", address):
        raise InvalidArgument(f"{flag} takes HOST:PORT or unix:/path: {address}")
    if ssl_config_file and address.startswith("unix:"):
        raise InvalidArgument(
            f"{flag} {address}: certificates are for a TCP port; a socket has no TLS"
        )
    tls = TlsFile(ssl_config_file) if ssl_config_file else None
    return ListenerOptions(flag.strip("-"), address, tls=tls)
