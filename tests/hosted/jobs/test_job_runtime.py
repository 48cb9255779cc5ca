"""What every runtime of jobs promises, asked of each: replicas run, come back, drain."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.hosted.fleets import MIB, server, state_in
from tests.hosted.jobs.ray_cluster import a_ray_cluster, skip_without_ray
from tfs.core.clock import MonotonicClock
from tfs.core.errors import InvalidArgument
from tfs.hosted import edits
from tfs.hosted.fleet import Job
from tfs.hosted.jobs.job_runtime import (
    JobRuntime,
    JobSpec,
    Replica,
    RunningJobs,
    keep_jobs,
)
from tfs.hosted.jobs.local_process import LocalProcesses, ReplicaPlace
from tfs.hosted.jobs.ray_jobs import RayJobs, connect
from tfs.testing.patience import PATIENCE_S

SPEC = JobSpec("job", 2, 64 * MIB)

# Listens where it should, notes what becomes of it, and drains as a server does.
PROGRAM = """
import os, signal, socket, sys
folder, path = sys.argv[1:3]
host, colon, port = path.rpartition(":")
def note(what):
    with open(folder + "/notes", "a") as file:
        file.write(what + "\\n")
if os.path.exists(folder + "/../../broken"):
    note("broken")
    sys.exit(3)
if colon:
    listening = socket.create_server((host, int(port)))
else:
    listening = socket.socket(socket.AF_UNIX)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listening.bind(path)
    listening.listen()
signal.signal(signal.SIGTERM, lambda *_: (note("drained"), sys.exit(0)))
note("started")
while True:
    peer, _ = listening.accept()
    asked = peer.recv(100)
    if asked == b"memory":
        try:
            kept = bytearray(8 << 30)
        except MemoryError:
            note("refused")
    if asked:
        peer.sendall(b"%d" % os.getpid())
    peer.close()
"""


def ask(address: str, what: bytes = b"pid") -> int:
    """Returns the process that answers at an address; 0 if none does."""
    host, _, port = address.rpartition(":")
    is_local = host == "unix"
    with socket.socket(socket.AF_UNIX if is_local else socket.AF_INET) as asking:
        if asking.connect_ex(port if is_local else (host, int(port))):
            return 0
        asking.sendall(what)
        return int(asking.recv(100) or b"0")


class Runtime:
    """A runtime over a folder, which may be made anew."""

    def __init__(self, folder: Path, ray: Any) -> None:
        self.folder, self.ray = folder, ray
        self.made = self.make()

    def make(self) -> RunningJobs:
        made = RunningJobs(self.runtime(), MonotonicClock())
        made.start()
        return made

    def runtime(self) -> JobRuntime:
        jobs, clock = self.folder / "jobs", MonotonicClock()
        if self.ray is None:
            return LocalProcesses(jobs, self.command, clock)
        # A shell makes the folder of notes: the command is the same for all replicas.
        notes = f"{self.folder}/notes-of/$(basename $(dirname $(dirname $1)))"
        script = f'mkdir -p {notes}; exec {sys.executable} -c "$0" {notes} "$2"'
        words = ["/bin/sh", "-c", script, PROGRAM, "{folder}", "{host}:{port}"]
        return RayJobs(self.ray, str(jobs), words)

    def command(self, place: ReplicaPlace) -> list[str]:
        notes = self.notes_of(place.index, place.spec.name)
        notes.mkdir(exist_ok=True, parents=True)
        return [sys.executable, "-c", PROGRAM, str(notes), place.socket]

    def notes_of(self, index: int, name: str = "job") -> Path:
        return self.folder / "notes-of" / f"{name}#{index}"

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits for something that the runtime does in a while."""
        patient = threading.Event()
        for _ in range(int(PATIENCE_S / 0.02)):
            if holds():
                return
            patient.wait(0.02)
        notes = [self.notes(each) for each in (0, 1)]
        raise AssertionError(f"{self.made.seen}, {notes}")

    def notes(self, index: int, name: str = "job") -> list[str]:
        path = self.notes_of(index, name) / "notes"
        return path.read_text().split() if path.exists() else []

    def is_running(self, number: int, name: str = "job") -> bool:
        found = self.made.seen.get(name, ())
        started = [self.notes(index, name)[-1:] for index in range(number)]
        return (
            len(found) == number
            and not any(each.problem for each in found)
            and all(each == ["started"] for each in started)
        )

    def limits(self) -> list[tuple[int, int] | None]:
        return [each.limits for each in self.made.seen.get("job", ())]

    def pids(self) -> list[int]:
        found = self.made.seen.get("job", ())
        return [ask(each.address) if each.address else 0 for each in found]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    skip_without_ray()
    with a_ray_cluster() as address:
        found = connect(address)
        yield found
        found.shutdown()


@pytest.fixture(params=["local", "ray"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    ray = request.getfixturevalue("ray") if request.param == "ray" else None
    yield from runtime_over(ray)


@pytest.fixture
def local() -> Iterator[Runtime]:
    yield from runtime_over(None)


def runtime_over(ray: Any) -> Iterator[Runtime]:
    # Sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="tfs") as folder:
        made = Runtime(Path(folder), ray)
        yield made
        assert made.made.drain(MonotonicClock.now() + PATIENCE_S)
        made.made.close()


def test_a_job_has_as_many_replicas_as_it_should(runtime: Runtime) -> None:
    """More are started, those too many are drained, the others go on; saying it again is nothing."""
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))
    before = runtime.pids()
    runtime.made.keep([SPEC])
    runtime.made.keep([replace(SPEC, num_replicas=1)])
    runtime.until(lambda: runtime.notes(1) == ["started", "drained"])
    runtime.until(lambda: runtime.pids() == before[:1])
    addresses = {each.address for each in runtime.made.seen["job"]}
    assert len(addresses) == 1


def test_a_job_may_have_no_replica_and_gets_one_again(runtime: Runtime) -> None:
    """One of Temp without models starts nothing, and drains what it had."""
    none = replace(SPEC, num_replicas=0)
    runtime.made.keep([none])
    runtime.made.keep([replace(SPEC, num_replicas=1)])
    runtime.until(lambda: runtime.is_running(1))
    runtime.made.keep([none])
    runtime.until(lambda: runtime.notes(0) == ["started", "drained"])
    runtime.until(lambda: runtime.made.seen["job"] == [])
    runtime.made.keep([replace(SPEC, num_replicas=1)])
    runtime.until(lambda: runtime.is_running(1))
    assert runtime.notes(0) == ["started", "drained", "started"]


def test_a_replica_that_dies_comes_back_where_it_was(runtime: Runtime) -> None:
    """At once, under the same address; nothing happens to its neighbour."""
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))
    first, second = runtime.pids()
    addresses = [each.address for each in runtime.made.seen["job"]]
    os.kill(first, signal.SIGKILL)
    runtime.until(lambda: runtime.notes(0) == ["started", "started"])
    assert runtime.pids()[1] == second
    found = runtime.made.seen["job"]
    assert [each.address for each in found] == addresses


def test_a_replica_that_cannot_run_is_tried_more_and_more_rarely(
    runtime: Runtime,
) -> None:
    """Its problem says how it ended; once it can run, it does."""
    (runtime.folder / "broken").touch()
    runtime.made.keep([replace(SPEC, num_replicas=1)])
    runtime.until(lambda: runtime.notes(0).count("broken") >= 2)
    runtime.until(lambda: "ended with 3" in runtime.made.seen["job"][0].problem)
    assert runtime.notes(0).count("broken") <= 4
    (runtime.folder / "broken").unlink()
    runtime.until(lambda: runtime.notes(0)[-1] == "started")


def test_a_job_that_is_removed_drains_and_is_forgotten(runtime: Runtime) -> None:
    """Nothing of it is left on disk, either."""
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))
    runtime.made.keep([])
    runtime.until(lambda: not runtime.made.seen)
    assert [runtime.notes(each)[-1] for each in (0, 1)] == ["drained", "drained"]
    assert not list((runtime.folder / "jobs").iterdir())


def test_a_folder_that_somebody_removed_keeps_no_replica_running(
    local: Runtime,
) -> None:
    """What was started here is drained, whatever became of its files."""
    runtime = local
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))
    shutil.rmtree(runtime.folder / "jobs")
    assert runtime.made.drain(MonotonicClock.now() + PATIENCE_S)
    assert [runtime.notes(each)[-1] for each in (0, 1)] == ["drained", "drained"]


def test_a_runtime_that_is_made_anew_finds_what_runs(runtime: Runtime) -> None:
    """A crash of who started them ends no server, and starts none twice."""
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))
    before = runtime.pids()
    runtime.made.close()
    runtime.made = runtime.make()
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.pids() == before)
    assert runtime.notes(0) == ["started"]
    runtime.made.keep([])
    runtime.until(lambda: not runtime.made.seen)
    assert runtime.notes(0) == ["started", "drained"]


def test_a_number_that_another_process_has_by_now_is_no_replica(
    local: Runtime,
) -> None:
    """After a restart of the machine, the note of a process may name anybody's."""
    runtime = local
    place = runtime.folder / "jobs" / "job" / "0"
    place.mkdir(parents=True)
    (place / "process").write_text(f'{{"pid": {os.getpid()}, "birth": "1"}}')
    runtime.made.keep([replace(SPEC, num_replicas=1)])
    runtime.until(lambda: runtime.is_running(1))
    assert os.getpid() not in runtime.pids()


def test_limits_hold_for_each_replica(runtime: Runtime) -> None:
    """Memory beyond the limit is refused, and only so many processors are used."""
    runtime.made.keep([replace(SPEC, cpus=1)])
    runtime.until(lambda: runtime.is_running(2))
    for each in runtime.made.seen["job"]:
        assert ask(each.address, b"memory")
    assert [runtime.notes(each)[-1] for each in (0, 1)] == ["refused", "refused"]
    masks = [psutil.Process(pid).cpu_affinity() for pid in runtime.pids()]
    assert [len(each or ()) for each in masks] == [1, 1]
    if len(os.sched_getaffinity(0)) > 1 and runtime.ray is None:
        assert masks[0] != masks[1]


@pytest.mark.parametrize("is_anew", [False, True])
def test_other_limits_are_those_of_the_replica_that_makes_way(
    runtime: Runtime, is_anew: bool
) -> None:
    """It drains and starts again; the others wait, also if nobody kept them meanwhile."""
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))
    second = runtime.pids()[1]
    if is_anew:
        runtime.made.close()
        runtime.made = runtime.make()
    new = replace(SPEC, memory_bytes=32 * MIB)
    again = ["started", "drained", "started"]
    runtime.made.keep([replace(new, renewed=0)])
    runtime.until(lambda: runtime.notes(0) == again)
    runtime.until(lambda: runtime.limits() == [new.limits, SPEC.limits])
    assert runtime.pids()[1] == second
    runtime.made.keep([replace(new, renewed=1)])
    runtime.until(lambda: runtime.limits() == [new.limits] * 2)
    runtime.until(lambda: runtime.notes(0) == runtime.notes(1) == again)


def test_a_job_may_have_no_replica_for_a_while(runtime: Runtime) -> None:
    """Its last ones are drained, and it is started again when it should have some."""
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))
    before = runtime.pids()
    runtime.made.keep([replace(SPEC, num_replicas=0)])
    runtime.until(lambda: not any(map(psutil.pid_exists, before)))
    runtime.until(lambda: runtime.made.seen["job"] == [])
    assert [runtime.notes(index)[-1] for index in (0, 1)] == ["drained"] * 2
    runtime.made.keep([SPEC])
    runtime.until(lambda: runtime.is_running(2))


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    """The kernel would say so of a name that nobody wrote."""
    long = tmp_path / ("x" * 100)
    with pytest.raises(InvalidArgument, match="choose a shorter folder"):
        LocalProcesses(long, lambda _: [], MonotonicClock())


@pytest.mark.parametrize("name", ["x" * 100, "a/b"])
def test_a_job_whose_name_makes_no_path_says_so(local: Runtime, name: str) -> None:
    """Its status has the reason, and the other jobs run."""
    local.made.keep([replace(SPEC, name=name), SPEC])
    local.until(lambda: local.is_running(2))
    assert "shorter name" in local.made.seen[name][0].problem


def test_the_jobs_of_a_fleet_are_kept_and_their_addresses_told(
    local: Runtime, tmp_path: Path
) -> None:
    """Those that the fleet starts; servers of others are none of its business."""
    runtime, state = local, state_in(tmp_path)
    state.change(edits.put_job(server("127.0.0.1:1", MIB)))
    state.change(edits.put_job(Job("job", MIB, num_replicas=2, is_ours=True)))

    def keep() -> None:
        keep_jobs(runtime.made, state, state.read().fleet, {}, ())

    keep()
    runtime.until(lambda: runtime.is_running(2))
    keep()
    found = state.read().fleet.jobs["job"].addresses
    assert [each.rpartition("/")[2] for each in found] == ["grpc.sock"] * 2
    revision = state.read().revision
    keep()
    assert state.read().revision == revision
    state.change(edits.drain_job("job", force=True))
    keep()
    runtime.until(lambda: not runtime.made.seen)
    state.store.close()


class Specs(RunningJobs):
    """Notes what is to be kept, of replicas that a test makes."""

    def __init__(self, *limits: int | None) -> None:
        self.seen = {
            "job": [
                Replica(f"{index}", "", None if each is None else (each, 0))
                for index, each in enumerate(limits)
            ]
        }
        self.specs: list[JobSpec] = []

    def keep(self, specs: Iterable[JobSpec]) -> None:
        self.specs = list(specs)


@pytest.mark.parametrize(
    ("limits", "routes", "answering", "renewed"),
    [
        ((2, 2, 2), {"m": "012"}, "012", None),
        ((None, None, None), {"m": "012"}, "012", None),
        ((1, 1, 1), {"m": "012"}, "012", 0),
        ((2, 1, 1), {"m": "012"}, "012", 1),
        ((2, 1, 1), {"m": "12"}, "012", None),
        ((2, 1, 1), {"m": "12"}, "12", None),
        ((2, 1, 1), {}, "12", None),
        ((2, 1, 1), {}, "012", 1),
        ((2, 1, 1), {"m": "02", "n": "01"}, "012", None),
        ((2, 1, 1), {"m": "02"}, "02", 1),
        ((1,), {"m": "0"}, "0", 0),
        ((2, 2, 2, 1), {"m": "0123"}, "0123", None),
    ],
)
def test_replicas_make_way_for_other_limits_one_after_the_other(
    limits: tuple[int | None, ...],
    routes: dict[str, str],
    answering: str,
    renewed: int | None,
    tmp_path: Path,
) -> None:
    """The next one goes once all others answer, and for each model that it answers for."""
    state, jobs = state_in(tmp_path), Specs(*limits)
    at = tuple(f"{each}" for each in range(len(limits)))
    number = min(len(limits), 3)
    job = Job("job", 2, num_replicas=number, is_ours=True, addresses=at)
    state.change(edits.put_job(job))
    found = {name: tuple(each) for name, each in routes.items()}
    keep_jobs(jobs, state, state.read().fleet, found, answering)
    assert [each.renewed for each in jobs.specs] == [renewed]
    state.store.close()
