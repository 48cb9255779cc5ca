"""tfs.core.system.limits."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tests.core.written_groups import written_groups
from tfs.core.errors import Code, serving_error
from tfs.core.system import limits as system_limits
from tfs.core.system.limits import num_processors, thread_limits


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


REFUSED = RuntimeError("can't start new thread")


def limits(monkeypatch: pytest.MonkeyPatch, **soft: int) -> None:
    """Has the process's own limits be these, by name; none otherwise."""
    numbers = {getattr(resource, f"RLIMIT_{name}"): n for name, n in soft.items()}
    monkeypatch.setattr(
        resource,
        "getrlimit",
        lambda kind: (numbers.get(kind, resource.RLIM_INFINITY), -1),
    )


@pytest.mark.parametrize(
    ("lines", "files", "words"),
    [
        (
            "0::/app/serve",
            {"app/pids.max": "64", "app/pids.current": "60"},
            "64, and has 60",
        ),
        ("0::/app", {"app/pids.max": "max", "pids.max": "99"}, "may have 99 ("),
        ("7:pids:/a\n0::/", {"pids/a/pids.max": "12"}, "may have 12 ("),
        ("0::/gone/from/here", {"pids.max": "7"}, "may have 7 ("),
        ("0::/app", {"app/pids.max": "max"}, "no limit of this user or control group"),
    ],
)
def test_the_lowest_limit_of_the_control_groups_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    files: dict[str, str],
    words: str,
) -> None:
    """Groups of both versions are found, by the kernel's path or a container's root."""
    limits(monkeypatch)
    assert words in thread_limits(*written_groups(tmp_path, lines, files))


def test_the_limits_of_the_user_and_of_addresses_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says of none of them that it was the one."""
    limits(monkeypatch, NPROC=32, AS=1 << 30)
    told = thread_limits(tmp_path, tmp_path)
    assert "this user may have 32 processes and threads (ulimit -u" in told
    assert "1024 MiB of addresses" in told


def test_what_fails_for_want_of_threads_tells_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version's status is where an operator reads it."""
    monkeypatch.setattr(system_limits, "thread_limits", lambda: "the limit is 12")
    error = serving_error(REFUSED, "cannot load digits/1")
    assert error.code is Code.UNAVAILABLE
    assert error.message == "cannot load digits/1: no more threads: the limit is 12"
