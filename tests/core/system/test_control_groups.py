"""tfs.core.system.limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.core.written_groups import written_groups
from tfs.core.system.limits import num_processors


@pytest.mark.parametrize(
    ("lines", "files", "cores"),
    [
        ("0::/app/serve", {"app/cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "10000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "6400000 100000"}, 8),
        ("0::/app", {"cpu.max": "400000 100000", "app/cpu.max": "300000 100000"}, 3),
        ("0::/host/path/of/it", {"cpu.max": "200000 100000"}, 2),
        (
            "4:cpu,cpuacct:/a\n0::/",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "250000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            "4:cpu:/",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            8,
        ),
        ("0::/", {"cpu.max": "0 0"}, 8),
        ("0::/", {"cpu.max": ""}, 8),
        ("", {}, 8),
    ],
)
def test_a_quota_makes_the_cores_fewer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    files: dict[str, str],
    cores: int,
) -> None:
    """The lowest of its groups counts; one that is none, or makes no sense, does not."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert num_processors(*written_groups(tmp_path, lines, files)) == cores


def test_where_nothing_is_known_of_groups_the_cores_count(tmp_path: Path) -> None:
    """Systems without control groups have no file to read."""
    assert num_processors(tmp_path, tmp_path) == len(os.sched_getaffinity(0))
