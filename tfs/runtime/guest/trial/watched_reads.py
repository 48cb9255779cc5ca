"""Notes what a version reads of its process: variables, arguments and files.

All of these are others on a server. Only reads by the version's own code count, not
those by libraries, except for files, which are noted by their place. For a process that
tries one version and ends: nothing is undone.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from typing import Any, Final

_OWN_CODE: Final = ("<torch_package_", "tfs_servable_")
"""Prefixes of the names of modules that were loaded from a version."""

_ON_THE_WAY: Final = frozenset(
    {"os", "collections.abc", "_collections_abc", "argparse", "getopt", __name__}
)


class WatchedReads:
    """What was read since it was made. For one process, and one version.

    Attributes:
        variables: Names of environment variables.
        arguments: Whether the command line was read.
        files: Absolute paths that are neither in the version nor on every server.

    """

    def __init__(self, folder: str) -> None:
        self.variables: set[str] = set()
        self.arguments = False
        self.files: set[str] = set()
        self._everywhere = tuple(
            os.path.join(os.path.abspath(place), "")
            for place in (
                folder,
                tempfile.gettempdir(),
                sys.prefix,
                sys.base_prefix,
                *filter(None, map(sysconfig.get_path, ("stdlib", "purelib"))),
                *("/dev", "/etc", "/lib", "/proc", "/sys", "/usr", "/var"),
            )
        )
        self._watch_variables()
        sys.argv = _Arguments(sys.argv, self)
        sys.addaudithook(self._audit)

    def _watch_variables(self) -> None:
        kind: Any = type(os.environ)
        plain = kind.__getitem__

        def read(environment: object, name: object) -> object:
            if isinstance(name, str) and _is_own_code(sys._getframe(1)):
                self.variables.add(name)
            return plain(environment, name)

        kind.__getitem__ = read

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(args[2], int):
            return
        path = os.fsdecode(args[0]) if isinstance(args[0], bytes) else args[0]
        if (
            isinstance(path, str)
            and os.path.isabs(path)
            and args[2] & os.O_ACCMODE == os.O_RDONLY
            and not path.startswith(self._everywhere)
            and not path.endswith((".py", ".pyc"))
            and os.path.isfile(path)
        ):
            self.files.add(path)


class _Arguments(list[str]):
    """``sys.argv``, which notes who looks."""

    def __init__(self, arguments: list[str], reads: WatchedReads) -> None:
        super().__init__(arguments)
        self._reads = reads

    def __getitem__(self, place: Any) -> Any:
        if place != 0:  # the program's name
            self._note()
        return super().__getitem__(place)

    def __iter__(self) -> Any:
        self._note()
        return super().__iter__()

    def __len__(self) -> int:
        self._note()
        return super().__len__()

    def _note(self) -> None:
        if _is_own_code(sys._getframe(2)):
            self._reads.arguments = True


def _is_own_code(frame: Any) -> bool:
    """Whether a version's code reads, by itself or through Python's own modules."""
    while frame.f_back is not None and _name_of(frame) in _ON_THE_WAY:
        frame = frame.f_back
    return _name_of(frame).startswith(_OWN_CODE)


def _name_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))
