"""From a version's path to its loader: what a source adapter converts with."""

from __future__ import annotations

from collections.abc import Callable

from sources.storage_path import StoragePath
from tfs.core.loader import Loader
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.servables.platform import LoadContext
from tfs.servables.registry import PlatformRegistry


def loader_conversion(
    registry: PlatformRegistry, context_of: Callable[[ServableId], LoadContext]
) -> Callable[[ServableId, StoragePath], Loader[Servable]]:
    """Returns the conversion for ``sources.adapter.UnarySourceAdapter``.

    It only looks at the directory; what it raises becomes that version's error.
    """

    def convert(servable_id: ServableId, storage: StoragePath) -> Loader[Servable]:
        context = context_of(servable_id)
        return registry.loader(storage.path, context, storage.platform)

    return convert
