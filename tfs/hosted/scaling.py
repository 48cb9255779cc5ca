"""Follows the load of a fleet's models by what servers report."""

from __future__ import annotations

from collections.abc import Mapping

from tfs.hosted.fleet import Fleet
from tfs.hosted.job_report import JobReport
from tfs.hosted.load_following import LoadFollowing, LoadOptions


class Scaling:
    """The recent load of each model. Confined to one thread."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._following: dict[str, LoadFollowing] = {}
        self._before: Mapping[str, JobReport] = {}

    def wanted(
        self, now_s: float, fleet: Fleet, reports: Mapping[str, JobReport]
    ) -> dict[str, int]:
        """Returns how many replicas models should have, for those where that changes.

        Args:
            now_s: The time; does not go back.
            fleet: What is wanted.
            reports: The last reports of the servers that answer, by address.

        """
        before, self._before = self._before, reports
        changed = {}
        for name in [each for each in self._following if each not in fleet.models]:
            del self._following[name]
        for name, model in fleet.models.items():
            if model.min_replicas == model.max_replicas:
                continue
            following = self._following.setdefault(name, LoadFollowing(self._options))
            load = _load(name, fleet, before, reports)
            number = following.wanted(now_s, load, model.num_replicas)
            number = min(max(number, model.min_replicas), model.max_replicas)
            if number != model.num_replicas:
                changed[name] = number
        return changed


def _load(
    name: str,
    fleet: Fleet,
    before: Mapping[str, JobReport],
    now: Mapping[str, JobReport],
) -> float | None:
    """Returns the mean number of a model's requests under way between two reports.

    That is the time that they took, divided by the time between. None if a server where
    the model should be did not report, or counts anew.
    """
    load = 0.0
    for job in fleet.placement.get(name, ()):
        for address in fleet.jobs[job].addresses if job in fleet.jobs else ():
            first, last = before.get(address), now.get(address)
            if first is None or last is None or first.started_s != last.started_s:
                return None
            took_s = last.request_s.get(name, 0.0) - first.request_s.get(name, 0.0)
            since_s = last.at_s - first.at_s
            if took_s < 0 or since_s <= 0:
                return None
            load += took_s / since_s
    return load
