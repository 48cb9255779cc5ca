"""Turns a version directory into a loader that this server runs, by platform name.

A version's fingerprint names the settings that it was found with. A version that comes
back is loaded with these, whatever the configuration says by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sources.adapter import Convert
from sources.storage_path import StoragePath
from tfs.core.loader import Loader
from tfs.core.servable_id import ServableId
from tfs.servables.platforms.built_in import default_registry
from tfs.server.model_settings import DETECT, RuntimeSettings
from tfs.server.options import ServerOptions
from tfs.server.placing.model_placer import ModelPlacer


def loader_makers(
    options: ServerOptions,
    placer: ModelPlacer,
    runtime_of: Callable[[str], RuntimeSettings],
) -> Mapping[str, Convert[StoragePath, Loader[object]]]:
    """Returns what turns a version directory into a loader, by platform name."""
    registry = default_registry(allow_model_code=options.allow_model_code)

    # Keyed by fingerprint, so that a version that comes back is loaded with its former
    # settings, even if the configuration has changed since.
    settings: dict[str, RuntimeSettings] = {}

    def maker(name: str) -> Convert[StoragePath, Loader[object]]:
        def convert(servable_id: ServableId, storage: StoragePath) -> Loader[object]:
            runtime = runtime_of(servable_id.name)
            settings[runtime.fingerprint] = runtime
            context = placer.context(settings.get(storage.settings, runtime))
            return registry.loader(storage.path, context, name)

        return convert

    return {name: maker(name) for name in (DETECT, *registry.names)}
