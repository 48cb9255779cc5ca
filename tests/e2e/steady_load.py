"""Requests at a steady rate, each of which has to be answered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Final, Self

import numpy as np

from tfs.client import Client
from tfs.client.retry_policy import RetryPolicy
from tfs.core.errors import ServingError
from tfs.testing.patience import PATIENCE_S

_NUM_CALLERS: Final = 8
_X: Final = np.ones((1, 2), np.float32)


class SteadyLoad:
    """Sends Predict to a model from start to end, without retries. Confined to a test.

    Attributes:
        failures: What went wrong.
        num_by_version: How many requests each version answered.
        latencies_s: How long each took.

    """

    def __init__(self, address: str, model: str, per_second: float) -> None:
        self._address, self._model = address, model
        self._period_s = _NUM_CALLERS / per_second
        self.failures: list[str] = []
        self.num_by_version: Counter[int] = Counter()
        self.latencies_s: list[float] = []
        # Guards the last two; notified at each answer.
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, daemon=True)
            for _ in range(_NUM_CALLERS)
        ]
        self._started_s = 0.0

    def __enter__(self) -> Self:
        self._started_s = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    @property
    def num_answered(self) -> int:
        """How many requests were answered."""
        return sum(self.num_by_version.values())

    @property
    def per_second(self) -> float:
        """The rate so far."""
        return self.num_answered / (time.monotonic() - self._started_s)

    def wait_for(self, number: int, version: int = 0) -> None:
        """Blocks until so many further requests were answered, by a version if it is not 0."""
        with self._changed:

            def count() -> int:
                if not version:
                    return self.num_answered
                return self.num_by_version[version]

            wanted = count() + number
            assert self._changed.wait_for(lambda: count() >= wanted, PATIENCE_S), (
                self.failures[:3]
            )

    def _call(self) -> None:
        retry = RetryPolicy(max_attempts=1)
        with Client(self._address, timeout_s=20.0, retry=retry) as client:
            while not self._stopping.wait(0.0):
                begun_s = time.monotonic()
                try:
                    version = client.predict(self._model, {"x": _X}).version
                except ServingError as error:
                    self.failures.append(str(error))
                    continue
                took_s = time.monotonic() - begun_s
                with self._changed:
                    self.num_by_version[version or 0] += 1
                    self.latencies_s.append(took_s)
                    self._changed.notify_all()
                self._stopping.wait(max(self._period_s - took_s, 0.0))
