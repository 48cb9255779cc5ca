"""A real server's page of metrics."""

from __future__ import annotations

import re
import shutil
import time
import urllib.request
from pathlib import Path

import numpy as np

from tests.deploy.monitored import asked_of, queries
from tests.e2e.serving import Serving, config_text, free_port
from tfs.client import Client
from tfs.testing.patience import PATIENCE_S


def test_prometheus_reads_what_clients_did(scale: Path, tmp_path: Path) -> None:
    """Upstream's flags, place and names beside ours; what boards and alerts ask for, too."""
    base = tmp_path / "scale"
    shutil.copytree(scale / "2", base / "2")
    parameters = "max_batch_size { value: 8 }"
    (base / "2" / "batching_params.pbtxt").write_text(parameters)
    config = tmp_path / "models"
    config.write_text(config_text("scale", base))
    port = free_port()
    flags = (
        f"--model_config_file={config}",
        f"--rest_api_port={port}",
    )
    with Serving(*flags) as serving:
        serving.wait_for("scale/2.*available|available.*scale/2")
        with Client(serving.address, timeout_s=PATIENCE_S) as client:
            for _ in range(3):
                client.predict("scale", {"x": np.ones((1, 2), np.float32)})
        url = f"http://127.0.0.1:{port}/monitoring/prometheus/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
            text = reply.read().decode()
        assert (
            ':tensorflow:serving:request_count{model_name="scale",status="OK"} 3'
            in text
        )
        assert 'tfs_model_primary_version{model="scale"} 2' in text
        assert "tfs_ready 1" in text
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S
        ) as reply:
            assert "tfs_ready 1" in reply.read().decode()
        assert missing_in(text) == []
        assert serving.stop() == 0


def missing_in(page: str) -> list[str]:
    """Returns what the board and the alerts ask for and the page has not."""
    labels: dict[str, set[str]] = {"up": {"job", "instance"}}
    for line in page.splitlines():
        found = re.fullmatch(r"([\w:]+)(?:{(.*)})? \S+", line)
        if found is not None:
            own = labels.setdefault(found[1], {"instance", "job"})
            own.update(re.findall(r'(\w+)="', found[2] or ""))
    missing = []
    for query in queries():
        asked = asked_of(query)
        assert asked, query
        missing += [
            f"{name}{{{','.join(sorted(wanted - labels.get(name, set())))}}}"
            for name, wanted in asked.items()
            if not wanted <= labels.get(name, set())
        ]
    return missing


def test_what_failed_is_past_once_another_version_serves(
    scale: Path, tmp_path: Path
) -> None:
    """The state FAILED is worth an alert, which ends when a good version came."""
    base = tmp_path / "scale"
    shutil.copytree(scale / "2", base / "2")
    monitoring = tmp_path / "monitoring"
    monitoring.write_text('prometheus_config { enable: true path: "/own/metrics" }')
    port = free_port()
    url = f"http://127.0.0.1:{port}/own/metrics"

    def states() -> list[str]:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
            lines = reply.read().decode().splitlines()
        return [line for line in lines if line.startswith("tfs_model_version_state{")]

    def publish(version: str, *, damaged: bool) -> None:
        shutil.copytree(scale / "2", base / ".tmp")
        if damaged:
            (base / ".tmp" / "model.pt").write_bytes(b"cut")
        (base / ".tmp").rename(base / version)

    def wait_for(line: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while line not in states():
            assert time.monotonic() < deadline_s, states()

    state = 'tfs_model_version_state{model="scale",version="3",state="%s"} 1'
    flags = (
        "--model_name=scale",
        f"--model_base_path={base}",
        f"--monitoring_config_file={monitoring}",
        f"--rest_api_port={port}",
    )
    with Serving(*flags) as serving:
        serving.wait_for("scale/2.*available")
        publish("3", damaged=True)
        wait_for(state % "FAILED")
        publish("4", damaged=False)
        serving.wait_for("scale/4.*available")
        wait_for(state % "END")
        assert not any("FAILED" in line for line in states())
        assert serving.stop() == 0
