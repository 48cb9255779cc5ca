"""Watches which files a model reads while a version is tried as on a server.

A path that is relative to the working directory leads elsewhere on a server, and a file
on the author's machine does not exist there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from typing import Final

_ELSEWHERE: Final = (
    "the path is relative to the working directory, which is another on a server; read "
    "it with torch_package_importer, or from the version's assets"
)


class OpenedFiles:
    """The files that one thread opened for reading.

    Attributes:
        outside: Absolute paths that are neither in the version nor on every server.

    """

    def __init__(self, folder: str) -> None:
        self.outside: set[str] = set()
        self._known = tuple(
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

    def note(self, path: str) -> None:
        """Checks a path that is opened for reading.

        Raises:
            FileNotFoundError: It is relative to the working directory and leads to a
                file.

        """
        if not os.path.isabs(path):
            # The version's own folder may be given as a relative path.
            is_own = os.path.abspath(path).startswith(self._known[0])
            if os.path.isfile(path) and not is_own:
                raise FileNotFoundError(errno.ENOENT, _ELSEWHERE, path)
        elif (
            not path.startswith(self._known)
            and not path.endswith((".py", ".pyc"))
            and os.path.isfile(path)
        ):
            self.outside.add(path)


class _PerThread(threading.local):
    opened: OpenedFiles | None = None


_watching: Final = _PerThread()
_hooked: Final = threading.Event()


def _audit(event: str, args: tuple[object, ...]) -> None:
    """Python's audit hook: called until the end, for all that the program opens."""
    if event != "open":
        return
    opened = _watching.opened
    if opened is None:
        return
    path, _, flags = args
    if isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str):
            opened.note(path)


@contextlib.contextmanager
def watched_files(folder: str) -> Iterator[OpenedFiles]:
    """Watches the files that the calling thread opens in the block.

    Args:
        folder: The folder of the version.

    """
    if not _hooked.is_set():
        _hooked.set()
        sys.addaudithook(_audit)
    _watching.opened = opened = OpenedFiles(folder)
    try:
        yield opened
    finally:
        _watching.opened = None
