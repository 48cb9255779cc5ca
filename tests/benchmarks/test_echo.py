"""The echo server, its process and the load, together."""

from __future__ import annotations

import os
import sys

import pytest

from tests.benchmarks.load import LoadResult, run_closed_loop
from tests.benchmarks.server_process import ServerProcess

ECHO = [sys.executable, "-m", "tests.benchmarks.echo_server"]


def test_the_echo_server_returns_every_body() -> None:
    """Any method answers its own bytes, and right and wrong replies are told apart."""
    with ServerProcess(ECHO) as server:
        right = run_closed_loop(
            server.target,
            "/any.Service/Method",
            b"abc",
            num_in_flight=4,
            duration_s=0.1,
            check=lambda reply: reply == b"abc",
        )
        wrong = run_closed_loop(
            server.target,
            "/any.Service/Method",
            b"abc",
            num_in_flight=1,
            duration_s=0.01,
            check=lambda reply: reply == b"xyz",
        )
        pid = server.pid
    assert right.num_ok > 0
    assert right.num_failed == 0
    assert len(right.latencies_s) == right.num_ok
    assert 0 < right.latency_s(0.5) <= right.latency_s(0.99)
    assert wrong.num_ok == 0
    assert set(wrong.faults) == {"wrong reply"}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_ends_early_shows_its_output() -> None:
    """The complaint holds what the program said, not only that it is gone."""
    server = ServerProcess([sys.executable, "-c", "print('no such model')"])
    with pytest.raises(RuntimeError, match="no such model"), server:
        pass


def test_a_server_that_says_nothing_is_given_up_and_ended() -> None:
    """Waiting for the announcement has an end, and leaves no process behind."""
    silent = [sys.executable, "-c", "import signal; signal.pause()"]
    server = ServerProcess(silent, start_timeout_s=0.2)
    with pytest.raises(TimeoutError, match="did not say"), server:
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_faults_are_counted_by_their_code() -> None:
    """With nobody listening every request fails, and the result says how."""
    with ServerProcess(ECHO) as server:
        target = server.target
    result = run_closed_loop(
        target, "/a/b", b"", num_in_flight=1, duration_s=0.05, check=bool
    )
    assert result.num_ok == 0
    assert set(result.faults) == {"UNAVAILABLE"}
    with pytest.raises(ValueError, match="UNAVAILABLE"):
        result.latency_s(0.5)


def test_the_highest_quantile_is_the_slowest_reply() -> None:
    """Quantiles stay inside the sample."""
    result = LoadResult(num_ok=3, latencies_s=[0.3, 0.1, 0.2])
    assert result.latency_s(1.0) == 0.3
    assert result.latency_s(0.0) == 0.1
