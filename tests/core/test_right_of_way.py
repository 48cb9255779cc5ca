from __future__ import annotations

from tfs.core.right_of_way import LONGEST_WAIT_S, WORK_S, RightOfWay


class Road:
    """A process whose server answers for a while; sleeping moves its time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.num_sleeps = 0
        self.free_at_s = 0.0
        self.way = RightOfWay(lambda: self.now_s, self._sleep)
        self.forget = self.way.note_answerer(lambda: self.now_s < self.free_at_s)

    def _sleep(self, duration_s: float) -> None:
        self.num_sleeps += 1
        self.now_s += duration_s

    def seconds_lost(self) -> float:
        """Returns how long one call of `make_way` took."""
        begun_s = self.now_s
        self.way.make_way()
        return self.now_s - begun_s


def test_nobody_waits_where_nothing_is_answered() -> None:
    """A thousand versions are loaded before the first request, and must not be late."""
    road = Road()
    for _ in range(100):
        road.way.make_way()
    assert road.num_sleeps == 0


def test_a_load_waits_until_the_answer_is_out() -> None:
    """Each time the request gives Python's lock back, the load would take it."""
    road = Road()
    road.free_at_s = road.now_s + 0.001
    road.way.make_way()
    assert road.free_at_s <= road.now_s < road.free_at_s + 0.001


def test_a_server_that_is_never_idle_does_not_keep_versions_from_coming_up() -> None:
    """A wait in vain is followed by more work than it was long."""
    road = Road()
    road.free_at_s = float("inf")
    assert LONGEST_WAIT_S <= road.seconds_lost() < 2 * LONGEST_WAIT_S
    assert road.seconds_lost() == 0
    road.now_s += WORK_S / 2
    assert road.seconds_lost() == 0
    road.now_s += WORK_S
    assert road.seconds_lost() >= LONGEST_WAIT_S


def test_where_requests_come_the_lock_is_offered_between_them() -> None:
    """Who woke up for the next request is seen only when it has the lock."""
    road = Road()
    road.free_at_s = road.now_s + 0.001
    road.way.make_way()
    before = road.num_sleeps
    road.way.make_way()
    assert road.num_sleeps == before + 1
    road.now_s += 100.0
    road.way.make_way()
    assert road.num_sleeps == before + 1


def test_a_server_that_ended_is_waited_for_no_more() -> None:
    """Its last word on what it does is no reason to wait."""
    road = Road()
    road.free_at_s = float("inf")
    road.forget()
    assert road.seconds_lost() == 0
