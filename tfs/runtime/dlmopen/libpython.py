"""Finds this Python's shared library, to load a second copy of it."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator


def find_libpython() -> str | None:
    """Returns the path of the ``libpython`` that belongs to this interpreter.

    If this process runs from a shared library, it is that one. For an executable that
    has Python built in, it is the library that is installed beside it. None if there is
    none.
    """
    # Not from sysconfig: before Python 3.12, threads that ask it for the first time at
    # once may be told that there is nothing.
    major, minor = sys.version_info[:2]
    name = f"libpython{major}.{minor}{sys.abiflags}.so.1.0"
    for path in (*_mapped(name), *_installed(name)):
        if os.path.isfile(path):
            return path
    return None


def _mapped(name: str) -> Iterator[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                path = line.split(maxsplit=5)[-1].rstrip("\n")
                if os.path.basename(path) == name:
                    yield path
    except OSError:
        return


def _installed(name: str) -> Iterator[str]:
    folders = [os.path.join(sys.base_prefix, "lib"), sysconfig.get_config_var("LIBDIR")]
    multiarch = getattr(sys.implementation, "_multiarch", None)
    if isinstance(multiarch, str):
        folders.append(os.path.join("/usr/lib", multiarch))
    for folder in folders:
        if isinstance(folder, str):
            yield os.path.join(folder, name)
