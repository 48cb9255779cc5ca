"""Models and servers that nobody asks for go, down to none; the router and real servers."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

from tests.e2e.serving import QUICK, export_scale
from tests.hosted.transactions import history
from tests.runtime.process_host import until
from tfs.cli.hosted.run import door
from tfs.cli.hosted.up import _server_command
from tfs.client import Client
from tfs.core.clock import MonotonicClock
from tfs.hosted import edits
from tfs.hosted.fleet import HostedModel, Job, config_text, read_config
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.identities import ControlOptions
from tfs.hosted.jobs.job_runtime import RunningJobs
from tfs.hosted.jobs.local_process import LocalProcesses
from tfs.hosted.service import HostedService, ServiceOptions
from tfs.hosted.store.sqlite import SqliteStore
from tfs.hosted.synchronizer import SynchronizerOptions
from tfs.testing.patience import PATIENCE_S

X = np.ones((1, 2), np.float32)
GIB = 1 << 30


class Idle:
    """A fleet whose models lose a server after so many idle seconds, and its servers."""

    def __init__(self, folder: Path, window_s: float) -> None:
        self.folder, self.clock = folder, MonotonicClock()
        self.state = FleetState(SqliteStore(str(folder / "fleet.db")))
        processes = LocalProcesses(
            folder / "jobs",
            lambda place: _server_command(place, QUICK),
            self.clock,
        )
        self.servers = RunningJobs(processes, self.clock)
        self.servers.start()
        self.router = f"unix:{folder}/router.sock"
        looks = SynchronizerOptions(0.2, down_after_s=PATIENCE_S, window_s=window_s)
        listeners = [door(self.router, "--listen")]
        self.service = HostedService(
            self.state,
            ServiceOptions(ControlOptions(), listeners, looks),
            self.clock,
            jobs=self.servers,
        )
        self.service.start()

    def add(self, job: Job, number: int) -> None:
        """Adds a job, and a model that may have as few servers as it."""
        base_path = self.folder / "scale"
        export_scale(base_path, 1)
        text = f'name: "scale" base_path: "{base_path}"'
        model = HostedModel(
            "scale",
            config_text(read_config(text)),
            1 << 24,
            False,
            min_replicas=job.min_replicas,
            max_replicas=job.max_replicas,
            num_replicas=number,
            is_temp=job.is_temp,
        )
        self.state.change(edits.put_job(job))
        self.state.change(edits.add_model(model))

    def ask(self) -> float:
        with Client(self.router, timeout_s=PATIENCE_S) as client:
            return float(client.predict("scale", {"x": X}).outputs["y"][0, 0])

    def num_replicas(self) -> int:
        return self.state.read().fleet.models["scale"].num_replicas

    def running(self) -> list[psutil.Process]:
        """Returns the servers that there are, those that drain included."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = each.cmdline()
                if "serve" in line and any(str(self.folder) in part for part in line):
                    found.append(each)
        return found

    def close(self) -> None:
        until_s = self.clock.now() + PATIENCE_S
        self.service.drain(until_s)
        self.service.stop_keeping()
        self.servers.drain(until_s)
        self.service.close(until_s)
        self.servers.close()
        self.state.store.close()


def test_a_model_of_temp_goes_to_zero_and_its_next_request_is_answered(
    short_folder: Path,
) -> None:
    """So do the servers, after it; requests that come while it goes are answered as well."""
    with contextlib.closing(Idle(short_folder, 1.0)) as idle:
        job = Job("temp", GIB, "", 0, is_ours=True, max_replicas=2, is_temp=True)
        idle.add(job, 1)
        assert idle.ask() == 1.0
        until(lambda: not idle.num_replicas(), "the model sleeps")
        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(idle.ask) for _ in range(24)]
            assert [each.result() for each in asked] == [1.0] * 24
        until(
            lambda: not idle.num_replicas() and not idle.running(),
            "the servers go after the model",
        )
        whys = [each.why for each in history(idle.state.store, 100)]
        went = whys.index("temp has no models")
        assert "load: scale to 0" in whys[went:], "the model first"
        assert idle.ask() == 1.0


def test_no_server_goes_while_another_says_nothing_of_its_load(
    short_folder: Path,
) -> None:
    """One of two is frozen, and nobody asks for anything; it goes once both have said so."""
    with contextlib.closing(Idle(short_folder, 8.0)) as idle:
        job = Job("job", GIB, "", 2, is_ours=True, min_replicas=1, max_replicas=2)
        idle.add(job, 2)

        def num_answering() -> int:
            seen = idle.state.read().models_seen.get("scale", {})
            return sum(each.primary is not None for each in seen.values())

        until(lambda: num_answering() == 2, "both answer")
        frozen = idle.running()[1]
        frozen.suspend()
        try:
            until(
                lambda: len(idle.state.read().jobs_seen["job"].answering) == 1,
                "one is known to be silent",
            )
            patient = threading.Event()
            for _ in range(25):
                assert idle.num_replicas() == 2
                patient.wait(0.4)
        finally:
            frozen.resume()
        until(
            lambda: idle.num_replicas() == 1 and len(idle.running()) == 1,
            "one server is left",
        )
