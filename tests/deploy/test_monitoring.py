"""The compose file, the alerts and the board, beside tests/e2e/test_metrics.py."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from tests.architecture.tree import ROOT
from tests.deploy.monitored import MONITORING, asked_of, queries

COMPOSE = (ROOT / "deploy/compose.yaml").read_text()


def test_a_query_is_taken_apart() -> None:
    """What is checked against a page is what the query asks for."""
    query = (
        'sum by (le, model) (rate(tfs_a_bucket{model=~"$model"}[5m])) '
        '/ on (model) max(tfs_b{state!="x y"}) > 0.01 or vector(0)'
    )
    grouped = {"le", "model"}
    assert asked_of(query) == {
        "tfs_a_bucket": grouped,
        "tfs_b": {"state", *grouped},
    }
    assert len(list(queries())) > 15


def test_files_that_are_mounted_exist() -> None:
    """Docker would make an empty folder in the place of one that does not."""
    mounts = re.findall(r"- (\./monitoring\S*?):", COMPOSE)
    assert len(mounts) == 4
    assert [path for path in mounts if not (ROOT / "deploy" / path).exists()] == []
    assert (
        "rule_files:\n  - /etc/prometheus/alerts.yaml"
        in (MONITORING / "prometheus.yaml").read_text()
    )
    uid = re.findall(
        r"uid: (\w+)",
        (MONITORING / "grafana/provisioning/datasources/prometheus.yaml").read_text(),
    )
    board = (MONITORING / "grafana/board.json").read_text()
    assert set(re.findall(r'"type": "prometheus", "uid": "(\w+)"', board)) == set(uid)


def test_the_board_is_there_when_the_server_is_not_healthy() -> None:
    """Which is when it is looked at."""
    services = yaml.safe_load(COMPOSE)["services"]
    waiting = {name: each.get("depends_on", []) for name, each in services.items()}
    assert waiting == {"tfs": [], "prometheus": [], "grafana": ["prometheus"]}


def test_only_the_servers_ports_are_open_to_the_network() -> None:
    """Prometheus and the board ask nobody who they are."""
    published = re.findall(r'- "([\d.:]+)"', COMPOSE)
    assert [port for port in published if not port.startswith("127.0.0.1:")] == [
        "8500:8500",
        "8501:8501",
    ]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_prometheus_takes_the_rules() -> None:
    """Its own tool reads them (Debian's package prometheus)."""
    command = ["promtool", "check", "rules", str(MONITORING / "alerts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
