"""The file of --monitoring_config_file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.server.metrics_page import DEFAULT_PATH, read_monitoring_config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prometheus_config { enable: true }", DEFAULT_PATH),
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ('prometheus_config { path: "/metrics" }', ""),
        ("", ""),
    ],
)
def test_a_page_is_where_the_file_says(
    tmp_path: Path, text: str, expected: str
) -> None:
    """Upstream's place unless another is named; nothing unless it is enabled."""
    file = tmp_path / "monitoring"
    file.write_text(text)
    assert read_monitoring_config(str(file)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "prometheus_config {",
        "nonsense: 1",
        'prometheus_config { enable: true path: "metrics" }',
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """A wrong file is refused before anything is served, naming the flag."""
    file = tmp_path / "monitoring"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match="monitoring_config_file"):
        read_monitoring_config(str(file))
    with pytest.raises(
        FailedPrecondition, match=r"read MonitoringConfig file: .*absent"
    ):
        read_monitoring_config(str(tmp_path / "absent"))
