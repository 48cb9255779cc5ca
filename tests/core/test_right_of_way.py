from __future__ import annotations

import pytest

from tfs.core.right_of_way import (
    ALLOWANCE_S,
    LONGEST_PAUSE_S,
    LONGEST_WAIT_S,
    PAUSES,
    SLICE_S,
    WORK_S,
    RightOfWay,
)

PORTION_S = 0.0001


class Road:
    """A process whose server answers for a while; sleeping moves its time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.num_sleeps = 0
        self.free_at_s = 0.0
        self.has_requests = False
        self.serves_nobody = False
        self.way = RightOfWay(lambda: self.now_s, self._sleep)
        self.forget = self.way.note_answerer(
            lambda: self.now_s < self.free_at_s,
            lambda: self.has_requests,
            lambda: self.serves_nobody,
        )

    def _sleep(self, duration_s: float) -> None:
        self.num_sleeps += 1
        self.now_s += duration_s

    def seconds_lost(self) -> float:
        """Returns how long one call of `make_way` took."""
        begun_s = self.now_s
        self.way.make_way()
        return self.now_s - begun_s

    def work(self, work_s: float) -> float:
        """Returns how long so much work takes, done in small portions."""
        begun_s = self.now_s
        for _ in range(round(work_s / PORTION_S)):
            self.now_s += PORTION_S
            self.way.make_way()
        return self.now_s - begun_s


def test_nobody_waits_where_nothing_is_answered() -> None:
    """Before the first request a thousand versions may load, without any delay."""
    road = Road()
    for _ in range(100):
        road.way.make_way()
    assert road.num_sleeps == 0


def test_a_load_waits_until_the_answer_is_out() -> None:
    """Otherwise the load would take the lock whenever the request releases it."""
    road = Road()
    road.free_at_s = road.now_s + 0.001
    road.way.make_way()
    assert road.free_at_s <= road.now_s < road.free_at_s + 0.001


def test_a_server_that_is_never_idle_does_not_keep_versions_from_coming_up() -> None:
    """After a wait in vain the load works for longer than it has waited."""
    road = Road()
    road.free_at_s = float("inf")
    assert LONGEST_WAIT_S <= road.seconds_lost() < 2 * LONGEST_WAIT_S
    assert road.seconds_lost() == 0
    road.now_s += WORK_S / 2
    assert road.seconds_lost() == 0
    road.now_s += WORK_S
    assert road.seconds_lost() >= LONGEST_WAIT_S


def test_where_requests_come_the_lock_is_offered_between_them() -> None:
    """A loop that woke up for the next request shows that only once it has the lock."""
    road = Road()
    road.free_at_s = road.now_s + 0.001
    road.way.make_way()
    before = road.num_sleeps
    road.way.make_way()
    assert road.num_sleeps == before + 1
    road.now_s += 100.0
    road.way.make_way()
    assert road.num_sleeps == before + 1


def test_who_needs_no_lock_of_this_process_is_not_offered_it() -> None:
    """Otherwise a load in a worker would sleep forty times for nobody."""
    road = Road()
    road.forget()
    road.way.note_answerer(lambda: road.now_s < road.free_at_s, shares_lock=False)
    road.free_at_s = road.now_s + 0.001
    road.way.make_way()
    road.now_s = road.free_at_s
    before = road.num_sleeps
    road.way.make_way()
    assert road.num_sleeps == before


def test_a_server_that_ended_is_waited_for_no_more() -> None:
    """That it was answering when it was last asked is no reason to wait."""
    road = Road()
    road.free_at_s = float("inf")
    road.forget()
    assert road.seconds_lost() == 0


def test_beside_requests_a_load_works_for_a_small_share_of_the_time() -> None:
    """Every request that arrives while a load is working is late."""
    road = Road()
    road.has_requests = True
    road.way.make_way()
    assert road.work(0.01) == pytest.approx(0.01 * (1 + PAUSES))


def test_a_load_is_paced_while_requests_came_lately() -> None:
    """More will come; but after a minute without any, loads are not paced."""
    road = Road()
    road.has_requests = True
    road.way.make_way()
    road.has_requests = False
    assert road.work(0.01) > 0.05
    road.now_s += 100.0
    assert road.work(0.01) == pytest.approx(0.01)


def test_a_server_that_is_busy_without_requests_paces_nothing() -> None:
    """A thousand versions that load keep its loop busy, and should be available soon."""
    road = Road()
    road.free_at_s = road.now_s + 0.001
    road.work(1.0)
    assert not road.way.has_traffic()


def test_what_has_much_to_do_is_paced_for_a_bounded_time() -> None:
    """Half a second longer, and a quarter of its own time."""
    road = Road()
    road.has_requests = True
    assert road.work(10.0) <= (10.0 + ALLOWANCE_S) * 1.25 + LONGEST_PAUSE_S


def test_nothing_is_paced_while_nobody_is_served() -> None:
    """Between two versions of the only model, requests wait for the load."""
    road = Road()
    road.has_requests = True
    road.work(0.01)
    road.serves_nobody = True
    assert not road.way.has_traffic()
    assert road.work(0.01) == pytest.approx(0.01)


def test_a_long_portion_is_followed_by_one_pause() -> None:
    """The import of a module cannot be divided, and should not take twice as long."""
    road = Road()
    road.has_requests = True
    road.work(SLICE_S)
    road.now_s += 3.0
    assert road.seconds_lost() == pytest.approx(LONGEST_PAUSE_S)
