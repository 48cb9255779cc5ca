"""Which queue's batch is next: deficit round robin over queues that have one.

Queues with a batch stand in a ring. Each visit runs one batch and charges the time it
took. A queue that has used up its share waits for the next round, which begins at once
when no queue is left in the ring. A queue that has run goes back into the ring only at
the *next* choice, behind those that became ready meanwhile. So a light queue waits at
most for the batch that is running.

A queue in which only tasks of low priority wait stands aside until the ring is empty,
or until its ageing time has passed.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from typing import Any, Final, TypeAlias

from tfs.core.batch.batch_queue import BatchQueue

AnyQueue: TypeAlias = BatchQueue[Any]

# A queue pays for no more than so many times what its long batches take, but always for
# so many seconds.
_LARGEST_JUMP: Final = 3.0
_ALWAYS_PAID_S: Final = 1.0


class TurnOrder:
    """Holds each queue that has a batch in its place. Confined to the scheduler's thread.

    A queue is in one place at most: ``in_ring`` says that it is in any, and
    ``is_aside`` tells two of them apart. The scheduler accesses the attributes directly
    where the cost of a call per batch would show.

    Attributes:
        ring: Queues that have a turn, the next one first.
        aside: Queues in which only tasks of low priority wait, in the order in which
            they came there.
        last: The queue that has just run. It is not in the ring, though ``in_ring`` is
            still set.
        later: Queues that have used up their share, by the round that brings them
            another.
        round_index: Number of the current round.

    """

    def __init__(self) -> None:
        self.ring: deque[AnyQueue] = deque()
        self.aside: deque[AnyQueue] = deque()
        self.last: AnyQueue | None = None
        self.later: list[tuple[int, int, AnyQueue]] = []
        self.round_index = 0
        self._next_aged_s = math.inf  # no queue aside is to be recalled earlier
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
        if queue.is_low and not queue.retries:
            queue.is_aside = True
            self.aside.append(queue)
            self._next_aged_s = min(self._next_aged_s, queue.aged_s)
        else:
            self.ring.append(queue)

    def promote(self, queue: AnyQueue) -> None:
        """Puts a queue that stood aside into the ring, for tasks of high priority."""
        self.aside.remove(queue)
        queue.is_aside = False
        self.ring.append(queue)

    def recall(self, now_s: float) -> None:
        """Moves queues that stood aside for long enough to the head of the ring.

        Each queue has its own ageing time, so any of them may be the first.
        """
        if now_s < self._next_aged_s:
            return
        aged = [queue for queue in self.aside if queue.aged_s <= now_s]
        aged.sort(key=lambda queue: queue.aged_s)
        for queue in reversed(aged):
            self.aside.remove(queue)
            queue.is_aside = False
            self.ring.appendleft(queue)
        self._next_aged_s = min(
            (queue.aged_s for queue in self.aside), default=math.inf
        )

    def admit_aside(self) -> bool:
        """Lets the first queue aside into the empty ring; False if there is none."""
        if not self.aside:
            return False
        queue = self.aside.popleft()
        queue.is_aside = False
        self.ring.append(queue)
        return True

    def has_share(self, queue: AnyQueue) -> bool:
        """Adds the shares of the rounds that passed; returns whether any share is left.

        At most one round's share is saved up.
        """
        rounds = self.round_index - queue.round_index
        queue.round_index = self.round_index
        share_s = queue.quantum_s
        queue.credit_s = min(queue.credit_s + rounds * share_s, share_s)
        return queue.credit_s > 0

    def defer(self, queue: AnyQueue) -> None:
        """Makes a queue that has used up its share wait for a later round."""
        next_index = self.round_index + self.num_rounds_owed(queue)
        heapq.heappush(self.later, (next_index, next(self._sequence), queue))

    def num_rounds_owed(self, queue: AnyQueue) -> int:
        """Returns how many rounds must pass until a queue has a share again."""
        return math.floor(-queue.credit_s / queue.quantum_s) + 1

    def begin_next_round(self) -> list[AnyQueue]:
        """Begins the next round; returns the queues with a new share, in no place."""
        later = self.later
        self.round_index = later[0][0]
        queues = []
        while later and later[0][0] <= self.round_index:
            queue = heapq.heappop(later)[2]
            queue.in_ring = False
            queues.append(queue)
        return queues


def charge(queue: AnyQueue, device_s: float) -> None:
    """Takes the time of a long batch off a queue's share.

    A batch that took much longer than the others was interrupted, or was the first and
    compiled something. Charged in full, one stall of half a minute would keep the queue
    from a busy device for as long again.
    """
    most_s = max(_LARGEST_JUMP * queue.long_batch_s, _ALWAYS_PAID_S)
    device_s = min(device_s, most_s)
    queue.long_batch_s += 0.5 * (device_s - queue.long_batch_s)
    queue.credit_s -= device_s
