"""Whether the page of metrics has a door."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import cast

import pytest

from tfs.core.stats import Stats
from tfs.server.core import ServerCore
from tfs.server.metrics.metrics_door import metrics_door
from tfs.server.options import DEFAULT_PORT, ServerOptions


@pytest.mark.parametrize(
    ("file", "port", "missing"),
    [
        ("broken", 0, "rest_api_port opens no port"),
        ("absent", 0, "rest_api_port opens no port"),
        ("disabled", 8501, "nothing_on_rest_api_port"),
        ("", 8501, "nothing_on_rest_api_port"),
        ("broken", DEFAULT_PORT, "--rest_api_port cannot be the same as --port"),
        ("", DEFAULT_PORT, "--rest_api_port cannot be the same as --port"),
        ("", 0, ""),
    ],
)
def test_one_of_two_flags_opens_nothing(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    port: int,
    missing: str,
) -> None:
    """Without a port the file is not even read, as upstream; the log says what lacks."""
    (tmp_path / "broken").write_text("prometheus_config { enabled")
    (tmp_path / "disabled").write_text("")
    options = ServerOptions(
        model_base_path="/models/m",
        monitoring_config_file=str(tmp_path / file) if file else "",
        rest_api_port=port,
    )
    core = cast(ServerCore, None)  # asked for a page alone
    assert metrics_door(options, Stats(), core, lambda: True, 0.0) is None
    assert [missing in record.getMessage() for record in caplog.records] == (
        [True] if missing else []
    )


def test_a_port_that_is_taken_keeps_no_model_from_answering(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes on without metrics, as upstream; the log names port and flag."""
    file = tmp_path / "monitoring"
    file.write_text("prometheus_config { enable: true }")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = ServerOptions(
            model_base_path="/models/m",
            grpc_host="127.0.0.1",
            monitoring_config_file=str(file),
            rest_api_port=port,
        )
        core = cast(ServerCore, None)  # nobody asks for the page
        assert metrics_door(options, Stats(), core, lambda: True, 0.0) is None
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert f"127.0.0.1:{port} (--rest_api_port)" in record.getMessage()
