"""``tfs hosted up``: a whole fleet on one machine, in one folder."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tfs.cli.hosted.process_flags import MOST_SERVERS
from tfs.cli.hosted.run import (
    begin_process,
    control_options,
    door,
    read_stores,
    serve_until_told,
)
from tfs.core.clock import MonotonicClock
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.frontends.listener import Listener
from tfs.hosted import edits
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet import Job
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.jobs.job_runtime import JobSpec, RunningJobs
from tfs.hosted.jobs.local_process import LocalProcesses, ReplicaPlace
from tfs.hosted.reports import JobSighting
from tfs.hosted.routing.job_connection import connect
from tfs.hosted.service import HostedService, ServiceOptions
from tfs.hosted.snapshot import FleetCopy, Snapshot
from tfs.hosted.store.sqlite import SqliteStore
from tfs.server.admin.report_words import mebibytes
from tfs.server.config.server_config import read_model

JOB: Final = "local"
_DRAIN_S: Final = 90.0
_PATIENCE_S: Final = 120.0
_ROUTER_BYTES: Final = 4 << 30
_LOOK_S: Final = 0.05


def up(arguments: argparse.Namespace) -> int:
    """Runs the fleet until it is told to end; returns the exit code."""
    started_s = time.monotonic()
    if arguments.servers is not None and arguments.servers[1] > MOST_SERVERS:
        raise InvalidArgument(f"--servers is at most {MOST_SERVERS} on one machine")
    door(arguments.listen, "--listen")  # its router would end over and over
    folder = Path(arguments.folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    _take(folder)
    begin_process()
    copy = FleetCopy(str(folder / "fleet.json"))
    state = FleetState(SqliteStore(str(folder / "fleet.db")), copy)
    _want_job(state, arguments)
    clock, flags = MonotonicClock(), arguments.server_flags.split()
    server_processes = LocalProcesses(
        folder / "jobs", lambda place: _server_command(place, flags), clock
    )
    router_processes = LocalProcesses(
        folder / "routers", lambda _: _router_command(folder, arguments), clock
    )
    servers = RunningJobs(server_processes, clock)
    routers = RunningJobs(router_processes, clock)
    options = ServiceOptions(
        control_options(arguments, folder / "control.key"),
        model_stores=read_stores(arguments.model_store, str(folder / "models")),
    )
    reader = EditReader(read_model, may_run_jobs=True)
    service = HostedService(state, options, clock, reader, servers)
    routers.keep([JobSpec("router", 1, _ROUTER_BYTES)])
    servers.start()
    routers.start()

    def drain() -> bool:
        """Lets the router answer first, then the servers that it asks."""
        until_s = clock.now() + _DRAIN_S
        service.drain(until_s)
        service.stop_keeping()
        return routers.drain(until_s) and servers.drain(until_s)

    def kill() -> None:
        for each in (router_processes, server_processes):
            each.kill()

    def announce(say: Callable[[str], None]) -> None:
        asked = state, routers, servers, arguments.listen, say, started_s
        threading.Thread(
            target=_say_when_ready, args=asked, name="say-ready", daemon=True
        ).start()

    try:
        return serve_until_told(service, drain, clock, announce, kill)
    finally:
        for each in (servers, routers, state.store):
            each.close()


def _take(folder: Path) -> None:
    """Keeps others away from the folder's processes until this process ends."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise FailedPrecondition(
            f"another tfs hosted up runs in {folder}: end it first, or choose another "
            "--folder"
        ) from None


def _want_job(state: FleetState, arguments: argparse.Namespace) -> None:
    """Makes the job of this machine what the command line says, or lets it be."""
    known = state.read().fleet.jobs.get(JOB)
    if known is not None and arguments.servers is arguments.memory is None:
        return
    least, most = (known.min_replicas, known.max_replicas) if known else (2, 2)
    if arguments.servers is not None:
        least, most = arguments.servers
    all_bytes = arguments.memory
    if all_bytes is None and known is not None:
        all_bytes = known.memory_bytes * known.max_replicas
    job = Job(
        JOB,
        (all_bytes or _half_of_memory_bytes()) // most,
        num_replicas=least,
        is_ours=True,
        min_replicas=least,
        max_replicas=most,
    )
    state.change(edits.put_job(job))


def _half_of_memory_bytes() -> int:
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        container_bytes = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no container, or one without a limit
        container_bytes = machine_bytes
    return min(machine_bytes, container_bytes) // 2


def _server_command(place: ReplicaPlace, flags: Sequence[str]) -> Sequence[str]:
    return [
        *(sys.executable, "-m", "tfs", "serve", "--port=0"),
        f"--grpc_socket_path={place.socket}",
        "--source=rpc",
        f"--state_dir={place.folder / 'state'}",
        f"--model_memory_limit_bytes={place.spec.memory_bytes}",
        *flags,
    ]


def _router_command(folder: Path, arguments: argparse.Namespace) -> Sequence[str]:
    # Of two fleets' routers on one address, Envoy would say nothing.
    Listener(door(arguments.listen, "--listen")).close()
    return [
        *(sys.executable, "-m", "tfs", "hosted", "run", "--only_routes"),
        f"--store={folder / 'fleet.db'}",
        f"--copy={folder / 'router.json'}",
        f"--listen={arguments.listen}",
        *([f"--envoy={folder / 'envoy'}"] if arguments.router == "envoy" else []),
    ]


def _say_when_ready(
    state: FleetState,
    routers: RunningJobs,
    servers: RunningJobs,
    listen: str,
    say: Callable[[str], None],
    started_s: float,
) -> None:
    """Prints one line when the router and all servers answer; until then, why some end."""
    until_s, said = time.monotonic() + _PATIENCE_S, ""
    while time.monotonic() < until_s:
        seen = [each for jobs in (routers, servers) for each in jobs.seen.values()]
        problems = [each.problem for found in seen for each in found if each.problem]
        if problems and problems[0] != said:
            said = problems[0]
            say(f"tfs: not ready yet: {said}")
        now = state.read()
        job = now.fleet.jobs.get(JOB)
        if job and not problems and _all_answer(now, job, listen):
            took_s = time.monotonic() - started_s
            memory = mebibytes(job.memory_bytes)
            say(
                f"tfs: ready after {took_s:.1f} s: {job.num_replicas} servers with "
                f"{memory} each behind {listen}; next: tfs hosted add-model NAME BASE_PATH"
            )
            return
        time.sleep(_LOOK_S)
    say("tfs: not all servers answer; tfs hosted status says why")


def _all_answer(now: Snapshot, job: Job, listen: str) -> bool:
    """Whether the router accepts connections, and all servers of a job do as told."""
    seen = now.jobs_seen.get(job.name, JobSighting())
    if len(seen.answering) < job.num_replicas:
        return False
    try:
        connect(listen.replace("0.0.0.0:", "127.0.0.1:"), None).socket.close()
    except OSError:
        return False
    return True
