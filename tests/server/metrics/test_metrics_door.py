"""Whether the page of metrics has a door."""

from __future__ import annotations

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
