"""All platforms by name, which one a version directory belongs to, and its loader."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, cast

from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.version.version_layout import VERSION_FILES
from tfs.core.version_directory import (
    check_files,
    is_committed,
    read_manifest,
)
from tfs.servables.loaded_version import LoadedVersion
from tfs.servables.platform import LoadContext, OwnPlatform, VersionReader
from tfs.servables.platforms.hashmap import Hashmap
from tfs.servables.platforms.model_archive import TorchPackage, TorchScript
from tfs.servables.platforms.python_model import PythonModel
from tfs.servables.platforms.torch_export import TorchExport
from tfs.servables.version_files import inspect_archive
from tfs.servables.version_loader import VersionLoader

log = logging.getLogger(__name__)

AnyPlatform: TypeAlias = VersionReader | OwnPlatform

ENTRY_POINTS: Final = "tfs.platforms"


class PlatformRegistry:
    """Finds the platform of a version and makes its loader. Thread-safe.

    Built-in names cannot be taken by entry points. A third-party platform is
    imported when it is first asked for by name, or when nothing built in recognises
    a version; one that fails to import, or to say whether a version is its own,
    makes only its own versions fail.
    """

    def __init__(
        self,
        platforms: Iterable[AnyPlatform],
        *,
        allow_model_code: bool = True,
        entry_points: Sequence[importlib.metadata.EntryPoint] | None = None,
    ) -> None:
        """Stores the platforms.

        Args:
            platforms: The built-in ones, in the order of detection.
            allow_model_code: Whether versions may bring code that runs when they are
                loaded.
            entry_points: Third-party platforms; None finds the installed ones.

        """
        self._platforms = {platform.name: platform for platform in platforms}
        self._allow_model_code = allow_model_code
        found = (
            importlib.metadata.entry_points(group=ENTRY_POINTS)
            if entry_points is None
            else entry_points
        )
        self._entry_points = {
            each.name: each for each in found if each.name not in self._platforms
        }

    @property
    def names(self) -> list[str]:
        """Every name ``model_platform`` may have."""
        return [*self._platforms, *self._entry_points]

    def get(self, name: str) -> AnyPlatform:
        """Returns the platform called ``name``.

        Raises:
            InvalidArgument: There is none; the message lists those there are.
            Internal: Its entry point cannot be imported.

        """
        platform = self._platforms.get(name)
        if platform is not None:
            return platform
        if name not in self._entry_points:
            raise InvalidArgument(
                f"unknown platform {name!r}; known: {', '.join(self.names)}"
            )
        platform = _import(self._entry_points[name])
        self._platforms.setdefault(name, platform)
        return platform

    def detect(self, path: str) -> AnyPlatform:
        """Returns the platform of a version directory by its contents.

        Raises:
            NotFound: The directory is gone.
            InvalidArgument: Nothing in it can be served; the message says what there
                is.

        """
        if is_committed(path):
            return self.get(read_manifest(path).platform)
        for platform in list(self._platforms.values()):
            if platform.recognizes(path):
                return platform
        for name in self._entry_points:
            try:
                platform = self.get(name)
                is_its = platform.recognizes(path)
            # A third party's code failed; the next platform may recognize it.
            except Exception as error:
                log.warning("event=platform_unusable platform=%s error=%r", name, error)
                continue
            if is_its:
                return platform
        raise _unrecognized(path)

    def loader(
        self, path: str, context: LoadContext, model_platform: str = ""
    ) -> Loader[Servable]:
        """Returns a loader for a version directory; quick, nothing is loaded.

        Args:
            path: The version directory.
            context: What the server gives loaders.
            model_platform: The configured platform; "" has it detected.

        Raises:
            InvalidArgument: No platform fits.
            NotFound: The directory is gone.
            FailedPrecondition: The version brings code, which is not allowed, or it
                contains something that is not a file.

        """
        check_files(path)
        platform = self.get(model_platform) if model_platform else self.detect(path)
        if not self._allow_model_code and platform.runs_code(path):
            raise FailedPrecondition(
                f"this version of platform {platform.name} brings code to run, which "
                "--allow_model_code=false forbids; save it as torch_export (a graph, "
                "not compiled) or torchscript, or allow model code"
            )
        if isinstance(platform, OwnPlatform):
            return OwnLoader(path, platform.loader(path, context), context)
        return VersionLoader(path, platform, context)


def _import(entry_point: importlib.metadata.EntryPoint) -> AnyPlatform:
    try:
        loaded = entry_point.load()
        made = loaded if hasattr(loaded, "recognizes") else None
        if made is None or isinstance(loaded, type):
            made = cast("Callable[[], object]", loaded)()
        platform = cast(AnyPlatform, made)
        name = platform.name
    except Exception as error:
        raise Internal(
            f"platform {entry_point.name!r} ({entry_point.value}) cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if name != entry_point.name:
        raise Internal(
            f"platform {entry_point.name!r} ({entry_point.value}) calls itself {name!r}"
        )
    return platform


def _unrecognized(path: str) -> ServingError:
    """Returns why nothing in the directory can be served, as precisely as possible."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        return NotFound(f"cannot list the version directory: {error.strerror}")
    if "saved_model.pb" in names:
        return InvalidArgument(
            "it holds a TensorFlow SavedModel; TFS serves PyTorch models: export it "
            "with tfs.export.save"
        )
    for name in names:
        if name not in VERSION_FILES or not name.startswith("model."):
            continue
        try:
            kind = inspect_archive(os.path.join(path, name)).kind
        except ServingError as error:
            return error
        if kind.value == "torch.save":
            return InvalidArgument(
                f"{name} was written by torch.save, which keeps no code; write the "
                "version with tfs.export.save"
            )
        return InvalidArgument(f"{name} is an archive of an unknown kind")
    return InvalidArgument(
        f"nothing to serve among {', '.join(names) or 'no files'}; a version holds one "
        f"of {', '.join(VERSION_FILES)}"
    )


BUILT_IN: Final = (
    TorchPackage(),
    TorchScript(),
    TorchExport(),
    PythonModel(),
    Hashmap(),
)
"""The platforms that are built in; none imports torch before a version of it is loaded."""


def signatures_of(path: str) -> Mapping[str, Signature] | None:
    """Returns what a version directory says of its signatures; runs nothing of it.

    Returns None if it is not one of a built-in platform.

    Raises:
        ServingError: It is one, but its signatures cannot be read.

    """
    for platform in BUILT_IN:
        if platform.recognizes(path):
            return platform.describe(path).signatures
    return None


def default_registry(*, allow_model_code: bool = True) -> PlatformRegistry:
    """Returns a registry of these and of the installed third-party ones."""
    return PlatformRegistry(BUILT_IN, allow_model_code=allow_model_code)


class OwnLoader:
    """Loads a version by a loader of its platform's own, and replays what it brings.

    A :class:`tfs.core.loader.Loader`. Confined to one caller at a time.
    """

    def __init__(self, path: str, own: Loader[Servable], context: LoadContext) -> None:
        self._path = path
        self._own = own
        self._context = context
        self._version: LoadedVersion | None = None

    @property
    def servable(self) -> Servable:
        """The loaded version."""
        if self._version is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._version

    def estimate_resources(self) -> ResourceAllocation:
        return self._own.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        if self._version is not None:
            raise FailedPrecondition(f"{servable_id.slashed} is loaded already")
        self._own.load(servable_id)
        try:
            version = LoadedVersion(self._own.servable)
            self._context.replay(version, self._path)
        except BaseException:
            self._own.unload()
            raise
        self._version = version

    def unload(self) -> None:
        if self._version is not None:
            self._version = None
            self._own.unload()
