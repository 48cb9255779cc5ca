"""Publish and subscribe: order, isolation, lifetime."""

from __future__ import annotations

import threading
from functools import partial

from tests.threads import run_together
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.testing.fake_clock import FakeClock
from tfs.testing.sequencer import Sequencer


def test_event_reaches_every_subscriber_in_order_with_its_time() -> None:
    """Delivery is synchronous, in subscription order, stamped once."""
    clock = FakeClock(wall_s=5.0)
    bus: EventBus[str] = EventBus(clock)
    seen: list[tuple[str, EventAndTime[str]]] = []
    bus.subscribe(lambda e: seen.append(("first", e)))
    bus.subscribe(lambda e: seen.append(("second", e)))
    bus.publish("a")
    clock.advance(2.0)
    bus.publish("b")
    a, b = EventAndTime("a", 5.0), EventAndTime("b", 7.0)
    assert seen == [("first", a), ("second", a), ("first", b), ("second", b)]


def test_closed_subscription_hears_nothing_more() -> None:
    """Closing is for good and may be repeated."""
    bus: EventBus[str] = EventBus()
    seen: list[str] = []
    subscription = bus.subscribe(lambda e: seen.append(e.event))
    bus.publish("a")
    subscription.close()
    subscription.close()
    bus.publish("b")
    assert seen == ["a"]


def test_subscriber_that_raises_does_not_stop_the_others() -> None:
    """One fault is logged; the event reaches everyone else."""
    bus: EventBus[str] = EventBus()
    seen: list[str] = []

    def broken(_: EventAndTime[str]) -> None:
        raise RuntimeError("bug")

    bus.subscribe(broken)
    bus.subscribe(lambda e: seen.append(e.event))
    bus.publish("a")
    assert seen == ["a"]


def test_events_of_many_threads_are_seen_in_one_order() -> None:
    """Whatever the order of publication, all subscribers see the same one."""
    bus: EventBus[int] = EventBus()
    first: list[int] = []
    second: list[int] = []
    bus.subscribe(lambda e: first.append(e.event))
    bus.subscribe(lambda e: second.append(e.event))

    def publish(base: int) -> None:
        for index in range(50):
            bus.publish(base + index)

    run_together(*(partial(publish, base) for base in (0, 100, 200)))
    assert first == second
    for base in (0, 100, 200):
        mine = [e for e in first if base <= e < base + 100]
        assert mine == sorted(mine)
        assert len(mine) == 50


def test_the_next_event_waits_until_all_have_heard_the_one_before() -> None:
    """A subscriber that is slow is not overtaken by an event of another thread."""
    bus: EventBus[str] = EventBus()
    sequencer = Sequencer()
    heard: list[str] = []

    def hear_slowly(published: EventAndTime[str]) -> None:
        if published.event == "first":
            sequencer.reach("hearing")
        heard.append(published.event)

    bus.subscribe(hear_slowly)
    first = threading.Thread(target=bus.publish, args=("first",))
    first.start()
    sequencer.wait_reached("hearing")
    second = threading.Thread(target=bus.publish, args=("second",))
    second.start()
    second.join(0.1)  # as long as it takes: it cannot end before the first has
    assert heard == []
    sequencer.open("hearing")
    for thread in (first, second):
        thread.join(30)
    assert heard == ["first", "second"]


def test_bus_without_subscribers_takes_events() -> None:
    """Publishing to nobody is no fault, and nobody hears of it later."""
    bus = EventBus[str]()
    bus.publish("a")
    heard: list[str] = []
    bus.subscribe(lambda published: heard.append(published.event))
    bus.publish("b")
    assert heard == ["b"]
