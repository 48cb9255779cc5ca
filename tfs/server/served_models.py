"""Resolves what a request names to a pinned version: labels, primaries, the map.

Everything a request reads here is an immutable snapshot behind one attribute,
replaced whole by config changes and state events; requests take no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from managers.serving_map import ServingMap
from managers.state_monitor import ServableStateMonitor
from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.servable import Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_state import ManagerState
from tfs.server.config import ServerConfig
from tfs.server.labels import effective_labels


@dataclass(frozen=True, slots=True)
class _Routes:
    """What names mean at one moment: labels and primaries by model."""

    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    primaries: Mapping[str, int] = field(default_factory=dict)


class ServedModels:
    """The look-up behind the handlers; see :class:`tfs.handlers.lookup.ModelLookup`.

    Thread-safe: ``acquire`` reads one snapshot; ``apply`` and ``refresh`` replace it.
    """

    def __init__(self, serving_map: ServingMap, monitor: ServableStateMonitor) -> None:
        self._map = serving_map
        self._monitor = monitor
        self._routes = _Routes()
        # Guards the read-modify-write of _routes and _config; leaf but for the
        # monitor's own lock, which is taken under it.
        self._lock = threading.Lock()
        self._config: ServerConfig | None = None

    def acquire(
        self,
        name: str,
        version: int | None,
        label: str | None,
        routing_key: bytes | None = None,
    ) -> ServableHandle[Servable]:
        """Pins the version that serves the request; see the protocol."""
        if not name:
            raise InvalidArgument("ModelSpec has no name specified.")
        if version is None:
            routes = self._routes
            if label is not None:
                version = routes.labels.get(name, {}).get(label)
                if version is None:
                    raise InvalidArgument(
                        f"Unrecognized servable version label: {label}"
                    )
            else:
                primary = routes.primaries.get(name)
                if primary is not None:
                    try:
                        return self._pin(self._map.acquire_version(name, primary))
                    except NotFound:
                        pass  # not loaded yet: the latest goes on answering
                return self._pin(self._map.acquire(name))
        return self._pin(self._map.acquire_version(name, version))

    def labels(self, name: str) -> Mapping[str, int]:
        """Returns what the model's labels mean now."""
        return self._routes.labels.get(name, {})

    def apply(self, config: ServerConfig) -> None:
        """Takes over the labels and primaries of a new config."""
        with self._lock:
            self._config = config
            self._rebuild_locked()

    def refresh(self) -> None:
        """Looks again at which versions are available."""
        with self._lock:
            self._rebuild_locked()

    def _rebuild_locked(self) -> None:
        config = self._config
        if config is None:
            return
        labels: dict[str, Mapping[str, int]] = {}
        for name, settings in config.models.items():
            if settings.labels:
                available = {
                    state.id.version
                    for state in self._monitor.version_states(name)
                    if state.manager_state is ManagerState.AVAILABLE
                }
                before = self._routes.labels.get(name, {})
                labels[name] = effective_labels(settings.labels, before, available)
        primaries = {
            name: settings.primary
            for name, settings in config.models.items()
            if settings.primary is not None
        }
        self._routes = _Routes(labels, primaries)

    @staticmethod
    def _pin(handle: object) -> ServableHandle[Servable]:
        return cast("ServableHandle[Servable]", handle)
