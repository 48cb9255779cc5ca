"""tfs.server.system.file_limit."""

from __future__ import annotations

import resource

import pytest

from tfs.server.system.file_limit import raise_file_limit

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 1 << 20, 65_536),
        (1024, NO_LIMIT, 65_536),
        (1024, 4096, 4096),
        (1024, 1024, 1024),
        (100_000, 1 << 20, 100_000),
        (NO_LIMIT, NO_LIMIT, 65_536),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may(
    soft: int, hard: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is raised no further than privileges allow, and is never lowered."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    assert raise_file_limit() == expected
    assert limits[-1] in {(soft, hard), (expected, hard)}


def test_a_sandbox_that_forbids_it_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts with what it has."""

    def forbid(kind: int, pair: tuple[int, int]) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", forbid)
    assert raise_file_limit() == 1024
