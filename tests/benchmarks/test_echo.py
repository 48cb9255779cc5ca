"""The echo server, its process and the load, together."""

from __future__ import annotations

import os
import sys

import pytest

from tests.benchmarks.load import run_closed_loop
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
