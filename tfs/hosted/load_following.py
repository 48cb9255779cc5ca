"""Decides how many replicas a model's load asks for: reactive scaling.

Load is the mean number of the model's requests under way, waiting ones included. It is
averaged over a stable window; when the last seconds alone ask for twice as many replicas
as there are, these decide, and nothing is removed for a while. Otherwise one replica at a
time is removed, when fewer were enough throughout the window. The last one goes from a
model that may have none when there were no requests at all, and a request brings it back.
("TensorFlow-Serving", section 3.1: load that nobody announced "is handled automatically by
a separate system that reactively auto-scales". The two windows are Knative's.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from tfs.hosted.fleet import Fleet
from tfs.hosted.reports import JobReport

PER_REPLICA: Final = 4.0  # requests under way that one should have on average
WINDOW_S: Final = 60.0
_PANIC_S: Final = 6.0
_SILENT_S: Final = 3.0  # that a server hangs is known later
_TOLERANCE: Final = 0.1  # a load so near what replicas are meant for changes nothing


class LoadFollowing:
    """One model's recent load over a window of so many seconds. Confined to one thread."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._loads: deque[tuple[float, float]] = deque()
        self._low_since_s: float | None = None
        self._panic_until_s = -math.inf

    def wanted(self, now_s: float, load: float | None, num_replicas: int) -> int:
        """Returns how many replicas there should be, where there are so many.

        ``load`` is the mean number of requests under way since the last call; None if not
        all replicas said: then none is removed.
        """
        if load is not None:
            self._loads.append((now_s, load))
        while self._loads and self._loads[0][0] <= now_s - self._window_s:
            self._loads.popleft()
        just_now = [each for at_s, each in self._loads if at_s > now_s - _PANIC_S]
        if self._need(just_now) >= 2 * num_replicas:
            self._panic_until_s = now_s + self._window_s
        if now_s < self._panic_until_s:
            self._low_since_s = None
            return max(num_replicas, self._need(just_now))
        need = self._need(each for _, each in self._loads)
        if need > num_replicas:
            return need
        highest = max((each for _, each in self._loads), default=0.0)
        if load is None or self._need([highest], _TOLERANCE) >= num_replicas:
            self._low_since_s = None
        elif self._low_since_s is None:
            self._low_since_s = now_s
        elif now_s - self._low_since_s >= self._window_s:
            self._low_since_s = now_s
            return num_replicas - 1
        return num_replicas

    def _need(self, loads: Iterable[float], more: float = -_TOLERANCE) -> int:
        found = list(loads)
        mean = sum(found) / len(found) if found else 0.0
        return max(1, math.ceil(mean / PER_REPLICA + more)) if mean else 0


class Scaling:
    """The recent load of each model, by what servers report. Confined to one thread."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._following: dict[str, LoadFollowing] = {}
        # The last two reports of each server that answers; it may answer late.
        self._pairs: dict[str, tuple[JobReport, JobReport]] = {}

    def wanted(
        self, now_s: float, fleet: Fleet, reports: Mapping[str, JobReport]
    ) -> dict[str, int]:
        """Returns how many replicas models should have, for those where that changes."""
        pairs, self._pairs = self._pairs, {}
        for address, report in reports.items():
            before, last = pairs.get(address, (report, report))
            self._pairs[address] = (before if last is report else last), report
        changed, known, self._following = {}, self._following, {}
        for name, model in fleet.models.items():
            # A request wakes a model that has no replica.
            if model.min_replicas == model.max_replicas or not model.num_replicas:
                continue
            following = known.get(name) or LoadFollowing(self._window_s)
            self._following[name] = following
            load = self._load(name, fleet, now_s)
            number = following.wanted(now_s, load, model.num_replicas)
            number = min(max(number, model.min_replicas), model.max_replicas)
            if number != model.num_replicas:
                changed[name] = number
        return changed

    def _load(self, name: str, fleet: Fleet, now_s: float) -> float | None:
        """Returns the mean number of a model's requests under way, of late.

        That is the time that they took between two reports, divided by the time between;
        None if a server that should have the model says nothing, or none answers for it.
        """
        load: float | None = None
        for job in fleet.models[name].placed:
            for address in fleet.jobs[job].addresses if job in fleet.jobs else ():
                pair = self._pairs.get(address)
                if pair is None or pair[0].started_s != pair[1].started_s:
                    return None
                first, last = pair
                took_s = last.request_s.get(name, 0.0) - first.request_s.get(name, 0.0)
                since_s = last.at_s - first.at_s
                is_silent = now_s - last.at_s > max(_SILENT_S, 2 * since_s)
                if took_s < 0 or since_s <= 0 or is_silent:
                    return None
                if name in last.models and last.models[name].primary is not None:
                    load = (load or 0.0) + took_s / since_s
        return load
