"""What a fleet lives through that a kill does not show: pauses, full disks, cut lines."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.serving import QUICK, Serving, fork_tfs, run_command
from tests.e2e.steady_load import SteadyLoad
from tests.e2e.warm_python import ROOT
from tfs.client import Client
from tfs.testing.patience import PATIENCE_S

X = np.ones((1, 2), np.float32)
RATE = 100.0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Serving]:
    """A server without a model, that takes what a fleet says."""
    with Serving("--source=rpc", f"--state_dir={tmp_path / 'job'}") as serving:
        yield serving


class Control:
    """A process with controller, synchronizer and router over a store."""

    def __init__(self, store: Path, folder: Path, name: str) -> None:
        self.socket = f"unix:{folder}/{name}.sock"
        self.serving = Serving.of(
            fork_tfs(
                *("hosted", "run", "--listen=127.0.0.1:0", "--down_after_s=3"),
                *(f"--store={store}", f"--control={self.socket}"),
            )
        )
        self.router = self.serving.wait_for(r"listening on (127\S+)")
        self.serving.wait_for("listening on unix")

    def ask(self, *words: str) -> tuple[int, str]:
        return run_command("hosted", *words, f"--controller={self.socket}")

    def change(self, *words: str) -> None:
        code, printed = self.ask(*words)
        assert code == 0, printed


@contextlib.contextmanager
def control(store: Path, folder: Path, name: str = "control") -> Iterator[Control]:
    made = Control(store, folder, name)
    try:
        yield made
    finally:
        made.serving.close()


def test_a_leader_that_was_paused_follows_who_took_its_place(
    job: Serving, scale: Path, tmp_path: Path, short_folder: Path
) -> None:
    """It changes nothing when it comes back, and routes as its successor says."""
    store = tmp_path / "fleet.db"
    with (
        control(store, short_folder, "first") as first,
        control(store, short_folder, "second") as second,
    ):
        leads = r"event=synchronizer_leads"
        first.serving.wait_for(leads)
        first.change("add-job", job.address, "--memory=1G")
        first.change("add-model", "scale", str(scale))
        pause(first.serving, store)
        second.serving.wait_for(leads)
        second.change("rollback", "scale")
        first.serving.process.send_signal(signal.SIGCONT)
        first.serving.wait_for("event=synchronizer_follows")
        for each in (first, second):
            with Client(each.router, timeout_s=PATIENCE_S) as client:
                assert client.predict("scale", {"x": X}).version == 1
            assert "rollback to 1 of scale" in each.ask("status", "--history=9")[1]


def pause(serving: Serving, store: Path) -> None:
    """Stops a process that is not in the midst of a change.

    One that is keeps SQLite's lock for as long as it is stopped, and nobody else changes
    anything meanwhile.
    """
    process = psutil.Process(serving.process.pid)
    while True:
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            pass
        connection = sqlite3.connect(store, timeout=0.0)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            process.resume()
        else:
            return
        finally:
            connection.close()


def test_a_store_whose_disk_is_full_refuses_changes_and_fails_no_request(
    job: Serving, scale: Path, tmp_path: Path, short_folder: Path
) -> None:
    """A change that cannot be kept is not made; the next one is, once there is room."""
    with control(tmp_path / "fleet.db", short_folder) as fleet:
        fleet.change("add-job", job.address, "--memory=1G")
        fleet.change("add-model", "scale", str(scale))
        with SteadyLoad(fleet.router, "scale", RATE) as load, full_disk(fleet.serving):
            code, printed = fleet.ask("add-model", "other", str(scale))
            assert code != 0, printed
            load.wait_for(100)
        assert load.failures == []
        assert "other" not in fleet.ask("status")[1]
        fleet.change("add-model", "other", str(scale))


@contextlib.contextmanager
def full_disk(serving: Serving) -> Iterator[None]:
    """Lets a process write nothing more to files, as if their disk were full."""
    process = psutil.Process(serving.process.pid)
    _, most = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (1, most))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (most, most))


class Island:
    """A network of its own, joined to ours by one line that can be cut."""

    def __init__(self) -> None:
        number = os.getpid() % 16_000
        self.name = self._line = f"tfs{number}"
        third, fourth = divmod(4 * number, 256)
        ours, self.address = (f"10.251.{third}.{fourth + each}" for each in (1, 2))
        peer = f"{self._line}p"
        _ip("netns", "add", self.name)
        _ip(*("link", "add", self._line, "type", "veth", "peer", "name", peer))
        _ip("link", "set", peer, "netns", self.name)
        _ip("addr", "add", f"{ours}/30", "dev", self._line)
        _ip("-n", self.name, "addr", "add", f"{self.address}/30", "dev", peer)
        for each in ("lo", peer):
            _ip("-n", self.name, "link", "set", each, "up")
        self.join()

    def cut(self) -> None:
        """Cuts the line: nothing arrives any more, and nobody is told."""
        _ip("link", "set", self._line, "down")

    def join(self) -> None:
        """Joins the line."""
        _ip("link", "set", self._line, "up")

    def start_server(self, *flags: str) -> Serving:
        """Starts a server there; it listens on port 8500."""
        flags = (f"--grpc_host={self.address}", "--port=8500", *QUICK, *flags)
        return Serving.of(
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", self.name),
                    *(sys.executable, "-m", "tfs", "serve", *flags),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
            )
        )

    def close(self) -> None:
        """Removes the network; the line goes with it."""
        _ip("netns", "del", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def island() -> Iterator[Island]:
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("only root can make a network namespace, with `ip`")
    try:
        made = Island()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr!r}")
    yield made
    made.close()


def test_a_server_that_is_cut_off_fails_no_request_and_comes_back(
    job: Serving, scale: Path, tmp_path: Path, short_folder: Path, island: Island
) -> None:
    """Nothing tells of a cut line but silence; the other server answers meanwhile."""
    state_dir = f"--state_dir={tmp_path / 'far'}"
    far = island.start_server("--source=rpc", state_dir, "--admin_from=any")
    try:
        address = far.wait_for(r"listening on (\S+)")
        with control(tmp_path / "fleet.db", short_folder) as fleet:
            for each in (job.address, address):
                fleet.change("add-job", each, "--memory=1G")
            fleet.change("add-model", "scale", str(scale), "--replicas=2")
            with SteadyLoad(fleet.router, "scale", RATE) as load:
                load.wait_for(100)
                island.cut()
                fleet.serving.wait_for(f"event=job_down.*{address}")
                load.wait_for(100)
                island.join()
                fleet.serving.wait_for(f"event=job_up.*{address}")
                load.wait_for(100)
            assert load.failures == []
    finally:
        far.close()
