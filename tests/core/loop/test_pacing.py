"""Background work makes way for requests, and for a bounded time."""

from __future__ import annotations

import pytest

from tfs.core.loop.pacing import (
    ALLOWANCE_S,
    LONGEST_PAUSE_S,
    LONGEST_WAIT_S,
    PAUSES,
    SLICE_S,
    TRAFFIC_S,
    Pacing,
    RecentTraffic,
    SpinBackoff,
    Traffic,
)

PORTION_S = 0.0001


class Road:
    """A process whose server has traffic; sleeping moves its time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.num_sleeps = 0
        self.free_at_s = 0.0
        self.traffic = Traffic.NONE
        self.pacing = Pacing(lambda: self.now_s, self._sleep)
        self.forget = self.pacing.follow(self._look)
        self.pacing.yield_to_requests()

    def _look(self) -> Traffic:
        return Traffic.NOW if self.now_s < self.free_at_s else self.traffic

    def _sleep(self, duration_s: float) -> None:
        self.num_sleeps += 1
        self.now_s += duration_s

    def work(self, work_s: float) -> float:
        """Returns how long so much work takes, done in small portions."""
        begun_s = self.now_s
        for _ in range(round(work_s / PORTION_S)):
            self.now_s += PORTION_S
            self.pacing.yield_to_requests()
        return self.now_s - begun_s


def test_nobody_waits_where_nothing_is_answered() -> None:
    """Before the first request a thousand versions may load, without any delay."""
    road = Road()
    road.work(1.0)
    assert road.num_sleeps == 0


def test_work_waits_until_the_answer_is_out() -> None:
    """Otherwise it would take the lock whenever the request releases it."""
    road = Road()
    road.now_s += 2 * SLICE_S
    free_at_s = road.free_at_s = road.now_s + PAUSES * 2 * SLICE_S + 0.001
    road.pacing.yield_to_requests()
    assert free_at_s <= road.now_s < free_at_s + 0.001


def test_a_server_that_is_never_idle_does_not_keep_versions_from_coming_up() -> None:
    """One call waits for a bounded time, and all of them out of one allowance."""
    road = Road()
    road.free_at_s = float("inf")
    begun_s = road.now_s
    road.now_s += 2 * SLICE_S
    road.pacing.yield_to_requests()
    waited_s = road.now_s - begun_s
    assert waited_s <= 2 * SLICE_S * (1 + PAUSES) + LONGEST_WAIT_S + 0.001
    assert road.work(10.0) <= (10.0 + ALLOWANCE_S) * 1.25 + LONGEST_PAUSE_S


def test_a_server_that_ended_is_waited_for_no_more() -> None:
    """That it was answering when it was last asked is no reason to wait."""
    road = Road()
    road.free_at_s = float("inf")
    road.forget()
    assert road.work(0.01) == pytest.approx(0.01)


def test_beside_requests_a_load_works_for_a_small_share_of_the_time() -> None:
    """Every request that arrives while a load is working is late."""
    road = Road()
    road.traffic = Traffic.LATELY
    assert road.work(0.01) == pytest.approx(0.01 * (1 + PAUSES))


def test_what_has_much_to_do_is_paced_for_a_bounded_time() -> None:
    """Half a second longer, and a quarter of its own time."""
    road = Road()
    road.traffic = Traffic.LATELY
    assert road.work(10.0) <= (10.0 + ALLOWANCE_S) * 1.25 + LONGEST_PAUSE_S


def test_a_long_portion_is_followed_by_one_pause() -> None:
    """The import of a module cannot be divided, and should not take twice as long."""
    road = Road()
    road.traffic = Traffic.LATELY
    road.now_s += 3.0
    begun_s = road.now_s
    road.pacing.yield_to_requests()
    assert road.now_s - begun_s == pytest.approx(LONGEST_PAUSE_S)


def test_a_load_that_a_request_waits_for_makes_way_for_nobody() -> None:
    """It would only keep that request waiting; what loads nothing makes way for both."""
    road = Road()
    road.traffic = Traffic.AWAITED
    assert road.work(1.0) == pytest.approx(1.0)
    assert road.num_sleeps == 0
    road.pacing.yield_to_loads()
    assert road.num_sleeps == 1


class Server:
    """A server whose state a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.has_requests = self.is_busy = self.serves_nobody = False
        self.awaits_load = False
        self.look = RecentTraffic(
            lambda: self.has_requests,
            lambda: self.is_busy,
            lambda: self.serves_nobody,
            lambda: self.awaits_load,
            lambda: self.now_s,
        ).look


def test_there_is_traffic_for_a_minute_after_a_request() -> None:
    """More will come; but after a minute without any, nothing is paced."""
    server = Server()
    assert server.look() is Traffic.NONE
    server.has_requests = True
    assert server.look() is Traffic.NOW
    server.has_requests = False
    assert server.look() is Traffic.LATELY
    server.now_s += TRAFFIC_S
    assert server.look() is Traffic.NONE


def test_a_server_that_is_busy_without_requests_has_no_traffic() -> None:
    """A thousand versions that load keep its loop busy, and should be available soon."""
    server = Server()
    server.is_busy = True
    assert server.look() is Traffic.NONE
    server.has_requests = True
    server.look()
    server.has_requests = False
    assert server.look() is Traffic.NOW


def test_there_is_no_traffic_while_nobody_is_served() -> None:
    """Between two versions of the only model, requests wait for the load."""
    server = Server()
    server.has_requests = server.serves_nobody = True
    assert server.look() is Traffic.NONE


def test_a_request_that_waits_for_a_load_comes_before_all_others() -> None:
    """Whatever else there is: it has been in the server for longest."""
    server = Server()
    server.has_requests = server.awaits_load = True
    assert server.look() is Traffic.AWAITED
    server.awaits_load = False
    assert server.look() is Traffic.NOW


def num_looks(backoff: SpinBackoff, num_times: int, *, found: bool) -> int:
    num = 0
    for _ in range(num_times):
        if backoff.may_look():
            num += 1
            backoff.note(found=found)
    return num


def test_what_is_always_found_is_always_looked_for() -> None:
    """Nothing is skipped while looks find what they look for."""
    assert num_looks(SpinBackoff(), 100, found=True) == 100


def test_what_is_never_found_is_hardly_looked_for() -> None:
    """Looks in vain become rare, but never end."""
    backoff = SpinBackoff()
    assert num_looks(backoff, 10_000, found=False) < 20
    assert num_looks(backoff, 1025, found=False) == 1


def test_a_look_that_finds_restores_patience() -> None:
    """After a success a single failure skips few looks again."""
    backoff = SpinBackoff()
    num_looks(backoff, 3000, found=False)
    while not backoff.may_look():
        pass
    backoff.note(found=True)
    assert backoff.may_look()
    backoff.note(found=False)
    assert num_looks(backoff, 17, found=True) == 1
