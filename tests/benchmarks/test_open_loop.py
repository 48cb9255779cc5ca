"""The open loop: fixed times, four connections, and every answer accounted for."""

from __future__ import annotations

import sys

import grpc

from tests.benchmarks.open_loop import Exchange, OpenLoopResult, open_loop
from tests.benchmarks.server_process import ServerProcess


def exchange(body_index: int, reply: bytes | None, fault: str | None) -> Exchange:
    """Returns an exchange of 20 ms that left 5 ms late."""
    return Exchange(body_index, 10.0, 10.005, 10.025, reply, fault)


def test_failures_are_counted_by_what_they_were() -> None:
    """A status, a wrong reply and a right one to another request are told apart."""
    result = OpenLoopResult(
        [
            exchange(0, b"a", None),
            exchange(0, b"a", None),
            exchange(1, b"a", None),
            exchange(1, None, "UNAVAILABLE: full"),
        ]
    )
    asked: list[tuple[int, bytes]] = []

    def is_right(body_index: int, reply: bytes) -> bool:
        asked.append((body_index, reply))
        return body_index == 0

    assert result.faults(is_right) == {"wrong reply": 1, "UNAVAILABLE: full": 1}
    assert asked == [(0, b"a"), (1, b"a")]


def test_the_generators_lateness_is_not_the_servers() -> None:
    """An answer's time counts from when the request left."""
    one = exchange(0, b"a", None)
    assert round(one.latency_s, 6) == 0.020
    assert round(one.lateness_s, 6) == 0.005


def test_requests_leave_at_their_times_from_another_process() -> None:
    """Each body in turn, answered, the n-th due n periods after the first."""
    command = [sys.executable, "-m", "tests.benchmarks.echo_server"]
    with (
        ServerProcess(command) as server,
        open_loop(server.target, "/a/b", [b"x", b"y"], rate_per_s=400.0) as load,
        grpc.insecure_channel(server.target) as channel,
    ):
        call = channel.unary_unary("/a/b", bytes, bytes)
        for _ in range(50):
            assert call(b"z", timeout=10) == b"z"
    faults = load.result.faults(lambda index, reply: reply == [b"x", b"y"][index])
    assert not faults
    due_s = sorted(each.due_s for each in load.result.exchanges)
    assert due_s
    for index, each_s in enumerate(due_s):
        assert abs(each_s - due_s[0] - index / 400.0) < 1e-4
