"""Whose batch is next: deficit round robin over the queues that have one.

Queues with a batch stand in a ring; a visit runs one batch and charges what it took; who
has used up a round's share waits for the next round, and rounds pass at once when nobody
is left. A queue that ran goes back into the ring at the *next* choice, behind those that
became ready meanwhile: a light queue waits for at most the batch that is running.

A queue in which only tasks of low priority wait stands aside until the ring is empty, or
until it has waited for its ageing time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque

from batching.shared_queue import AnyQueue


class TurnOrder:
    """Where each queue stands that has a batch. Confined to the scheduler's thread.

    A queue is in one place at most: ``in_ring`` says that it is in one, ``is_aside`` in
    which of two. The scheduler reads and writes the attributes itself where a call for
    each batch would show.

    Attributes:
        ring: Have a turn, the next one first.
        aside: Only tasks of low priority wait in these; who stood aside first is first.
        last: Ran just now, and is in the ring no more; ``in_ring`` yet.
        later: Have used up their share, by the round that brings the next.
        round_index: Number of the round that goes on.

    """

    __slots__ = ("_sequence", "aside", "last", "later", "ring", "round_index")

    def __init__(self) -> None:
        self.ring: deque[AnyQueue] = deque()
        self.aside: deque[AnyQueue] = deque()
        self.last: AnyQueue | None = None
        self.later: list[tuple[int, int, AnyQueue]] = []
        self.round_index = 0
        self._sequence = itertools.count()

    def held(self) -> list[AnyQueue]:
        """Returns the queues that wait for the device."""
        queues = [*self.ring, *self.aside]
        if self.later:
            queues += [queue for _, _, queue in self.later]
        if self.last is not None:
            queues.append(self.last)
        return queues

    def line_up(self, queue: AnyQueue) -> None:
        """Puts a queue behind the others of its kind."""
        queue.in_ring = True
        if queue.waiting.is_low and not queue.retries:
            queue.is_aside = True
            self.aside.append(queue)
        else:
            self.ring.append(queue)

    def promote(self, queue: AnyQueue) -> None:
        """Puts a queue that stands aside into the ring: other than low tasks came."""
        self.aside.remove(queue)
        queue.is_aside = False
        self.ring.append(queue)

    def recall(self, now_s: float) -> None:
        """Returns those that stood aside for long enough to the head of the ring."""
        while self.aside and self.aside[0].waiting.aged_s <= now_s:
            queue = self.aside.popleft()
            queue.is_aside = False
            self.ring.appendleft(queue)

    def admit_aside(self) -> bool:
        """Lets the first that stands aside into the empty ring; False: there is none."""
        if not self.aside:
            return False
        queue = self.aside.popleft()
        queue.is_aside = False
        self.ring.append(queue)
        return True

    def pop_oldest(self, full_batch_boost_s: float) -> AnyQueue:
        """Takes the queue out of the ring whose batch is oldest.

        Args:
            full_batch_boost_s: By how much older a full batch counts.

        """

        def score(queue: AnyQueue) -> float:
            if queue.retries:
                return -math.inf
            full = min(
                1.0, queue.waiting.num_rows / queue.waiting.options.max_batch_rows
            )
            return queue.waiting.oldest_s - full_batch_boost_s * full

        queue = min(self.ring, key=score)
        self.ring.remove(queue)
        return queue

    def defer(self, queue: AnyQueue) -> None:
        """Makes a queue that has used up its share wait for a later round."""
        next_index = self.round_index + self.num_rounds_owed(queue)
        heapq.heappush(self.later, (next_index, next(self._sequence), queue))

    def num_rounds_owed(self, queue: AnyQueue) -> int:
        """Returns how many rounds must pass until a queue has a share again."""
        return math.floor(-queue.credit_s / queue.quantum_s) + 1

    def begin_next_round(self) -> list[AnyQueue]:
        """Begins the round that brings any queue a share; returns those, now nowhere."""
        later = self.later
        self.round_index = later[0][0]
        queues = []
        while later and later[0][0] <= self.round_index:
            queue = heapq.heappop(later)[2]
            queue.in_ring = False
            queues.append(queue)
        return queues
