"""Hides the author's own modules while a version is tried as on a server."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tfs.export.packaging.module_origin import is_own_code

_ELSEWHERE: Final = (
    "it is in the archive, where only import statements and importlib.import_module "
    "look; read resources with torch_package_importer, or from assets"
)
_NOWHERE: Final = (
    "it is your own code, which no server has, and not in the archive; include it"
)


_PYTHONS: Final = [
    folder
    for folder in sys.path
    if folder.startswith(sysconfig.get_path("stdlib")) and "-packages" not in folder
]
"""Where Python's own modules are."""


@contextlib.contextmanager
def own_code_out_of_reach(
    packaged: Collection[str] = (), extern: Collection[str] = ()
) -> Iterator[OwnCodeRefuser]:
    """Hides the author's own modules for the block, because a server does not have them.

    A package's own modules come from the archive, and modules that it declares extern
    stay importable. Any other import of the author's modules fails here, where the
    author sees it, instead of on the server. Other threads of the author's program
    should not import meanwhile.

    Args:
        packaged: Modules whose source is in the version; only used in messages.
        extern: Modules of the author's that servers do have.

    """
    finder = OwnCodeRefuser(packaged, extern)
    hidden = {
        name: module
        for name, module in list(sys.modules.items())
        # getattr would make a module that imports lazily do its imports.
        if (spec := getattr(module, "__dict__", {}).get("__spec__"))
        and finder.refuses(name, spec)
    }
    for name in hidden:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield finder
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)


class OwnCodeRefuser(importlib.abc.MetaPathFinder):
    """Refuses to find modules, and says why. Confined to the importing thread.

    Attributes:
        refused: The modules that were asked for and refused.

    """

    def __init__(self, packaged: Collection[str], extern: Collection[str]) -> None:
        self.refused: list[str] = []
        self._packaged = frozenset(packaged)
        self._extern = tuple(f"{name}." for name in extern)
        # What an extern module of the author's imports in turn, servers have as well.
        tops = {name.partition(".")[0] for name in extern}
        self._has_own_extern = any(map(_is_own_top, tops))

    def refuses(self, name: str, spec: importlib.machinery.ModuleSpec) -> bool:
        """Whether a server would not find this module."""
        return (
            name != "__main__"
            # A module of a package, under its mangled name.
            and not name.startswith("<")
            and not f"{name}.".startswith(self._extern)
            and not any(each.startswith(f"{name}.") for each in self._extern)
            and (not self._has_own_extern or self._is_packaged(name))
            and is_own_code(name, spec)
        )

    def _is_packaged(self, name: str) -> bool:
        return any(f"{each}.".startswith(f"{name}.") for each in self._packaged)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Raises for the author's own modules; leaves others to the next finder."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and self.refuses(fullname, spec):
            if path is None and fullname in sys.stdlib_module_names:
                # A server has Python's own module of that name.
                found = importlib.machinery.PathFinder.find_spec(fullname, _PYTHONS)
                if found is not None:
                    return found
            self.refused.append(fullname)
            why = _ELSEWHERE if self._is_packaged(fullname) else _NOWHERE
            raise ModuleNotFoundError(
                f"No module named {fullname!r} ({why})", name=fullname
            )
        return None


def _is_own_top(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and is_own_code(name, spec)
