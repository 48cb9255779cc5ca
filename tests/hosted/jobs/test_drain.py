"""What the drain of jobs may count on, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.hosted.fleets import MIB, state_in
from tfs.core.clock import MonotonicClock
from tfs.hosted import edits
from tfs.hosted.fleet import Job
from tfs.hosted.identities import ControlOptions
from tfs.hosted.jobs.job_runtime import JobSpec, Replica, RunningJobs, Seen
from tfs.hosted.jobs.local_process import LocalProcesses
from tfs.hosted.service import HostedService, ServiceOptions
from tfs.testing.patience import PATIENCE_S


class Runtime:
    """Has at once what is wanted, unless it is away."""

    look_s = 0.01

    def __init__(self) -> None:
        self.is_away = False

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        if self.is_away:
            raise ConnectionError("away")
        return {name: [Replica(f"unix:/{name}")] for name in specs}


class HeldJobs(RunningJobs):
    """Is told late what to keep."""

    def __init__(self) -> None:
        super().__init__(Runtime(), MonotonicClock())
        self.asked, self.released = threading.Event(), threading.Event()

    def keep(self, specs: Iterable[JobSpec]) -> None:
        wanted = list(specs)
        if wanted:
            self.asked.set()
            self.released.wait(PATIENCE_S)
        super().keep(wanted)


def test_who_ends_a_fleet_is_given_no_job_to_keep_any_more(tmp_path: Path) -> None:
    """A look at the store that is under way comes first, so that all jobs stay drained."""
    state, jobs = state_in(tmp_path), HeldJobs()
    state.change(edits.put_job(Job("job", MIB, is_ours=True)))
    options = ServiceOptions(ControlOptions(), None)
    service = HostedService(state, options, jobs=jobs)
    service.start()
    jobs.start()
    assert jobs.asked.wait(PATIENCE_S)
    threading.Timer(0.3, jobs.released.set).start()
    service.stop_keeping()
    assert jobs.drain(MonotonicClock.now() + PATIENCE_S)
    service.close(MonotonicClock.now() + PATIENCE_S)
    assert not jobs.seen
    jobs.close()
    state.store.close()


def test_what_could_not_be_looked_at_has_not_ended() -> None:
    """A cluster that is away while a fleet ends may have all its servers."""
    runtime = Runtime()
    runtime.is_away = True
    with contextlib.closing(RunningJobs(runtime, MonotonicClock())) as jobs:
        jobs.start()
        assert not jobs.drain(MonotonicClock.now() + 0.2)
        runtime.is_away = False
        assert jobs.drain(MonotonicClock.now() + PATIENCE_S)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets in it."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def test_a_drain_that_its_runtime_does_not_outlive_goes_on(folder: Path) -> None:
    """The next one finds the server, and has it end no sooner than it would have."""
    notes = folder / "notes"
    signals = f"trap 'echo signal >> {notes}' TERM; echo started >> {notes}"
    command = ["/bin/sh", "-c", f"{signals}; while :; do sleep 0.02; done"]

    def made() -> LocalProcesses:
        return LocalProcesses(folder / "jobs", lambda _: command, MonotonicClock())

    def until(text: str) -> None:
        patient = threading.Event()
        while not notes.exists() or notes.read_text() != text:
            assert not patient.wait(0.02)

    first = made()
    first.look({"job": JobSpec("job", 1, MIB)})
    until("started\n")
    first.look({})
    until("started\nsignal\n")
    second = made()
    try:
        for _ in range(10):
            assert second.look({}) == {"job": []}
            threading.Event().wait(0.02)
        assert notes.read_text() == "started\nsignal\n"
    finally:
        second.kill()
