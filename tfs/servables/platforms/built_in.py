"""The platforms that come with TFS, in the order of detection."""

from __future__ import annotations

from collections.abc import Mapping

from tfs.core.signature import Signature
from tfs.servables.platform import Platform
from tfs.servables.platforms.hashmap import Hashmap
from tfs.servables.platforms.python_model import PythonModel
from tfs.servables.platforms.torch_export import TorchExport
from tfs.servables.platforms.torch_package import TorchPackage
from tfs.servables.platforms.torchscript import TorchScript
from tfs.servables.registry import PlatformRegistry


def built_in_platforms() -> tuple[Platform, ...]:
    """Returns them; none imports torch before a version of it is loaded."""
    return _platforms()


def signatures_of(path: str) -> Mapping[str, Signature] | None:
    """Returns what a version directory says of its signatures; runs nothing of it.

    Returns None if it is not one of a built-in platform.

    Raises:
        ServingError: It is one, but its signatures cannot be read.

    """
    for platform in _platforms():
        if platform.recognizes(path):
            return platform.describe(path).signatures
    return None


def _platforms() -> tuple[
    TorchPackage | TorchScript | TorchExport | PythonModel | Hashmap, ...
]:
    return (TorchPackage(), TorchScript(), TorchExport(), PythonModel(), Hashmap())


def default_registry(*, allow_model_code: bool = True) -> PlatformRegistry:
    """Returns a registry of these and of the installed third-party ones."""
    return PlatformRegistry(built_in_platforms(), allow_model_code=allow_model_code)
