"""Requests of different lengths for an encoder: how many are answered in time, by who chooses."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

import torch
from torch import nn

from batching.length_window import LengthWindow
from tests.batching.fakes import FakeTask

MAX_ROWS = 32
BUCKETS = (16, 32, 64, 128, 256, 512)


class Waiting(FakeTask):
    """A request that waits: one row of a length."""

    def __init__(self, length: int, arrived_s: float, deadline_s: float) -> None:
        super().__init__(deadline_s=deadline_s)
        self.arrived_s = arrived_s
        self.length = length


def length_of(task: Waiting) -> tuple[int, ...]:
    return (task.length,)


class EncoderTimes:
    """How long batches take, measured at some places, and between them by the tokens."""

    def __init__(
        self, shape: tuple[int, int, int], lengths: Sequence[int], most_tokens: int
    ) -> None:
        num_layers, width, num_heads = shape
        torch.manual_seed(7)
        layers = (
            nn.TransformerEncoderLayer(width, num_heads, 4 * width, batch_first=True)
            for _ in range(num_layers)
        )
        encoder = nn.Sequential(*layers).eval()
        self._table: dict[int, dict[int, float]] = {}
        with torch.inference_mode():
            for length in lengths:
                for rows in (1, 2, 4, 8, 16):
                    if rows > 1 and rows * length > most_tokens:
                        break
                    x = torch.rand(rows, length, width)
                    taken = []
                    for _ in range(2):
                        begun_s = time.thread_time()
                        encoder(x)
                        taken.append(time.thread_time() - begun_s)
                    self._table.setdefault(length, {})[rows] = min(taken)

    def took_s(self, rows: int, length: int) -> float:
        """Returns the time of a batch."""
        longer = min((each for each in self._table if each >= length), default=None)
        shorter = max((each for each in self._table if each <= length), default=longer)
        longer = shorter if longer is None else longer
        assert longer is not None
        assert shorter is not None
        if longer == shorter:
            return self._of_rows(longer, rows)
        share = (length - shorter) / (longer - shorter)
        below, above = self._of_rows(shorter, rows), self._of_rows(longer, rows)
        return below + share * (above - below)

    def _of_rows(self, length: int, rows: int) -> float:
        known = self._table[length]
        if rows in known:
            return known[rows]
        larger = min((each for each in known if each >= rows), default=None)
        if larger is None:  # more tokens go at the same rate
            most = max(known)
            return known[most] * rows / most
        smaller = max(each for each in known if each <= rows)
        share = (rows - smaller) / (larger - smaller)
        return known[smaller] + share * (known[larger] - known[smaller])

    def goodput(
        self,
        by: LengthWindow | Sequence[int] | None,
        lengths: Sequence[int],
        load: float,
    ) -> float:
        """Returns how many requests a second are answered in time.

        Args:
            by: Chooses batches; or the sizes of buckets, each a queue of its own, of which
                the one goes whose first request came first; None takes requests as they
                came.
            lengths: Of the requests.
            load: As a share of what batches of equal lengths take.

        """
        best_s = statistics.fmean(
            min(self.took_s(rows, length) / rows for rows in (1, 2, 4, 8, 16))
            for length in lengths
        )
        bound_s = 4 * self.took_s(1, round(statistics.median(lengths)))
        dice = random.Random(9)
        gaps = (dice.expovariate(load / best_s) for _ in lengths)
        coming = deque(
            Waiting(length, at_s, at_s + bound_s)
            for length, at_s in zip(lengths, itertools.accumulate(gaps), strict=True)
        )
        waiting: list[Waiting] = []
        now_s, num_in_time = 0.0, 0
        while coming or waiting:
            if not waiting:
                now_s = max(now_s, coming[0].arrived_s)
            while coming and coming[0].arrived_s <= now_s:
                waiting.append(coming.popleft())
            # As in every queue: who is late already is not computed.
            waiting = [task for task in waiting if (task.deadline_s or 0) > now_s]
            if not waiting:
                continue
            batch = self._batch(by, waiting, now_s)
            longest = max(task.length for task in batch)
            if by is not None and not isinstance(by, LengthWindow):
                longest = next(size for size in by if size >= longest)
            took_s = self.took_s(len(batch), longest)
            now_s += took_s
            if isinstance(by, LengthWindow):
                by.observe(batch, took_s)
            num_in_time += sum((task.deadline_s or 0) >= now_s for task in batch)
            gone = set(map(id, batch))
            waiting = [task for task in waiting if id(task) not in gone]
        return num_in_time / now_s

    def _batch(
        self,
        by: LengthWindow | Sequence[int] | None,
        waiting: list[Waiting],
        now_s: float,
    ) -> list[Waiting]:
        if by is None:
            return waiting[:MAX_ROWS]
        if isinstance(by, LengthWindow):
            return list(by.choose(waiting, now_s)[0])
        bucket = bisect_left(by, waiting[0].length)
        alike = [task for task in waiting if bisect_left(by, task.length) == bucket]
        return alike[:MAX_ROWS]
