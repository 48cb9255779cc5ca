"""Resolves what a request names to a pinned version: labels, primaries, canaries.

Everything that a request reads here is an immutable snapshot behind one attribute,
which config changes and state events replace as a whole; requests take no lock. A model
without labels, primary and canary has no entry and costs one failed look-up.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from managers.serving_map import ServingMap
from managers.state_monitor import ServableStateMonitor
from tfs.core.call import Call
from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.servable import Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.server.canary.trial import Trial, TrialParts
from tfs.server.canary.trial_notes import Rejection, TrialNotes, settings_form
from tfs.server.config.server_config import ServerConfig
from tfs.server.model_settings import ModelSettings
from tfs.server.residency import Residency
from tfs.server.traffic import TrialRoute, effective_labels, effective_primary


@dataclass(frozen=True, slots=True)
class _Route:
    """Where requests go that name a model but no version. Immutable.

    Attributes:
        primary: The version that answers; None if none does.
        wanted: The version that the config names as primary; None if it names none.
        last: The version that answered last. It answers again if it returns before the
            wanted one is available.

    """

    primary: int | None
    wanted: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What requests for a model mean at one moment. Immutable.

    Attributes:
        labels: The version that each label means.
        last_labels: The last version that each label meant and that could answer.
        route: Where requests go that name no version and no label; None: to the latest.
        trial: The canary's share of these; None without one.

    """

    labels: Mapping[str, int]
    last_labels: Mapping[str, int]
    route: _Route | None
    trial: TrialRoute | None = None


_PLAIN: Final = _Meaning({}, {}, None)
"""The meaning of a model without labels, primary and canary."""


class ServedModels:
    """The look-up behind the handlers; see :class:`tfs.handlers.model_lookup.ModelLookup`.

    Thread-safe: look-ups read one snapshot; ``apply`` and ``refresh`` replace it.

    Args:
        serving_map: Where versions are pinned.
        monitor: Knows which are available.
        parts: What trials need.
        rng: Returns a random number in [0, 1); for callers without a key, and for
            sampling.
        notes: What trials left behind; None starts without any.
        residency: Knows the models that are loaded on demand; None: there are none.

    """

    def __init__(
        self,
        serving_map: ServingMap,
        monitor: ServableStateMonitor,
        parts: TrialParts,
        rng: Callable[[], float] = random.random,
        notes: TrialNotes | None = None,
        residency: Residency | None = None,
    ) -> None:
        self._residency = residency
        self._notes = notes or TrialNotes()
        self._map = serving_map
        self._monitor = monitor
        self._parts = parts
        self._rng = rng
        self._meanings: Mapping[str, _Meaning] = {}  # of models that are not plain
        # Orders the replacements of _meanings, and guards _config and _trials; leaf: what
        # it reads of the monitor, the trials and their notes takes no lock.
        self._lock = threading.Lock()
        self._config: ServerConfig | None = None
        self._trials: dict[str, Trial] = {}

    def acquire(
        self,
        name: str,
        version: int | None,
        label: str | None,
        client_id: bytes | None,
        call: Call,
    ) -> ServableHandle[Servable]:
        """Pins the version that serves the request; see the protocol."""
        residency = self._residency
        if residency is not None and name in residency.models:
            residency.note_use(name)
        trial = self._meanings.get(name, _PLAIN).trial
        if trial is None or version is not None or label is not None:
            return self.look_at(name, version, label)
        if trial.sends_to_canary(call, client_id):
            with contextlib.suppress(NotFound):  # it goes: the primary answers
                return trial.observe(self.look_at(name, trial.canary, None), True)
        return trial.observe(self.look_at(name, None, None), False)

    def acquire_shared(
        self, name: str, version: int | None, label: str | None, num: int
    ) -> ServableHandle[Servable] | None:
        """Pins, ``num`` times, what serves that many requests alike; see the protocol."""
        trial = self._meanings.get(name, _PLAIN).trial
        if trial is not None and version is None and label is None:
            return None
        residency = self._residency
        if residency is not None and name in residency.models:
            residency.note_use(name)
        handle = self.look_at(name, version, label)
        pin = handle.pin
        for _ in range(num - 1):
            pin(None)  # the first one keeps it alive, retired or not
        return handle

    def look_at(
        self, name: str, version: int | None, label: str | None
    ) -> ServableHandle[Servable]:
        """Pins the version that answers unless a canary does; see the protocol."""
        residency = self._residency
        if residency is not None and name in residency.models:
            residency.require(name)
            try:
                return self._find(name, version, label)
            except NotFound:
                residency.require(name)  # it may have made way in between
                raise
        if version is None and label is None and name not in self._meanings and name:
            return self._map.acquire(name)  # type: ignore[return-value]
        return self._find(name, version, label)

    def _find(
        self, name: str, version: int | None, label: str | None
    ) -> ServableHandle[Servable]:
        if not name:
            raise InvalidArgument("ModelSpec has no name specified.")
        if version is not None:
            return self._acquire_version(name, version)
        while True:
            meaning = self._meanings.get(name, _PLAIN)
            try:
                if label is not None:
                    if label not in meaning.labels:
                        raise InvalidArgument(
                            f"Unrecognized servable version label: {label}"
                        )
                    return self._acquire_version(name, meaning.labels[label])
                route = meaning.route
                if route is None:
                    return self._map.acquire(name)  # type: ignore[return-value]
                if route.primary is not None:
                    return self._acquire_version(name, route.primary)
                raise _no_primary(name, route, meaning.trial, self._rejected_of(name))
            except NotFound:
                # The version may have been unloaded after its meaning was read: then
                # there is another meaning by now.
                if self._meanings.get(name, _PLAIN) is meaning:
                    raise

    def _acquire_version(self, name: str, version: int) -> ServableHandle[Servable]:
        # The manager's handles may hold any object; those of a server hold servables.
        return self._map.acquire_version(name, version)  # type: ignore[return-value]

    # -- for reports -------------------------------------------------------------------

    def labels(self, name: str) -> Mapping[str, int]:
        """Returns what the model's labels mean now."""
        return self._meanings.get(name, _PLAIN).labels

    def primary(self, name: str) -> int | None:
        """Returns the version that answers requests which name none; None if none does."""
        route = self._meanings.get(name, _PLAIN).route
        if route is None:
            primary = max(self.available(name), default=None)
        else:
            primary = route.primary
        if primary is None and self._residency is not None:
            # What its first request will have loaded answers.
            versions = self._residency.versions(name)
            config = self._config
            if versions and config is not None and name in config.models:
                wanted = config.models[name].primary
                return max(versions) if wanted is None else wanted
        return primary

    def is_well(self, name: str) -> bool:
        """Whether a version answers by default that the server has not seen to fail."""
        if self._residency is not None and self._residency.registered(name):
            return True
        primary = self.primary(name)
        if primary is None:
            return False
        state = self._monitor.state(ServableId(name, primary))
        return state is not None and not state.is_faulty

    def awaited(self, name: str) -> Mapping[int, Collection[int]]:
        """Returns, for each version that answered last, which versions will replace it.

        Only for the primary and for labels whose new version is not available yet. The
        old one may have been unloaded for it. Any thread; takes no lock.
        """
        config, meaning = self._config, self._meanings.get(name, _PLAIN)
        settings = None if config is None else config.models.get(name)
        if settings is None or not (settings.labels or settings.primary is not None):
            return {}
        heirs: dict[int, set[int]] = {}
        route = meaning.route
        moves = [] if route is None else [(route.last, settings.primary)]
        moves += [
            (meaning.last_labels.get(label), wanted)
            for label, wanted in settings.labels.items()
        ]
        for now, wanted in moves:
            if now is not None and wanted is not None and now != wanted:
                heirs.setdefault(now, set()).add(wanted)
        return heirs

    def rejected(self, settings: ModelSettings) -> Mapping[int, str]:
        """Returns why guards rejected versions of the model, by version."""
        return self._notes.rejected(settings.name, settings.base_path)

    def trial(self, name: str) -> Trial | None:
        """Returns the model's trial; None if it has none."""
        return self._trials.get(name)

    # -- changes -----------------------------------------------------------------------

    def apply(self, config: ServerConfig) -> None:
        """Takes over the labels, primaries and canaries of a new config.

        A trial goes on, with its record and rejection, while its canary is the same
        version under the same base path. A rejected trial starts anew if its settings
        changed. A rejected version that the config names as primary is not rejected
        any more.
        """
        for settings in config.models.values():
            if settings.primary is not None:
                self._notes.forget(settings.name, settings.primary)
        with self._lock:
            before, self._config = self._config, config
            changed = self._update_trials_locked(before, config)
            found = ((s.name, self._meaning_locked(s)) for s in config.models.values())
            self._meanings = {n: each for n, each in found if each is not _PLAIN}
        for change in changed:
            change()

    def restart_trial(self, name: str) -> None:
        """Starts a rejected trial anew; harmless for any other."""
        trial = self._trials.get(name)
        if trial is None or not trial.rejected:
            return
        self._notes.forget(name, trial.settings.version)
        with self._lock:
            config = self._config
            if config is None or self._trials.get(name) is not trial:
                return  # a config came in between, and has replaced it
            self._trials[name] = self._new_trial(config.models[name])
        self.refresh(name)

    def refresh(self, name: str) -> None:
        """Looks again at which versions of ``name`` are available."""
        config = self._config
        settings = None if config is None else config.models.get(name)
        if settings is None or not (
            settings.labels
            or settings.canary
            or settings.primary is not None
            or self.rejected(settings)
            or self._faulty(name)
            or name in self._meanings
        ):
            return  # no route depends on this model; keeps 1,000 loads cheap
        with self._lock:
            config = self._config
            settings = None if config is None else config.models.get(name)
            if settings is None:
                return
            meanings = {**self._meanings, name: self._meaning_locked(settings)}
            if meanings[name] is _PLAIN:
                del meanings[name]
            self._meanings = meanings

    def close(self) -> None:
        """Ends all trials; look-ups go on."""
        with self._lock:
            trials = list(self._trials.values())
        for trial in trials:
            trial.close()

    def _meaning_locked(self, settings: ModelSettings) -> _Meaning:
        name, canary = settings.name, settings.canary
        rejected, faulty = self.rejected(settings), self._faulty(name)
        is_routed = settings.primary is not None or canary or rejected or faulty
        if not is_routed and not settings.labels:
            return _PLAIN
        before = self._meanings.get(name, _PLAIN)
        available, last = self.available(name), before.last_labels
        labels = effective_labels(settings.labels, last, available)
        last_labels = {
            label: version if version in available else last[label]
            for label, version in labels.items()
            if version in available or label in last
        }
        if not is_routed:
            return _Meaning(labels, last_labels, None)
        # Without a route, the latest version answered.
        route = before.route
        last_primary = max(available, default=None) if route is None else route.last
        primary = effective_primary(
            settings.primary,
            last_primary,
            available,
            None if canary is None else canary.version,
            rejected,
            faulty,
        )
        route = _Route(
            primary,
            settings.primary,
            last_primary if primary is None else primary,
        )
        trial = self._trial_route_locked(settings, available)
        return _Meaning(labels, last_labels, route, trial)

    def _trial_route_locked(
        self, settings: ModelSettings, available: Collection[int]
    ) -> TrialRoute | None:
        trial, canary = self._trials.get(settings.name), settings.canary
        if trial is None or canary is None:
            return None
        is_on = canary.version in available and not trial.rejected
        return TrialRoute(
            trial,
            canary.version if is_on else None,
            canary.tee_fraction,
            canary.split_fraction,
            self._rng,
        )

    def _update_trials_locked(
        self, before: ServerConfig | None, config: ServerConfig
    ) -> list[Callable[[], None]]:
        """Replaces the trials; returns what is to be done to old ones outside the lock."""
        changed: list[Callable[[], None]] = []
        for name in list(self._trials):
            settings = config.models.get(name)
            if settings is None or settings.canary is None:
                changed.append(self._trials.pop(name).close)
        for name, settings in config.models.items():
            canary, trial = settings.canary, self._trials.get(name)
            if canary is None:
                continue
            old = None if before is None else before.models.get(name)
            is_same = (
                trial is not None
                and old is not None
                and trial.settings.version == canary.version
                and old.base_path == settings.base_path
            )
            if trial is not None and is_same:
                if settings_form(trial.settings) == settings_form(canary):
                    continue
                if not trial.rejected:
                    changed.append(functools.partial(trial.update, canary))
                    continue
            if trial is not None:
                changed.append(trial.close)
            self._trials[name] = self._new_trial(settings)
        return changed

    def _new_trial(self, settings: ModelSettings) -> Trial:
        canary, name = settings.canary, settings.name
        assert canary is not None  # checked by the caller
        version = canary.version

        def pin() -> ServableHandle[Servable]:
            return self._acquire_version(name, version)

        def note_rejected(rejection: Rejection) -> None:
            self._notes.reject(name, base_path, version, rejection)
            self.refresh(name)

        base_path = settings.base_path
        rejection = self._notes.find(name, base_path, canary)
        return Trial(name, canary, pin, self._parts, note_rejected, rejection)

    def _faulty(self, name: str) -> Collection[int]:
        return [
            state.id.version
            for state in self._monitor.version_states(name)
            if state.is_faulty
        ]

    def _rejected_of(self, name: str) -> Collection[int]:
        config = self._config
        settings = None if config is None else config.models.get(name)
        return () if settings is None else self.rejected(settings)

    def available(self, name: str) -> frozenset[int]:
        """Returns the versions of a model that can be requested."""
        return self._monitor.available_versions(name)


def _no_primary(
    name: str, route: _Route, trial: TrialRoute | None, rejected: Collection[int]
) -> NotFound:
    why = ""
    if route.wanted is not None:
        why = f" (version {route.wanted} is the primary, and is not available)"
    elif trial is not None:
        version = trial.trial.settings.version
        why = f" (a canary, version {version}, answers nothing in the primary's place)"
    elif rejected:
        listed = ", ".join(map(str, sorted(rejected)))
        why = (
            f" (rejected on trial: version {listed}; tfs promote {name} VERSION --force "
            "makes it the primary all the same)"
        )
    return NotFound(f"Servable not found for request: Latest({name}){why}")
