"""Synchronous publish and subscribe, with the event's time attached.

Events reach the subscribers on the publisher's thread, one subscriber after the other
and one event after the other. So a subscriber that has seen AVAILABLE can request the
version.
(TensorFlow Serving: util/event_bus.h.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfs.core.clock import Clock, MonotonicClock

log = logging.getLogger(__name__)

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class EventAndTime(Generic[E]):
    """An event and when it was published, in seconds since the epoch."""

    event: E
    time_s: float


class Subscription(Generic[E]):
    """Ends a subscription when closed; may outlive the bus. Thread-safe."""

    def __init__(
        self, bus: EventBus[E], callback: Callable[[EventAndTime[E]], None]
    ) -> None:
        self._bus = bus
        self.callback = callback

    def close(self) -> None:
        """Stops delivery; waits for a delivery in progress. Idempotent.

        Must not be called from within a callback.
        """
        self._bus.unsubscribe(self)


class EventBus(Generic[E]):
    """Delivers each event to all subscribers before ``publish`` returns.

    Thread-safe. Callbacks must be quick and must neither publish nor subscribe, because
    delivery holds the bus's lock, which orders the events (its rank is in
    ARCHITECTURE.md). They should not raise; if one does, that is logged and the others
    are still called.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._delivery = threading.Lock()  # guards the list and orders events
        self._subscriptions: list[Subscription[E]] = []

    def subscribe(self, callback: Callable[[EventAndTime[E]], None]) -> Subscription[E]:
        """Calls ``callback`` for every later event until the result is closed."""
        subscription = Subscription(self, callback)
        with self._delivery:
            self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription[E]) -> None:
        """Stops delivery to ``subscription``; idempotent."""
        with self._delivery:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    def publish(self, event: E) -> None:
        """Delivers ``event`` now, on this thread."""
        with self._delivery:
            stamped = EventAndTime(event, self._clock.wall_s())
            for subscription in self._subscriptions:
                try:
                    subscription.callback(stamped)
                except Exception:
                    log.exception("event=subscriber_failed published=%s", event)
