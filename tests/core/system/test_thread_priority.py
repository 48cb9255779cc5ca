"""Which threads get a processor first."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tfs.core.system import thread_priority
from tfs.core.system.thread_priority import (
    LONG_SLICE_S,
    LOWEST,
    SHORT_SLICE_S,
    answer_soon,
    give_way,
)

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _find_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(thread_priority, "LOWEST", LOWEST)  # other tests keep theirs
    thread_priority._find_set_attributes.cache_clear()
    yield
    thread_priority._find_set_attributes.cache_clear()


def on_a_thread(fn: Callable[[], T]) -> T:
    """Returns what ``fn`` returns on a thread of its own: priorities are for good."""
    returned: list[T] = []
    thread = threading.Thread(target=lambda: returned.append(fn()))
    thread.start()
    thread.join()
    return returned[0]


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def slice_ns() -> int | None:
    """Returns the calling thread's slice; None where the system does not tell."""
    try:
        text = Path("/proc/thread-self/sched").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("se.slice"):
            return int(line.rpartition(":")[2])
    return None


def takes_slices() -> bool:
    """Returns whether the system does what it is asked; older ones ignore it."""
    release = tuple(map(int, platform.release().split(".")[:2]))
    return release >= (6, 12)


def test_a_thread_that_serves_gets_a_short_slice_and_keeps_its_priority() -> None:
    """It is let in sooner and takes no more; a machine that cannot do it changes nothing."""

    def serve() -> tuple[int, int | None, int, bool, int | None]:
        before = priority(), slice_ns()
        agreed = answer_soon()
        return *before, priority(), agreed, slice_ns()

    before, slice_before_ns, after, agreed, slice_after_ns = on_a_thread(serve)
    assert after == before
    if agreed and slice_before_ns is not None and takes_slices():
        assert slice_after_ns == round(SHORT_SLICE_S * 1e9)


def test_a_policy_that_the_operator_chose_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real-time and batch policies are somebody's decision; ours would undo it."""
    monkeypatch.setattr(os, "sched_getscheduler", lambda _pid: os.SCHED_BATCH)
    assert not on_a_thread(answer_soon)


def test_a_machine_whose_call_is_not_known_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another machine's number may be any call at all."""
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    assert not on_a_thread(answer_soon)


def test_giving_way_is_the_threads_own() -> None:
    """What loads gives way to what serves, in the same process too."""

    def load() -> int:
        give_way()
        return priority()

    before = priority()
    assert on_a_thread(load) == LOWEST
    assert priority() == before


def test_giving_way_takes_a_short_slice_back() -> None:
    """Threads inherit the short slice of what serves, and would be let in like it."""

    def load() -> tuple[bool, int | None]:
        agreed = answer_soon()
        give_way()
        return agreed, slice_ns()

    agreed, slice_after_ns = on_a_thread(load)
    if agreed and slice_after_ns is not None and takes_slices():
        assert slice_after_ns == round(LONG_SLICE_S * 1e9)
