"""From base paths to the manager: a source, and an adapter that makes loaders.

What the source finds names the platform that is configured, so nothing has to route it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from managers.aspired_versions_manager import AspiredVersionsManager
from sources.adapter import Convert, LoaderSourceAdapter
from sources.file_system import FileSystemSource, FileSystemSourceOptions, OnModels
from sources.model_repository import ModelRepository
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.storage.file_system import AnyFileSystem, FileSystem, StorageThreads
from sources.version_policy import name_versions
from tfs.core.clock import Clock
from tfs.core.loader import Loader
from tfs.server.model_settings import ModelSettings
from tfs.server.residency import Residency


@dataclass(frozen=True, slots=True)
class SourceParts:
    """What a server's sources are made of. Immutable.

    Attributes:
        options: How base paths are watched; which ones comes with the config.
        make_loader: Makes a loader of a version directory.
        platforms: The names of the platforms that it knows; "" chooses one by what the
            directory contains.
        file_system: Where base paths lie; None is this machine's, and URLs.
        storage: Threads that look at base paths which may not answer; without it the
            source's own thread looks, and waits for them.

    """

    options: FileSystemSourceOptions
    make_loader: Convert[StoragePath, Loader[object]]
    platforms: Collection[str]
    file_system: FileSystem | None = None
    storage: StorageThreads | None = None


class ModelSources:
    """What finds versions and hands them to the manager, wired up. Thread-safe.

    Args:
        manager: Told which versions to load.
        parts: What it is made of.
        on_demand: Keeps back the versions of models that nobody has asked for; is closed.
        clock: What the source goes by.
        on_looked: Called after each round of looks.

    Attributes:
        source: Looks at the base paths.

    """

    def __init__(
        self,
        manager: AspiredVersionsManager,
        parts: SourceParts,
        on_demand: Residency,
        clock: Clock,
        *,
        on_looked: Callable[[], None],
    ) -> None:
        self._file_system = parts.file_system or AnyFileSystem(RemoteFileSystem())
        self._unload_when_empty = parts.options.unload_when_empty
        self.source = FileSystemSource(
            parts.options,
            file_system=self._file_system,
            clock=clock,
            on_looked=on_looked,
            storage=parts.storage,
        )
        self._adapter = LoaderSourceAdapter(parts.make_loader)
        self._on_demand = on_demand
        self.source.set_aspired_versions_callback(on_demand.aspired_versions_callback())
        on_demand.set_aspired_versions_callback(
            self._adapter.aspired_versions_callback()
        )
        self._adapter.set_aspired_versions_callback(manager.aspired_versions_callback())

    def start(self) -> None:
        """Starts to look, on the source's own thread."""
        self.source.start()

    def close(self) -> None:
        """Stops looking; nothing reaches the manager afterwards."""
        self.source.close()
        self._on_demand.close()
        self._adapter.close()

    def monitor(
        self,
        models: Iterable[ModelSettings],
        rejected: Callable[[ModelSettings], Collection[int]],
        *,
        looks_at_all: bool,
    ) -> None:
        """Watches exactly these models from now on; never waits for a listing.

        Args:
            models: The models.
            rejected: Returns the versions of a model that guards rejected.
            looks_at_all: Whether unchanged ones are listed as well.

        """
        servables = (
            ServableToMonitor(
                settings.name,
                settings.base_path,
                settings.aspired_policy(rejected(settings)),
                settings.pinned_versions,
                settings.platform,
                settings.runtime.fingerprint,
                settings.labelled_versions,
            )
            for settings in models
        )
        self.source.update_config(servables, looks_at_all=looks_at_all)

    def watch_repository(self, path: str, on_models: OnModels) -> None:
        """Watches a directory of models too; call it once, before ``start``."""
        repository = ModelRepository(path, unload_when_empty=self._unload_when_empty)
        self.source.watch_repository(repository, on_models=on_models)

    def problem(self, name: str) -> str:
        """Returns what is wrong with a model's base path; "" if nothing is."""
        return "; ".join(self.source.problems().get(name, ()))

    def versions_at_hand(self, name: str, base_path: str) -> Collection[int]:
        """Returns the versions under a model's base path; blocks on the disk.

        For a path that may not answer, returns what was last seen there, because no
        command must wait for a store or a network mount.
        """
        if self._file_system.place(base_path):
            return self.source.at_hand(name)
        return self.paths_at_hand(base_path).keys()

    def paths_at_hand(self, base_path: str) -> Mapping[int, str]:
        """Returns the version directories under a base path; blocks on the disk.

        Empty if it cannot be listed, or may not answer.
        """
        if self._file_system.place(base_path):
            return {}
        try:
            names = name_versions(self._file_system.list_directories(base_path))
        except OSError:
            return {}
        root = base_path.rstrip("/")
        return {version: f"{root}/{name}" for version, name in names.items()}
