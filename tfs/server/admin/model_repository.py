"""The models as the repository of the Open Inference Protocol: loaded, unloaded, counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import Aborted, Code, FailedPrecondition
from tfs.core.stats import Stats
from tfs.handlers.oip.service import Done, VersionCounts
from tfs.server.config.overrides import ModelConfig, Override
from tfs.server.config.running_config import RunningConfig
from tfs.server.config.waiting import ConfigOutcome
from tfs.server.core import ServerCore

UNLOAD: Final = "unload"
"""How an override says that it was made to unload a model."""

_BY_VERSION: Final = frozenset(
    (stat_names.BATCHES, stat_names.BYPASS_ROWS, stat_names.BYPASS_CALLS)
)


class ModelRepository:
    """See :class:`tfs.handlers.oip.service.Repository`. Thread-safe.

    Unloading lays an override over the configuration that asks for no version; loading
    drops it. So what is unloaded stays so, as with every override, until it is loaded.

    Args:
        core: The core.
        stats: What the server counts.
        clock: For the time of overrides.
        post: Runs a function on the serving loop.
        is_in_fleet: Whether the models are another's to choose: then nothing is loaded or
            unloaded here.

    """

    def __init__(
        self,
        core: ServerCore,
        stats: Stats,
        clock: Clock,
        post: Callable[[Callable[[], None]], None],
        *,
        is_in_fleet: bool = False,
    ) -> None:
        self._core = core
        self._post = post
        self._is_in_fleet = is_in_fleet
        self._stats = stats
        self._clock = clock
        self._unloading: list[tuple[str, Done]] = []  # on the loop
        core.on_change(self._tell_unloaded)

    def names(self) -> Collection[str]:
        return self._core.config.models.keys()

    def counts(self) -> Mapping[tuple[str, int], VersionCounts]:
        return count_versions(self._stats)

    def load(
        self, name: str, caller: str, deadline_s: float | None, done: Done
    ) -> None:
        core = self._core

        def make(running: RunningConfig) -> Override | None:
            self._check_choice(name)
            running.model(name)
            override = running.overrides.get(name)
            return None if override and override.made_by == UNLOAD else override

        def dropped(outcome: ConfigOutcome) -> None:
            if not outcome.is_applied:
                done(outcome.error)
                return
            core.try_again(name, core.failed_versions(name), deadline_s, done)

        core.config.override(name, make, f"RepositoryModelLoad from {caller}", dropped)

    def unload(
        self, name: str, caller: str, deadline_s: float | None, done: Done
    ) -> None:
        core = self._core

        def make(running: RunningConfig) -> Override:
            self._check_choice(name)
            running.model(name)
            config = ModelConfig(name=name)
            config.model_version_policy.specific.SetInParent()
            config.traffic.SetInParent()  # a primary or a canary would be loaded
            return Override(config=config, made_by=UNLOAD, since_s=self._clock.wall_s())

        def applied(outcome: ConfigOutcome) -> None:
            if not outcome.is_applied:
                done(outcome.error)
                return
            self._post(lambda: self._await_unloaded(name, done))

        core.config.override(
            name, make, f"RepositoryModelUnload from {caller}", applied
        )

    def _check_choice(self, name: str) -> None:
        if self._is_in_fleet:
            raise FailedPrecondition(
                f"{name}: a fleet says which models this server has (--source=rpc); ask "
                "the fleet"
            )

    def _await_unloaded(self, name: str, done: Done) -> None:
        self._unloading.append((name, done))
        self._tell_unloaded()

    def _tell_unloaded(self) -> None:
        waiting, self._unloading = self._unloading, []
        for name, done in waiting:
            if self._core.served.primary(name) is None:
                done(None)
            elif self._is_to_go(name):
                self._unloading.append((name, done))
            else:
                done(Aborted(f"{name} is not unloaded: it was loaded again meanwhile"))

    def _is_to_go(self, name: str) -> bool:
        running = self._core.config.running
        override = None if running is None else running.overrides.get(name)
        return override is not None and override.made_by == UNLOAD


@dataclass(slots=True)
class _Sums:
    """What was counted of one signature of one version."""

    num_rows: float = 0
    num_calls: float = 0
    num_answered: float = 0
    is_batched: bool = False


def count_versions(stats: Stats) -> Mapping[tuple[str, int], VersionCounts]:
    """Returns what every version has computed, by model and version.

    Where requests are joined, queues know rows and batches; elsewhere each request that
    was answered was one call for one row.
    """
    sums: defaultdict[tuple[str, str, str], _Sums] = defaultdict(_Sums)
    for name, labels, value in stats.counters():
        if name in _BY_VERSION:
            found = sums[_key(labels)]
            found.is_batched = True
            if name == stat_names.BYPASS_ROWS:
                found.num_rows += value
            else:
                found.num_calls += value
        elif name == stat_names.REQUESTS and ("status", Code.OK.name) in labels:
            sums[_key(labels)].num_answered += value
    for name, labels, histogram in stats.histograms():
        if name == stat_names.BATCH_ROWS:
            sums[_key(labels)].num_rows += histogram.total
    versions: defaultdict[tuple[str, int], list[_Sums]] = defaultdict(list)
    for (model, version, _), found in sums.items():
        if version:
            versions[model, int(version)].append(found)
    return {key: _total(each) for key, each in versions.items()}


def _key(labels: Iterable[tuple[str, str]]) -> tuple[str, str, str]:
    by_name = dict(labels)
    return (
        by_name.get("model", ""),
        by_name.get("version", ""),
        by_name.get("signature", ""),
    )


def _total(signatures: Iterable[_Sums]) -> VersionCounts:
    num_rows = num_calls = 0.0
    for each in signatures:
        num_rows += each.num_rows if each.is_batched else each.num_answered
        num_calls += each.num_calls if each.is_batched else each.num_answered
    return VersionCounts(round(num_rows), round(num_calls))
