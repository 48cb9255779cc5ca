"""A whole fleet on one machine by one command: what dies there costs no request."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.serving import QUICK, Serving, export_scale, run_command, start_tfs
from tests.e2e.steady_load import SteadyLoad
from tests.hosted.routing.engines import skip_without_envoy
from tfs.client import Client
from tfs.core.errors import ServingError
from tfs.frontends.listener import bind_unix
from tfs.hosted.snapshot import JOB_SEEN, MODEL_SEEN
from tfs.testing.patience import PATIENCE_S

X = np.ones((1, 2), np.float32)
RATE = 250.0
"""Requests in a second; the goal is 200 answered."""


class Up:
    """``tfs hosted up`` over a folder, which may be killed and started again."""

    def __init__(self, folder: Path, *flags: str, num_servers: int) -> None:
        self.folder = folder
        self.router = f"unix:{folder}/router.sock"
        self.control = f"unix:{folder}/control.sock"
        try:
            self.start(f"--servers={num_servers}", "--memory=3G", *flags)
        except BaseException:
            self.close()
            raise

    def start(self, *flags: str) -> Serving:
        """Starts it, again after it ended; returns when it is ready."""
        self.serving = Serving.of(
            start_tfs(
                *("hosted", "up", f"--folder={self.folder}/fleet", *flags),
                *(f"--listen={self.router}", f"--control={self.control}"),
                f"--server_flags={' '.join(QUICK)}",
            )
        )
        self.serving.wait_for("tfs: ready")
        return self.serving

    def processes(self, word: str) -> Sequence[psutil.Process]:
        """Returns its processes whose command line has a word, whoever their parent is."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = each.cmdline()
                if word in line and any(str(self.folder) in part for part in line):
                    found.append(each)
        return found

    def servers(self) -> Sequence[psutil.Process]:
        """Returns its servers."""
        return self.processes("serve")

    def wait_for_servers(self, num: int) -> None:
        """Waits until there are so many servers."""
        patient = threading.Event()
        while len(self.servers()) != num:
            assert not patient.wait(0.05)

    def num_answering(self, model: str) -> int:
        found = json.loads(self.hosted("status", "--json"))
        return int(found["sightings"]["models"][model]["answering"])

    def hosted(self, *words: str) -> str:
        code, printed = run_command("hosted", *words, f"--controller={self.control}")
        assert code == 0, printed
        return printed

    def outcomes(self) -> list[set[str]]:
        """Returns the codes with which each server answered predictions."""
        found = []
        for at in self.folder.glob("fleet/jobs/local/*/grpc.sock"):
            words = ("status", "--json", "--stats", f"--address=unix:{at}")
            stats = json.loads(run_command(*words)[1])["server"]["stats"]
            labels = [each["labels"] for each in stats if each["name"] == "requests"]
            predicted = [each for each in labels if each["method"] == "Predict"]
            found.append({each["status"] for each in predicted})
        return found

    def wait_for_route(self, model: str) -> None:
        """Waits for routers that learn of models when it suits them."""
        patient = threading.Event()
        with Client(self.router, timeout_s=PATIENCE_S) as client:
            while True:
                with contextlib.suppress(ServingError):
                    client.predict(model, {"x": X})
                    return
                assert not patient.wait(0.05)

    def close(self) -> None:
        """Ends whatever is left of it."""
        self.serving.close()
        words = ("run", "--config-path")
        routers = [found for word in words for found in self.processes(word)]
        for each in (*routers, *self.servers()):
            with contextlib.suppress(psutil.Error):
                each.kill()


@pytest.fixture
def up(short_folder: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    """As many servers as the test says: each takes the import of torch."""
    made = Up(short_folder, num_servers=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("up", [3], indirect=True, ids=["three servers"])
def test_one_command_serves_models_until_ctrl_c(up: Up, short_folder: Path) -> None:
    """Added, asked, a new version, a canary, removed; and nothing is left running."""
    again = ("hosted", "up", f"--folder={up.folder}/fleet", "--servers=1")
    code, printed = run_command(*again)
    assert (code, "another tfs hosted up runs in" in printed) == (1, True)
    model = short_folder / "scale"
    export_scale(model, 1)
    up.hosted("add-model", "scale", str(model))
    with Client(up.router, timeout_s=PATIENCE_S) as client:
        assert client.predict("scale", {"x": X}).version == 1
        export_scale(model, 2)
        up.hosted("add-version", "scale", "2")
        assert client.predict("scale", {"x": X}).version == 2
        export_scale(model, 3)
        up.hosted("canary", "scale", "3", "--split=0.5")
        versions = {client.predict("scale", {"x": X}).version for _ in range(64)}
        assert versions == {2, 3}
        rare = short_folder / "rare"
        export_scale(rare, 1)
        on_demand = "--config=residency: ON_DEMAND"
        up.hosted("add-model", "rare", str(rare), "--replicas=3", on_demand)
        assert client.predict("rare", {"x": X}).version == 1
    up.hosted("add-job", "local", "--servers=1", "--memory=3G")
    limit = f"--model_memory_limit_bytes={3 << 30}"
    assert any(limit in each.cmdline() for each in up.servers()), "it has it by now"
    up.wait_for_servers(1)
    up.hosted("remove-model", "scale")
    up.serving.process.send_signal(signal.SIGINT)
    up.serving.wait_for("draining")
    assert up.serving.process.wait(PATIENCE_S) == 0
    assert not up.servers()


def test_what_keeps_a_fleet_from_being_ready_is_said(short_folder: Path) -> None:
    """Another's router at its address, and servers that end: each with the reason."""
    path = short_folder / "router.sock"
    taken = bind_unix(str(path), 0o600)
    serving = Serving.of(
        start_tfs(
            *("hosted", "up", f"--folder={short_folder}/fleet", "--servers=1"),
            *(f"--listen=unix:{path}", f"--control=unix:{short_folder}/control.sock"),
            "--server_flags=--no_such_flag",
        )
    )
    serving.wait_for("not ready yet: replica 0 cannot be started: .*cannot listen on")
    taken.close()
    serving.wait_for("not ready yet: replica 0 ended with 2")
    assert serving.stop() == 0
    assert "tfs: ready" not in "\n".join(serving.lines)
    serving.close()


@pytest.mark.parametrize("up", [1], indirect=True, ids=["one server"])
def test_servers_come_ahead_of_a_hint_and_go_without_cutting_a_request(
    up: Up, short_folder: Path
) -> None:
    """They start whatever load there is, and those that go answer what they have taken.

    None is asked for the model before it said that it has it.
    """
    model = short_folder / "scale"
    export_scale(model, 1)
    up.hosted("add-job", "local", "--servers=1-3", "--memory=1G")
    up.hosted("add-model", "scale", str(model), "--replicas=1-3")
    up.wait_for_servers(1)
    with SteadyLoad(up.router, "scale", RATE) as load:
        load.wait_for(100)
        up.hosted("scale", "scale", "--replicas=3")
        assert up.num_answering("scale") == 3, "the command waits for them"
        load.wait_for(300)
        losers = {"CANCELLED"}  # of second requests
        assert [each - losers for each in up.outcomes()] == [{"OK"}] * 3
        up.hosted("scale", "scale", "--replicas=1")
        up.wait_for_servers(1)
        load.wait_for(200)
    assert load.failures == []


def test_envoy_serves_on_without_its_control_plane(short_folder: Path) -> None:
    """Controller, synchronizer and what told Envoy are killed under load, then a server."""
    skip_without_envoy()
    with contextlib.closing(Up(short_folder, "--router=envoy", num_servers=2)) as up:
        model = short_folder / "scale"
        export_scale(model, 1)
        up.hosted("add-model", "scale", str(model))
        up.wait_for_route("scale")
        with SteadyLoad(up.router, "scale", RATE) as load:
            load.wait_for(600)
            for each in (up.serving.process, *up.processes("run")):
                each.kill()
            load.wait_for(500)
            up.servers()[0].kill()
            load.wait_for(500)
        assert load.failures == []


@pytest.mark.parametrize("router", ["python", "envoy"])
def test_a_server_that_is_killed_or_frozen_fails_no_request(
    router: str, short_folder: Path
) -> None:
    """One of three, under load: the others answer for it, and it comes back."""
    if router == "envoy":
        skip_without_envoy()
    with contextlib.closing(
        Up(short_folder, f"--router={router}", num_servers=3)
    ) as up:
        model = short_folder / "scale"
        export_scale(model, 1)
        up.hosted("add-model", "scale", str(model))
        up.wait_for_route("scale")
        _kill_and_freeze(up, model)


def _kill_and_freeze(up: Up, model: Path) -> None:
    with SteadyLoad(up.router, "scale", RATE) as load:
        load.wait_for(300)
        killed, frozen = up.servers()[:2]
        killed.kill()
        load.wait_for(500)
        frozen.send_signal(signal.SIGSTOP)
        load.wait_for(500)
        frozen.send_signal(signal.SIGCONT)
        export_scale(model, 2)
        up.hosted("add-version", "scale", "2")
        load.wait_for(100, version=2)
    assert load.failures == []
    assert load.num_answered > 1400
    assert len(up.servers()) == 3


@pytest.mark.parametrize("up", [2], indirect=True, ids=["two servers"])
def test_nothing_fails_while_controller_and_store_are_away(
    up: Up, short_folder: Path
) -> None:
    """A router and a server that are started again meanwhile go on from what is on disk.

    What was seen of servers is not needed, either: it is seen again.
    """
    model = short_folder / "scale"
    export_scale(model, 1)
    up.hosted("add-model", "scale", str(model))
    up.serving.process.kill()
    up.serving.process.wait(PATIENCE_S)
    away = short_folder / "away"
    away.mkdir()
    for each in (short_folder / "fleet").glob("fleet.db*"):
        each.rename(away / each.name)
    (short_folder / "fleet" / "fleet.db").write_text("no database " * 100)
    (router,) = up.processes("run")
    with SteadyLoad(up.router, "scale", RATE) as load:
        load.wait_for(300)
        # Whoever supervises it starts it as it was started.
        server = up.servers()[0]
        command = server.cmdline()
        server.kill()
        again = Serving.of(_start(command))
        again.wait_for("scale/1 is available")
        load.wait_for(500)
    assert load.failures == []
    command = router.cmdline()
    router.kill()
    router.wait(PATIENCE_S)
    rerouted = Serving.of(_start(command))
    rerouted.wait_for("listening on")
    with SteadyLoad(up.router, "scale", RATE) as load:
        load.wait_for(200)
    assert load.failures == []
    again.close()
    rerouted.close()
    for each in away.iterdir():
        each.rename(short_folder / "fleet" / each.name)
    with contextlib.closing(sqlite3.connect(short_folder / "fleet/fleet.db")) as store:
        store.execute("DELETE FROM entry WHERE kind IN (?, ?)", (MODEL_SEEN, JOB_SEEN))
        assert store.total_changes
        store.commit()
    up.serving.close()
    up.start()
    assert up.serving.process.poll() is None
    found = [line for line in up.serving.lines if "event=replica_found" in line]
    assert len(found) == 1
    assert "scale" in up.hosted("status")
    assert up.serving.stop() == 0
    assert not up.servers()


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
