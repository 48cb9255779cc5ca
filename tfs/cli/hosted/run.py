"""``tfs hosted run``: answers requests for a fleet's models, and keeps its servers in step.

``tfs hosted up`` runs the same process, once as a router and once as all the rest.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tfs.cli.connection import credentials_of
from tfs.cli.hosted.process_flags import STORE_VARIABLE
from tfs.core.call import ListenerOptions
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import InvalidArgument
from tfs.core.system.log_lines import LineOutput, log_to_stderr
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.identities import ControlOptions, read_identities
from tfs.hosted.jobs.job_runtime import RunningJobs
from tfs.hosted.routing.envoy_config import EnvoyOptions
from tfs.hosted.routing.job_connection import TlsFiles
from tfs.hosted.service import HostedService, ServiceOptions
from tfs.hosted.snapshot import FleetCopy
from tfs.hosted.store.sqlite import SqliteStore
from tfs.hosted.store.state_store import StateStore
from tfs.hosted.synchronizer import SynchronizerOptions
from tfs.server.config.server_config import read_model
from tfs.server.ports.tls_file import TlsFile
from tfs.server.system.malloc import apply_settings
from tfs.server.system.process_settings import open_missing_streams
from tfs.server.system.signal_inbox import LOOK, SignalInbox

_CLOSE_S: Final = 5.0
_ONE_WISH_S: Final = 0.05  # signals that come this close together count as one
_FORCED_EXIT: Final = 130


def run(arguments: argparse.Namespace) -> int:
    """Runs the process until it is told to end; returns the exit code."""
    begin_process()
    clock, control = MonotonicClock(), ControlOptions()
    jobs, reader = None, None
    if not arguments.only_routes:
        key_file = Path(arguments.control_key) if arguments.control_key else None
        control = control_options(arguments, key_file)
    xds = None
    if arguments.xds:
        xds = door(arguments.xds, "--xds", arguments.ssl_config_file)
    tls = None
    if credentials_of(arguments) is not None:  # which says what is wrong with a file
        tls = TlsFiles(arguments.ca, arguments.cert or "", arguments.key or "")
    listen = door(arguments.listen, "--listen", arguments.ssl_config_file)
    options = ServiceOptions(
        control,
        listeners=[] if arguments.envoy else [listen],
        synchronizing=SynchronizerOptions(
            down_after_s=arguments.down_after_s,
            only_routes=arguments.only_routes,
            take_over=arguments.take_over,
        ),
        model_stores=read_stores(arguments.model_store, ""),
        xds=xds,
        tls=tls,
        hedge_budget=arguments.hedge_budget,
        envoy=_envoy(arguments),
    )
    store, copy = _open_store(arguments.store), FleetCopy(arguments.copy)
    state = FleetState(store, copy, take_over=arguments.take_over)
    if not arguments.copy:
        state.read()  # reports a wrong path now, not later
    if not arguments.only_routes:
        jobs = _jobs(arguments, clock)
        reader = EditReader(read_model, may_run_jobs=jobs is not None)
    service = HostedService(state, options, clock, reader, jobs)

    def drain() -> bool:
        return service.drain(clock.now() + arguments.drain_timeout_s)

    if jobs is not None:
        jobs.start()
    try:
        return serve_until_told(service, drain, clock)
    finally:
        if jobs is not None:
            jobs.close()
        store.close()


def begin_process() -> None:
    """Sets up what every process of a fleet has: streams, a log, its allocator."""
    open_missing_streams()
    log_to_stderr("info")
    apply_settings()


def _jobs(arguments: argparse.Namespace, clock: Clock) -> RunningJobs | None:
    """Returns the jobs that this process runs; None: others do."""
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
    ray_jobs = RayJobs(connect(arguments.ray), arguments.jobs_folder, command)
    return RunningJobs(ray_jobs, clock)


def _envoy(arguments: argparse.Namespace) -> EnvoyOptions | None:
    if not arguments.envoy:
        return None
    if arguments.ssl_config_file:
        raise InvalidArgument("--ssl_config_file is for the router in Python")
    return EnvoyOptions(arguments.listen, arguments.envoy, arguments.hedge_after_s)


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


def _open_store(text: str) -> StateStore:
    """Returns the store that the command line names."""
    if not text:
        raise InvalidArgument(
            f"say where the fleet's state is: --store, ${STORE_VARIABLE}"
        )
    if not text.startswith(("postgresql://", "postgres://")):
        return SqliteStore(text)
    from tfs.hosted.store.postgres import PostgresStore

    return PostgresStore(text)


def control_options(
    arguments: argparse.Namespace, key_file: Path | None
) -> ControlOptions:
    """Returns where commands are taken, and from whom.

    A key for callers over HTTP is made and written to a file that its owner alone can
    read, if there is such a file.
    """
    ssl = arguments.control_ssl_config_file, "--control_ssl_config_file"
    listener = door(arguments.control, "--control", *ssl)
    control = ControlOptions([listener])
    if file := arguments.identities:
        if listener.tls is None or not listener.tls.current().verify_client:
            raise InvalidArgument(
                "--identities needs client_verify: true, and custom_ca, in the file of "
                "--control_ssl_config_file: the names are those of client certificates"
            )
        control = replace(control, identities=read_identities(file))
    if not arguments.control_http:
        return control
    http = door(arguments.control_http, "--control_http", *ssl)
    return replace(
        control,
        http_listeners=[replace(http, name="http", protocol="http/1.1")],
        http_key="" if key_file is None else _make_key(key_file),
    )


def _make_key(path: Path) -> str:
    key = secrets.token_urlsafe()
    try:
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidArgument(f"the key for --control_http: {error}") from None
    with os.fdopen(file, "w") as out:
        out.write(key + "\n")
    return key


def read_stores(texts: list[str], default: str) -> Mapping[str, str]:
    """Returns where uploads go, by partition; that of the empty name is for all others."""
    stores = {"": default} if default else {}
    for text in texts:
        partition, equals, place = text.partition("=")
        if not equals or "/" in partition:
            partition, place = "", text
        if not (place.startswith("/") or "://" in place):
            raise InvalidArgument(f"--model_store must be absolute, or a URL: {place}")
        stores[partition] = place
    return stores


def door(
    address: str, flag: str, ssl_file: str = "", ssl_flag: str = "--ssl_config_file"
) -> ListenerOptions:
    """Returns where a process listens, as two of its flags say.

    Raises:
        InvalidArgument: The flag's value is no address, or TLS does not go with it.

    """
    if not re.fullmatch(r"unix:/.+|.+:[0-9]+", address):
        raise InvalidArgument(f"{flag} takes HOST:PORT or unix:/path: {address}")
    if ssl_file and address.startswith("unix:"):
        raise InvalidArgument(
            f"{flag} {address}: certificates are for a TCP port; a socket has no TLS"
        )
    tls = TlsFile(ssl_file, ssl_flag) if ssl_file else None
    return ListenerOptions(flag.strip("-"), address, tls=tls)
