"""tfs.server.placing.late_measurer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from tfs.servables.measuring.profiler import Profiler
from tfs.server.placing.late_measurer import LateMeasurer

TIMEOUT_S = 30.0


class Postponed:
    """A profiler with measurements that were put off; it only says that it takes them."""

    def __init__(self, done: queue.Queue[str]) -> None:
        self.num_postponed = 0
        self.is_faulty = False
        self._done = done

    def measure_postponed(self) -> bool:
        if not self.num_postponed:
            self._done.put("nothing left")
            return False
        self.num_postponed -= 1
        if self.is_faulty:
            self._done.put("failed")
            raise RuntimeError("cannot be measured")
        self._done.put("measured")
        return True


class Measuring:
    """A measurer, what it did so far, and whether versions wait to be loaded."""

    def __init__(self) -> None:
        self.is_crowded = False
        self.done: queue.Queue[str] = queue.Queue()
        self.profiler = Postponed(self.done)
        self.measurer = LateMeasurer(cast(Profiler, self.profiler), self._says_crowded)

    def next(self) -> str:
        return self.done.get(timeout=TIMEOUT_S)

    def _says_crowded(self) -> bool:
        if self.is_crowded:
            self.done.put("crowded")
        return self.is_crowded

    def move(self, name: str) -> None:
        self.measurer.move(lambda: self.done.put(name))


@pytest.fixture
def measuring() -> Iterator[Measuring]:
    made = Measuring()
    yield made
    made.measurer.close()


def test_everything_that_was_put_off_is_measured(measuring: Measuring) -> None:
    """One call to wake it is enough for all that waits."""
    measuring.profiler.num_postponed = 2
    measuring.measurer.wake()
    assert [measuring.next() for _ in range(3)] == [
        "measured",
        "measured",
        "nothing left",
    ]


def test_nothing_is_measured_while_versions_wait_to_be_loaded(
    measuring: Measuring,
) -> None:
    """A version that is to serve comes before a measurement, and a move does not wait."""
    measuring.is_crowded = True
    measuring.profiler.num_postponed = 1
    measuring.move("moved")
    assert [measuring.next(), measuring.next()] == ["moved", "crowded"]
    measuring.is_crowded = False
    measuring.measurer.wake()
    assert measuring.next() == "measured"


def test_a_version_is_moved_before_others_are_measured(measuring: Measuring) -> None:
    """Who is too slow for the loop delays requests until it has left."""
    release = threading.Event()
    measuring.measurer.move(lambda: release.wait(TIMEOUT_S))
    measuring.profiler.num_postponed = 1
    measuring.move("moved")
    release.set()
    assert [measuring.next(), measuring.next()] == ["moved", "measured"]


def test_a_measurement_that_fails_ends_nothing(
    measuring: Measuring, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the next one is taken when there is one."""
    measuring.profiler.is_faulty = True
    measuring.profiler.num_postponed = 1
    measuring.measurer.wake()
    assert measuring.next() == "failed"
    measuring.profiler.is_faulty = False
    measuring.move("moved")
    assert measuring.next() == "moved"
    assert "event=late_measuring_failed" in caplog.text


def test_there_is_no_thread_without_work(measuring: Measuring) -> None:
    """A server that measures everything at once takes no thread for it."""
    measuring.measurer.wake()
    assert measuring.measurer._thread is None


def test_nothing_begins_after_the_end(measuring: Measuring) -> None:
    """Interpreters are ended next, so nobody may load anything into them."""
    measuring.measurer.close()
    measuring.measurer.close()
    measuring.move("moved")
    measuring.profiler.num_postponed = 1
    measuring.measurer.wake()
    assert measuring.measurer._thread is None
    assert measuring.done.empty()
