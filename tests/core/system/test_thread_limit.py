"""tfs.core.system.limits."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.core.written_groups import written_groups
from tfs.core.errors import Code, serving_error
from tfs.core.system import limits as system_limits
from tfs.core.system.limits import thread_limits

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
