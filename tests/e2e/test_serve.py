"""The whole job through a real server process and real gRPC channels."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.config_reload import reload
from tests.e2e.serving import (
    QUICK,
    Serving,
    config_text,
    export_scale,
    export_sleeper,
    run_tfs,
    write_whole,
)
from tfs.client import Client
from tfs.core.errors import (
    InvalidArgument,
    NotFound,
    ServingError,
    Unknown,
)
from tfs.testing.patience import PATIENCE_S

X = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)


class Traffic(threading.Thread):
    """Calls Predict until stopped; counts answers by version, and failures."""

    def __init__(self, address: str, model: str) -> None:
        super().__init__(daemon=True)
        self.failures: list[ServingError] = []
        self.num_by_version: dict[int, int] = {}
        self._client = Client(address, timeout_s=PATIENCE_S)
        self._model = model
        self._changed = threading.Condition()
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            try:
                answer = self._client.predict(self._model, {"x": X})
            except ServingError as error:
                self.failures.append(error)
                continue
            version = answer.version
            assert version is not None
            # Version n multiplies by n: an answer that mixes versions would show.
            if not np.array_equal(answer.outputs["y"], X * version):
                self.failures.append(ServingError(f"version {version} answered wrong"))
            with self._changed:
                count = self.num_by_version.get(version, 0)
                self.num_by_version[version] = count + 1
                self._changed.notify_all()

    def wait_for(self, version: int) -> None:
        with self._changed:
            wanted = self.num_by_version.get(version, 0) + 20
            assert self._changed.wait_for(
                lambda: self.num_by_version.get(version, 0) >= wanted, PATIENCE_S
            ), f"version {version} never answered"

    def stop(self) -> None:
        self._stopping = True
        self.join(PATIENCE_S)
        self._client.close()


@pytest.mark.parametrize(
    ("transport", "measures"), [("grpcio", False), ("express", True)]
)
def test_versions_swap_and_roll_back_without_a_failed_request(
    tmp_path: Path, transport: str, measures: bool
) -> None:
    """A dropped version goes live and a config edit rolls it back; nobody notices."""
    base_path = tmp_path / "scale"
    config = tmp_path / "models.config"
    export_scale(base_path, 1)
    config.write_text(config_text("scale", base_path))
    with Serving(
        f"--model_config_file={config}",
        f"--grpc_transport={transport}",
        measures=measures,
    ) as server:
        server.wait_for("scale/1 is available")
        clients = [Traffic(server.address, "scale") for _ in range(2)]
        for traffic in clients:
            traffic.start()
            traffic.wait_for(1)
        for version in (2, 3):
            export_scale(base_path, version)
            for traffic in clients:
                traffic.wait_for(version)
        write_whole(
            config,
            config_text(
                "scale",
                base_path,
                "model_version_policy { specific { versions: 1 } }",
            ),
        )
        for traffic in clients:
            traffic.wait_for(1)
        for traffic in clients:
            traffic.stop()
        assert [traffic.failures for traffic in clients] == [[], []]
        assert server.stop() == 0


def test_a_reload_adds_removes_and_refuses_models(scale: Path, tmp_path: Path) -> None:
    """A good config takes effect before the reply; a bad one changes nothing."""
    with (
        Serving("--model_name=a", f"--model_base_path={scale}") as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        server.wait_for("a/2 is available")
        reload(client, config_text("b", scale))
        assert client.predict("b", {"x": X}).version == 2
        with pytest.raises(InvalidArgument, match="absolute path"):
            reload(client, config_text("c", Path("relative")))
        with pytest.raises(Unknown, match="does not exist"):
            reload(client, config_text("d", tmp_path / "absent"))
        reload(client, config_text("b", scale))
        assert client.predict("b", {"x": X}).version == 2


def test_a_hang_up_has_the_config_file_read(scale: Path, tmp_path: Path) -> None:
    """SIGHUP does not wait for the next look, and ends nothing."""
    config = tmp_path / "models.config"
    config.write_text(config_text("scale", scale))
    flags = (
        f"--model_config_file={config}",
        "--model_config_file_poll_wait_seconds=3600",
    )
    with Serving(*flags) as server:
        server.wait_for("scale/2 is available")
        write_whole(config, config_text("other", scale))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("other/2 is available")
        assert server.stop() == 0


def test_a_corrupt_version_leaves_the_old_one_serving(tmp_path: Path) -> None:
    """A version whose archive is damaged fails alone, with the reason in its status."""
    base_path = tmp_path / "scale"
    export_scale(base_path, 1)
    with (
        Serving("--model_name=scale", f"--model_base_path={base_path}") as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        server.wait_for("scale/1 is available")
        staged = export_scale(tmp_path / "staged", 2)
        archive = staged / "model.pt"
        damaged = bytearray(archive.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        archive.write_bytes(damaged)
        staged.rename(base_path / "2")
        server.wait_for("servable_end servable=scale/2")
        states = {each.version: each for each in client.status("scale")}
        assert states[1].state == "AVAILABLE"
        assert states[2].state == "END"
        assert states[2].error_code == "DATA_LOSS"
        assert "model.pt does not match" in states[2].error_message
        assert client.predict("scale", {"x": X}).version == 1


@pytest.mark.parametrize("exists", [False, True], ids=["absent", "empty"])
def test_a_model_without_versions_says_why(tmp_path: Path, exists: bool) -> None:
    """A base path that is absent or empty is told by status; a later drop is served."""
    base_path = tmp_path / "scale"
    if exists:
        base_path.mkdir()
    with (
        Serving("--model_name=scale", f"--model_base_path={base_path}") as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        server.wait_for("tfs: watching scale")
        if not exists:
            server.wait_for("tfs: scale: base path .* does not exist")
        with pytest.raises(NotFound, match="Latest"):
            client.predict("scale", {"x": X})
        with pytest.raises(NotFound) as caught:
            client.status("scale")
        assert "Could not find any versions of model scale" in caught.value.message
        # The problem is known after the first look, which may come after the ports.
        assert str(base_path) in caught.value.message or not any(
            "source_problem" in line for line in server.lines
        )
        export_scale(base_path, 1)
        server.wait_for("scale/1 is available")
        assert client.predict("scale", {"x": X}).version == 1


def test_a_taken_port_ends_the_start(scale: Path) -> None:
    """A port in use is one clear line and exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run_tfs(
            "serve",
            "--grpc_host=127.0.0.1",
            f"--port={port}",
            "--model_name=scale",
            f"--model_base_path={scale}",
        )
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in output
    assert "Traceback" not in output


def test_a_bad_config_ends_the_start(tmp_path: Path) -> None:
    """A server never starts with a config it does not understand."""
    config = tmp_path / "models.config"
    config.write_text("model_config_list { config { name: 'a' base_path: '/m' ")
    code, output = run_tfs(
        "serve", "--any_port", f"--model_config_file={config}", *QUICK
    )
    assert code == 1
    assert "Invalid protobuf" in output
    assert "Traceback" not in output


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose calls take as long as they are told."""
    base_path = tmp_path_factory.mktemp("models") / "sleeper"
    export_sleeper(base_path)
    return base_path


@contextlib.contextmanager
def serving_a_call(sleeper: Path, transport: str, seconds: float) -> Iterator[OneCall]:
    """A server in the middle of one call."""
    with Serving(
        "--model_name=sleeper",
        f"--model_base_path={sleeper}",
        f"--grpc_transport={transport}",
    ) as server:
        server.wait_for("is available")
        call = OneCall(server, seconds)
        call.start()
        server.wait_for("asleep")
        yield call
        call.join(PATIENCE_S)
        call.client.close()


class OneCall(threading.Thread):
    """One call that takes its time, and how it ended."""

    def __init__(self, server: Serving, seconds: float) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.client = Client(server.address, timeout_s=PATIENCE_S)
        self.outcome: object = None
        self._x = np.full((1, 2), seconds, np.float32)

    def run(self) -> None:
        try:
            self.outcome = self.client.predict("sleeper", {"x": self._x})
        except ServingError as error:
            self.outcome = error


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_a_call_in_flight_is_answered_before_the_end(
    sleeper: Path, transport: str
) -> None:
    """SIGTERM, twice at the same moment, drains: the call ends well, the exit is 0."""
    with serving_a_call(sleeper, transport, 1.0) as call:
        call.server.process.send_signal(signal.SIGTERM)
        call.server.process.send_signal(signal.SIGTERM)
        assert call.server.process.wait(PATIENCE_S) == 0
        call.join(PATIENCE_S)
        assert not isinstance(call.outcome, ServingError), call.outcome


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_a_second_signal_ends_at_once(sleeper: Path, transport: str) -> None:
    """Whoever cannot wait for what is in flight sends another signal."""
    with serving_a_call(sleeper, transport, 600.0) as call:
        call.server.process.send_signal(signal.SIGTERM)
        call.server.wait_for("draining")
        call.server.process.send_signal(signal.SIGINT)
        assert call.server.process.wait(PATIENCE_S) == 130
        call.join(PATIENCE_S)
        assert isinstance(call.outcome, ServingError)
