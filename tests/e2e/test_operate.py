"""Operating a real server from the command line: canary, promote, rollback, config."""

from __future__ import annotations

import json
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.config_reload import reload
from tests.e2e.serving import (
    Serving,
    config_text,
    export_scale,
    free_port,
    run_command,
    write_whole,
)
from tfs.client import Client
from tfs.core.errors import PermissionDenied, Unimplemented
from tfs.export import save_python
from tfs.proto.grpc.health.v1 import health_pb2
from tfs.testing.patience import PATIENCE_S

X = np.array([[1.0, 2.0]], dtype=np.float32)


HERE_ONLY = """
import os

class Scale:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1, 2]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1, 2]}},
        }
    }

    def predict(self, x):
        return {"y": x * float(os.environ["SCALE_OF_ITS_AUTHOR"])}
"""


class Operated(Serving):
    """A server of model "scale" with an admin socket and a state directory."""

    def __init__(self, home: Path, *flags: str, extra: str = "") -> None:
        self.base_path = home / "scale"
        self.config = home / "models.config"
        self.socket = home / "admin.sock"
        if not self.config.exists():
            self.config.write_text(config_text("scale", self.base_path, extra))
        super().__init__(
            f"--model_config_file={self.config}",
            f"--admin_socket_path={self.socket}",
            f"--state_dir={home / 'state'}",
            *flags,
        )

    def tfs(self, *words: str, code: int = 0) -> str:
        """Runs a command against the admin socket; returns what it printed."""
        status, output = run_command(*words, f"--socket={self.socket}")
        assert status == code, output
        return output

    def json(self, *words: str) -> Any:
        """Runs a command and reads its JSON."""
        return json.loads(self.tfs(*words, "--json"))

    def model(self) -> Any:
        """Returns the report of the model."""
        return self.json("status", "scale")["models"][0]

    def predicted(self) -> int | None:
        """Returns the version that answers without being named."""
        with Client(self.address, timeout_s=PATIENCE_S) as client:
            return client.predict("scale", {"x": X}).version


def until(check: Callable[[], bool]) -> None:
    """Repeats calls to the server until one shows what is expected."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if check():
            return
    raise AssertionError("it never came about")


def test_a_canary_is_teed_compared_rejected_and_started_anew(tmp_path: Path) -> None:
    """The whole life of a trial, with real answers of real models."""
    export_scale(tmp_path / "scale", 1)
    with Operated(tmp_path) as server:
        server.wait_for("scale/1 is available")
        server.tfs("canary", "scale", "2", "--tee=1")
        export_scale(tmp_path / "scale", 2)
        server.wait_for("scale/2 is available")
        with Client(server.address, timeout_s=PATIENCE_S) as client:

            def compared() -> bool:
                assert client.predict("scale", {"x": X}).version == 1
                total = server.model()["canary"].get("total", {})
                return float(total.get("mean_abs_diff", 0)) == 1.5

            until(compared)
            assert server.model()["canary"]["phase"] == "RUNNING"
            guarded = ("--tee=1", "--max_mean_abs_diff=0.5")
            server.tfs("canary", "scale", "2", *guarded)

            def rejected() -> bool:
                client.predict("scale", {"x": X})
                return bool(server.model()["canary"]["phase"] == "REJECTED")

            until(rejected)
            assert "mean_abs_diff 1.5 > 0.5" in server.tfs("canary", "scale")
            assert "rejected" in server.tfs("promote", "scale", code=1)
            assert client.predict("scale", {"x": X}).version == 1
            server.tfs("canary", "scale", "2", *guarded)
            assert server.model()["canary"]["phase"] == "RUNNING"
            server.tfs("canary", "scale", "--end")
            assert "canary" not in server.model()


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_a_split_is_sticky_and_a_promotion_ends_it(
    tmp_path: Path, transport: str
) -> None:
    """Callers stay on their side; then everybody gets the new version."""
    for version in (1, 2):
        export_scale(tmp_path / "scale", version)
    extra = "model_version_policy { all {} } traffic { primary: 1 }"
    flag = f"--grpc_transport={transport}"
    with Operated(tmp_path, flag, extra=extra) as server:
        server.wait_for("is available")
        server.wait_for("is available")
        server.tfs("canary", "scale", "2", "--split=0.5")
        import grpc

        from tfs.client import requests

        keys = [f"caller-{index}" for index in range(40)]
        rpc = requests.predict(requests.Target("scale"), {"x": X})
        with grpc.insecure_channel(server.address) as channel:
            call = channel.unary_unary(rpc.method, None, None)

            def side(key: str) -> int | None:
                metadata = (("tfs-routing-key", key),)
                reply = call(rpc.message, timeout=PATIENCE_S, metadata=metadata)
                return rpc.read(reply).version

            first = {key: side(key) for key in keys}
            assert set(first.values()) == {1, 2}
            with Client(server.address, timeout_s=PATIENCE_S) as client:
                for key in keys:
                    answer = client.predict("scale", {"x": X}, routing_key=key)
                    assert answer.version == first[key]
            assert {key: side(key) for key in keys} == first
            server.tfs("canary", "scale", "2", "--split=0.9")
            wider = {key: side(key) for key in keys}
            assert all(wider[key] == 2 for key in keys if first[key] == 2)
            assert "version 2 of scale is the primary" in server.tfs("promote", "scale")
            assert {side(key) for key in keys} == {2}


NEEDY = """
class Servable:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1, 2]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1, 2]}},
        }
    }

    def load(self, version):
        open(NEEDED).close()

    def predict(self, x):
        return x
"""


def test_what_failed_is_tried_again_though_nobody_can_touch_it(tmp_path: Path) -> None:
    """The fault lay outside the version's directory, and is mended."""
    needed, place = tmp_path / "needed.txt", tmp_path / "servable.py"
    place.write_text(NEEDY.replace("NEEDED", repr(str(needed))))
    export_scale(tmp_path / "scale", 1)
    with Operated(tmp_path, "--max_num_load_retries=0") as server:
        server.wait_for("scale/1 is available")
        assert "no version of scale" in server.tfs("retry", "scale", code=1)
        needed.touch()
        save_python(place, tmp_path / "staged")
        needed.unlink()
        (tmp_path / "staged" / "1").rename(tmp_path / "scale" / "2")
        server.wait_for("event=load_failed servable=scale/2")
        output = server.tfs("retry", "scale", code=1)
        assert "version 2 of scale failed again" in output
        assert str(needed) in output
        assert server.predicted() == 1
        needed.touch()
        (dry,) = server.json("retry", "scale", "--dry_run")["versions"]
        assert dry == "2"
        output = server.tfs("retry", "scale", "2")
        assert "version 2 of scale is available" in output
        assert server.predicted() == 2


def test_a_rollback_outlives_damage_edits_and_a_restart(tmp_path: Path) -> None:
    """One command; pinned until it is ended."""
    for version in (1, 2):
        export_scale(tmp_path / "scale", version)
    with Operated(tmp_path) as server:
        server.wait_for("scale/2 is available")
        for path in (tmp_path / "scale" / "2").iterdir():
            if path.is_file():
                path.write_bytes(b"damaged")
        assert "version 1 of scale is the primary" in server.tfs("rollback", "scale")
        assert server.predicted() == 1
        write_whole(
            server.config,
            config_text("scale", server.base_path, "transition: RESOURCE_PRESERVING"),
        )
        server.wait_for("config_applied reason='edit")
        assert server.predicted() == 1
        assert server.stop() == 0
    with Operated(tmp_path) as server:
        server.wait_for("scale/1 is available")
        assert server.predicted() == 1
        export_scale(tmp_path / "scale", 3)
        server.wait_for("scale/3 is available")
        assert server.predicted() == 1
        shown = server.tfs("config", "show")
        assert "overridden by rollback" in shown
        saved = tmp_path / "shown.config"
        saved.write_text(shown)
        assert "unchanged" in server.tfs("reload", str(saved), "--dry_run")
        server.tfs("rollback", "scale", "--end")
        assert server.predicted() == 3


@pytest.mark.parametrize("transition", ["", "transition: RESOURCE_PRESERVING"])
def test_a_reload_is_over_when_what_it_changed_answers(
    tmp_path: Path, transition: str
) -> None:
    """The same version under another base path: not what was loaded before."""
    export_scale(tmp_path / "scale", 1)
    export_scale(tmp_path / "other", 1, factor=7.0)
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "servable.json").write_text("{}")
    config = tmp_path / "moved.config"
    with (
        Operated(tmp_path) as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        server.wait_for("scale/1 is available")
        config.write_text(config_text("scale", tmp_path / "other", transition))
        assert "applied" in server.tfs("reload", str(config))
        assert client.predict("scale", {"x": X}).outputs["y"].tolist() == [[7, 14]]
        config.write_text(config_text("scale", tmp_path / "bad", transition))
        output = server.tfs("reload", str(config), code=1)
        assert "{name: scale version: 1} due to error" in output
        assert client.predict("scale", {"x": X}).outputs["y"].tolist() == [[7, 14]]


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_the_admin_socket_is_private_and_shows_nothing_else(
    tmp_path: Path, transport: str
) -> None:
    """Mode 0600; no predictions through it."""
    export_scale(tmp_path / "scale", 1)
    with Operated(tmp_path, f"--grpc_transport={transport}") as server:
        server.wait_for("scale/1 is available")
        mode = stat.S_IMODE(server.socket.stat().st_mode)
        assert mode == 0o600
        with (
            Client(f"unix:{server.socket}", timeout_s=PATIENCE_S) as client,
            pytest.raises(Unimplemented),
        ):
            client.predict("scale", {"x": X})
        status, output = run_command("status", f"--address={server.address}")
        assert status == 0
        assert "SERVING, 1 model(s)" in output
        assert f"listening on {server.address}, unix:{server.socket}" in output
        assert "scale" in server.tfs("models")


def test_all_doors_are_told(tmp_path: Path) -> None:
    """A line for each at the start, gRPC's first; status has them too."""
    port = free_port()
    path = tmp_path / "http.sock"
    flags = f"--rest_api_port={port}", f"--rest_api_socket_path={path}"
    with Operated(tmp_path, *flags) as server:
        told = f"unix:{server.socket}", f"http://127.0.0.1:{port}", f"http+unix:{path}"
        for each in told:
            server.wait_for(f"^tfs: listening on {re.escape(each)}$")
        address = f"--address={server.address}"
        output = run_command("status", address)[1]
        assert f"listening on {', '.join((server.address, *told))}\n" in output


def test_a_server_can_be_closed_to_loopback(tmp_path: Path) -> None:
    """--admin_from=socket leaves the TCP port to requests alone."""
    export_scale(tmp_path / "scale", 1)
    with Operated(tmp_path, "--admin_from=socket") as server:
        server.wait_for("scale/1 is available")
        status, output = run_command("status", f"--address={server.address}")
        assert status == 1
        assert "PERMISSION_DENIED" in output
        with (
            Client(server.address, timeout_s=PATIENCE_S) as client,
            pytest.raises(PermissionDenied),
        ):
            reload(client, config_text("scale", server.base_path))
        assert server.predicted() == 1
        server.tfs("status")


def test_what_stands_in_runs_as_it_did(tmp_path: Path) -> None:
    """A version whose place cannot be had takes nothing from the one that comes back."""
    export_scale(tmp_path / "scale", 1)
    config = tmp_path / "moved.config"
    with Operated(tmp_path) as server:
        server.wait_for("scale/1 is available")
        text = "transition: RESOURCE_PRESERVING "
        config.write_text(config_text("scale", server.base_path, text))
        server.tfs("reload", str(config))
        text += 'runtime { device: "cuda:99" }'
        config.write_text(config_text("scale", server.base_path, text))
        output = server.tfs("reload", str(config), code=1)
        assert "cuda:99" in output
        server.wait_for("servable_available servable=scale/1 reason='version 1 failed")
        assert server.predicted() == 1
        (version,) = server.json("models")["models"][0]["versions"]
        assert version["state"] == "AVAILABLE"
        assert "cuda:99" in version["error"]["message"]


def test_a_version_that_fails_on_its_own_example_takes_over_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it is available and not well; beside one that answers its load fails."""
    (tmp_path / "servable.py").write_text(HERE_ONLY)

    def save_broken(version: int) -> None:
        with monkeypatch.context() as of_its_author:
            of_its_author.setenv("SCALE_OF_ITS_AUTHOR", "2")
            save_python(
                tmp_path / "servable.py",
                tmp_path / "scale",
                version=version,
                example_inputs={"x": X},
            )

    told = "serving_default fails on its own example: "
    save_broken(1)
    with Operated(tmp_path, "--load_probe_budget_s=0.5") as server:
        server.wait_for("scale/1 is available")
        assert told in server.tfs("status")
        assert told in server.tfs("models")
        assert health_of(server) == health_pb2.HealthCheckResponse.NOT_SERVING
        export_scale(tmp_path / "scale", 2)
        server.wait_for("scale/2 is available")
        assert health_of(server) == health_pb2.HealthCheckResponse.SERVING
        save_broken(3)
        server.wait_for("servable_end servable=scale/3")
        assert told in server.tfs("status")
        assert server.predicted() == 2
        extra = "examples_gate: false"
        write_whole(server.config, config_text("scale", server.base_path, extra))
        server.wait_for("scale/3 is available")
        assert health_of(server) == health_pb2.HealthCheckResponse.SERVING
        assert server.stop() == 0


def health_of(server: Operated) -> int:
    """Returns what gRPC health says of the model."""
    with grpc.insecure_channel(server.address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        reply = check(
            health_pb2.HealthCheckRequest(service="scale"), timeout=PATIENCE_S
        )
    assert isinstance(reply, health_pb2.HealthCheckResponse)
    return reply.status
