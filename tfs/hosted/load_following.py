"""Decides how many replicas a model's load asks for: reactive scaling.

Load is the mean number of the model's requests under way. Replicas are added at once,
since callers wait. They are removed one at a time, when fewer were enough for a whole
window. ("TensorFlow-Serving", section 3.1: load that nobody announced "is handled
automatically by a separate system that reactively auto-scales".)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tfs.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How replicas follow load. Immutable.

    Attributes:
        per_replica: How many requests under way one replica should have on average.
        window_s: For how long fewer must be enough before one is removed.

    """

    per_replica: float = 4.0
    window_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("per_replica", "window_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} must be positive: {getattr(self, name)}")


class LoadFollowing:
    """One model's recent load. Confined to one thread."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._needs: deque[tuple[float, int]] = deque()
        self._since_s: float | None = None

    def wanted(self, now_s: float, mean_in_flight: float, num_replicas: int) -> int:
        """Returns how many replicas there should be.

        Args:
            now_s: The time; does not go back.
            mean_in_flight: Requests under way since the last call, as a mean over time.
            num_replicas: How many there are.

        """
        if self._since_s is None:
            self._since_s = now_s
        need = max(1, math.ceil(mean_in_flight / self._options.per_replica))
        self._needs.append((now_s, need))
        start_s = now_s - self._options.window_s
        while self._needs and self._needs[0][0] < start_s:
            self._needs.popleft()
        if need > num_replicas:
            return need
        most = _largest(each for _, each in self._needs)
        if most < num_replicas and now_s - self._since_s >= self._options.window_s:
            self._since_s = now_s  # a new window begins
            return num_replicas - 1
        return num_replicas


def _largest(numbers: Iterable[int]) -> int:
    return max(numbers, default=1)
