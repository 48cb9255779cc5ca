"""The modules that lie beside a ``servable.py`` in its version, imported for it alone.

Two versions may have files of one name, so they are not put on Python's import path. The
servable is a package of a unique name whose folder is the version's: ``import model`` in
its code, or in that of a module beside it, imports ``tfs_servable_7f3a.model``. Only
import statements find them.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

PREFIX: Final = "tfs_servable_"
_NO_MODULES: Final = frozenset({"assets", "assets.extra"})


def modules_in(folder: str, source: str) -> frozenset[str]:
    """Returns the top-level names of the modules beside ``source`` in a version."""
    found = set()
    for entry in os.scandir(folder):
        stem, suffix = os.path.splitext(entry.name)
        if entry.is_dir():
            is_package = os.path.isfile(os.path.join(entry.path, "__init__.py"))
            if is_package and entry.name not in _NO_MODULES:
                found.add(entry.name)
        elif suffix == ".py" and entry.name != source:
            found.add(stem)
    return frozenset(found)


def place_beside(module: types.ModuleType, folder: str, own: Collection[str]) -> None:
    """Has import statements of a module, which was not run yet, find ``own`` in a folder."""
    if not own:
        return
    prefix = module.__name__
    module.__path__ = [folder]
    vars(module)["__builtins__"] = {
        **vars(builtins),
        "__import__": _importing(prefix, own),
    }
    if not any(isinstance(each, _BesideFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _BesideFinder())


def loaded_beside(module: types.ModuleType) -> dict[str, types.ModuleType]:
    """Returns the modules that were imported for a servable, by their plain names."""
    prefix = f"{module.__name__}."
    return {
        name.removeprefix(prefix): found
        for name, found in list(sys.modules.items())
        if name.startswith(prefix)
    }


def _importing(prefix: str, own: Collection[str]) -> Any:
    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        top = name.partition(".")[0]
        if level or top not in own:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = importlib.import_module(f"{prefix}.{name}")
        if not fromlist:
            return sys.modules[f"{prefix}.{top}"]
        for each in fromlist:
            if each != "*" and not hasattr(found, each):
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(f"{found.__name__}.{each}")
        return found

    return import_


class _BesideFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of all servables. Thread-safe."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if path is None or not fullname.startswith(PREFIX):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            spec.loader = _BesideLoader(fullname, spec.origin)
        return spec


class _BesideLoader(importlib.machinery.SourceFileLoader):
    """Runs a module with the import statement of its servable, and writes no bytecode."""

    def exec_module(self, module: types.ModuleType) -> None:
        servable = sys.modules[module.__name__.partition(".")[0]]
        vars(module)["__builtins__"] = vars(servable)["__builtins__"]
        super().exec_module(module)

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True)
