"""Loads a version as a server's interpreter will, before it is committed."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import torch

from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.export.derive import Derived
from tfs.export.package import is_own_code
from tfs.export.values import Value, close, view_of
from tfs.runtime.guest.guest_model import GuestModel, VersionFiles, load_guest_model
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import to_torch

_HINT: Final = (
    "If a mocked module is needed after all, intern or extern it; if one is missing, "
    "include it"
)
_ELSEWHERE: Final = (
    "it is in the archive, where only import statements and importlib.import_module "
    "look; read resources with torch_package_importer, or from assets"
)
_NOWHERE: Final = (
    "it is your own code, which no server has, and not in the archive; include it"
)


def differing_outputs(
    folder: str,
    platform: str,
    entry: Mapping[str, object],
    signatures: Mapping[str, Signature],
    derived: Mapping[str, Derived],
    *,
    is_exact: bool,
) -> dict[str, list[str]]:
    """Calls every signature on its example; returns outputs that differ, by signature.

    Raises:
        InvalidArgument: The payload does not load, or does not run outside of the
            author's program.

    """
    device = _device(derived)
    source = ModelSource(
        ServableId("export", 0), folder, platform, entry, signatures, device
    )
    differing = {}
    with _own_code_out_of_reach(os.path.join(folder, "model.pt")):
        files = VersionFiles.stage(source)
        try:
            model = load_guest_model(source, files)
        except ServingError as error:
            raise InvalidArgument(
                f"it was packaged but cannot be loaded back: {error.message}. {_HINT}"
            ) from error
        finally:
            files.close()
        try:
            for key, each in derived.items():
                outputs = _outputs(model, key, each)
                names = [
                    name
                    for name, value in each.outputs.items()
                    if view_of(value) != outputs[name]
                    and (is_exact or not close(_on_cpu(value), to_torch(outputs[name])))
                ]
                if names:
                    differing[key] = names
        finally:
            model.close()
    return differing


@contextlib.contextmanager
def _own_code_out_of_reach(path: str) -> Iterator[None]:
    """Hides the author's own modules for the block: a server does not have them.

    What the package imports from itself comes from the archive, and what it names
    extern is left; what goes around both fails here, where the author sees it, instead
    of on the server. Other threads of the author's program should not import meanwhile.
    """
    finder = _OwnCodeRefuser(*_modules_of(path))
    hidden = {
        name: module
        for name, module in list(sys.modules.items())
        # Not by getattr: a module that imports lazily would begin to.
        if (spec := getattr(module, "__dict__", {}).get("__spec__"))
        and finder.refuses(name, spec)
    }
    for name in hidden:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)


def _modules_of(path: str) -> tuple[set[str], set[str]]:
    """Returns the modules whose source an archive holds, and those it names extern."""
    packaged: set[str] = set()
    extern: set[str] = set()
    if not os.path.isfile(path) or not zipfile.is_zipfile(path):
        return packaged, extern
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            parts = entry.removesuffix(".py").split("/")[1:]
            if entry.endswith(".py") and all(map(str.isidentifier, parts)):
                packaged.add(".".join(parts).removesuffix(".__init__"))
            elif entry.endswith("/.data/extern_modules"):
                extern.update(archive.read(entry).decode().split())
    return packaged, extern


class _OwnCodeRefuser(importlib.abc.MetaPathFinder):
    """Finds nothing, and says why. Immutable."""

    def __init__(self, packaged: Collection[str], extern: Collection[str]) -> None:
        self._packaged = frozenset(packaged)
        self._extern = tuple(f"{name}." for name in extern)

    def refuses(self, name: str, spec: importlib.machinery.ModuleSpec) -> bool:
        """Whether a server would not find this module."""
        return (
            name != "__main__"
            and not name.startswith("<")  # a package's, under its mangled name
            and not f"{name}.".startswith(self._extern)
            and not any(each.startswith(f"{name}.") for each in self._extern)
            and is_own_code(name, spec)
        )

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Raises for the author's own modules; leaves others to the next finder."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and self.refuses(fullname, spec):
            inside = any(
                f"{each}.".startswith(f"{fullname}.") for each in self._packaged
            )
            raise ModuleNotFoundError(
                f"No module named {fullname!r} ({_ELSEWHERE if inside else _NOWHERE})",
                name=fullname,
            )
        return None


def _outputs(model: GuestModel, key: str, each: Derived) -> Tensors:
    """Runs the example under the conditions of ``calling.run``."""
    inputs = {name: view_of(value) for name, value in each.example.items()}
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        try:
            return model.call(key, inputs)
        except ServingError as error:
            raise InvalidArgument(
                f"it works here but not from its package: {error.message}. {_HINT}"
            ) from error


def _on_cpu(value: Value) -> Value:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _device(derived: Mapping[str, Derived]) -> str:
    """Returns where the author's example lies, so that the same kernels run."""
    for each in derived.values():
        for value in each.example.values():
            if isinstance(value, torch.Tensor):
                return str(value.device)
    return "cpu"
