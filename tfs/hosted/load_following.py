"""Decides how many replicas a model's load asks for: reactive scaling.

Load is the mean number of the model's requests under way, waiting ones included. It is
averaged over a stable window; when the last seconds alone ask for twice as many replicas
as there are, these decide, and nothing is removed for a while. Otherwise one replica at a
time is removed, when fewer were enough throughout the window. ("TensorFlow-Serving",
section 3.1: load that nobody announced "is handled automatically by a separate system that
reactively auto-scales". The two windows are Knative's.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument

_TOLERANCE: Final = 0.1  # a load so near what replicas are meant for changes nothing


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How replicas follow load. Immutable.

    Attributes:
        per_replica: How many requests under way one replica should have on average.
        window_s: The stable window.
        panic_s: The window of the last seconds.

    """

    per_replica: float = 4.0
    window_s: float = 60.0
    panic_s: float = 6.0

    def __post_init__(self) -> None:
        for name in ("per_replica", "window_s", "panic_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} must be positive: {getattr(self, name)}")


class LoadFollowing:
    """One model's recent load. Confined to one thread."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._loads: deque[tuple[float, float]] = deque()
        self._low_since_s: float | None = None
        self._panic_until_s = -math.inf

    def wanted(self, now_s: float, load: float | None, num_replicas: int) -> int:
        """Returns how many replicas there should be.

        Args:
            now_s: The time; does not go back.
            load: The mean number of requests under way since the last call; None if not
                all replicas said: then none is removed.
            num_replicas: How many there are.

        """
        options = self._options
        if load is not None:
            self._loads.append((now_s, load))
        while self._loads and self._loads[0][0] <= now_s - options.window_s:
            self._loads.popleft()
        just_now = [
            each for at_s, each in self._loads if at_s > now_s - options.panic_s
        ]
        if self._need(just_now) >= 2 * num_replicas:
            self._panic_until_s = now_s + options.window_s
        if now_s < self._panic_until_s:
            self._low_since_s = None
            return max(num_replicas, self._need(just_now))
        need = self._need(each for _, each in self._loads)
        if need > num_replicas:
            return need
        highest = max((each for _, each in self._loads), default=0.0)
        if load is None or self._need([highest]) >= num_replicas:
            self._low_since_s = None
        elif self._low_since_s is None:
            self._low_since_s = now_s
        elif now_s - self._low_since_s >= options.window_s:
            self._low_since_s = now_s
            return num_replicas - 1
        return num_replicas

    def _need(self, loads: Iterable[float]) -> int:
        found = list(loads)
        mean = sum(found) / len(found) if found else 0.0
        return max(1, math.ceil(mean / self._options.per_replica - _TOLERANCE))
