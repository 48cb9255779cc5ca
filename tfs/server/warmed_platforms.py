"""Gives every platform's loaders a warm-up, so that no platform needs its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sources.adapter import Convert
from sources.storage_path import StoragePath
from tfs.core.clock import Clock
from tfs.core.loader import Loader
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.handlers.warmed_loader import OnLoaded, OnWarmed, WarmedLoader
from tfs.handlers.warmup_replay import WarmupOptions

Platforms = Mapping[str, Convert[StoragePath, Loader[object]]]


def warmed(
    platforms: Platforms,
    options: WarmupOptions,
    stats: Stats,
    clock: Clock,
    on_warmed: OnWarmed = lambda _id, _num: None,
    on_loaded: OnLoaded = lambda _servable: None,
) -> Platforms:
    """Returns the same platforms, whose versions are warmed up before they are available."""

    def wrap(
        convert: Convert[StoragePath, Loader[object]],
    ) -> Convert[StoragePath, Loader[object]]:
        def make(servable_id: ServableId, storage: StoragePath) -> Loader[object]:
            inner = cast("Loader[Servable]", convert(servable_id, storage))
            return WarmedLoader(
                inner, storage.path, options, stats, clock, on_warmed, on_loaded
            )

        return make

    return {name: wrap(convert) for name, convert in platforms.items()}
