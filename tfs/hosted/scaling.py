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
        # The last two reports of each server that answers; it may answer late.
        self._pairs: dict[str, tuple[JobReport, JobReport]] = {}

    def wanted(
        self, now_s: float, fleet: Fleet, reports: Mapping[str, JobReport]
    ) -> dict[str, int]:
        """Returns how many replicas models should have, for those where that changes.

        Args:
            now_s: The time; does not go back.
            fleet: What is wanted.
            reports: The last reports of the servers that answer, by address.

        """
        self._pairs = {
            address: _with(self._pairs.get(address), report)
            for address, report in reports.items()
        }
        changed = {}
        for name in [each for each in self._following if each not in fleet.models]:
            del self._following[name]
        for name, model in fleet.models.items():
            if model.min_replicas == model.max_replicas:
                continue
            following = self._following.setdefault(name, LoadFollowing(self._options))
            load = self._load(name, fleet)
            number = following.wanted(now_s, load, model.num_replicas)
            number = min(max(number, model.min_replicas), model.max_replicas)
            if number != model.num_replicas:
                changed[name] = number
        return changed

    def _load(self, name: str, fleet: Fleet) -> float | None:
        """Returns the mean number of a model's requests under way, of late.

        That is the time that they took between two reports, divided by the time between.
        None if a server where the model should be does not answer, or counts anew.
        """
        load = 0.0
        for job in fleet.placement.get(name, ()):
            for address in fleet.jobs[job].addresses if job in fleet.jobs else ():
                pair = self._pairs.get(address)
                if pair is None or pair[0].started_s != pair[1].started_s:
                    return None
                first, last = pair
                took_s = last.request_s.get(name, 0.0) - first.request_s.get(name, 0.0)
                since_s = last.at_s - first.at_s
                if took_s < 0 or since_s <= 0:
                    return None
                load += took_s / since_s
        return load


def _with(
    pair: tuple[JobReport, JobReport] | None, report: JobReport
) -> tuple[JobReport, JobReport]:
    if pair is None:
        return report, report
    return pair if pair[1] is report else (pair[1], report)
