"""Platform ``python``: a class in ``servable.py``, which may have weights beside it."""

from __future__ import annotations

import os
from typing import Final

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.version.manifest import read_signatures
from tfs.core.version_directory import SIGNATURES
from tfs.servables.platform import LoadContext, VersionDescription, describe
from tfs.servables.platforms.class_literals import class_literal, syntax_error
from tfs.servables.reach.payload_reach import why_folder
from tfs.servables.version_loader import VersionLoader

FILE: Final = "servable.py"
_ASSUMED_BYTES: Final = 16 << 20
"""Bytes that the code and its objects are assumed to take, because nothing in the
version tells."""


class PythonModel:
    """See :class:`tfs.servables.platform.Platform`. Immutable."""

    name: Final = "python"

    def recognizes(self, path: str) -> bool:
        return os.path.isfile(os.path.join(path, FILE))

    def runs_code(self, path: str) -> bool:
        return True

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return VersionLoader(path, self, context)

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or else that of the class's source."""
        return describe(path, self.name, self._own)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of weights and assets, twice: most code reads them in."""
        if not os.path.isfile(os.path.join(path, FILE)):
            raise NotFound(f"no {FILE} in the version")
        size_bytes = 0
        for folder, _, names in os.walk(path):
            size_bytes += sum(_size_bytes(os.path.join(folder, n)) for n in names)
        return ResourceAllocation.ram(_ASSUMED_BYTES + 2 * size_bytes)

    def why_apart(self, path: str) -> str:
        return why_folder(path)

    def _own(self, path: str) -> VersionDescription:
        file = os.path.join(path, FILE)
        concurrency = literal_concurrency(file)
        entry = {} if concurrency is None else {"concurrency": concurrency}
        if os.path.isfile(os.path.join(path, SIGNATURES)):
            return VersionDescription({}, entry)
        form = literal_signatures(file)
        return VersionDescription(read_signatures(form, FILE), entry)


def literal_signatures(path: str) -> object:
    """Returns ``signatures`` of the class in a ``servable.py``, without running it.

    Raises:
        InvalidArgument: The file is no Python source, or no class states its signatures
            as a plain dict.

    """
    try:
        found = class_literal(path, "signatures")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{error.message}; write the version with tfs.export.save_python"
        ) from error
    if found is None:
        fault = syntax_error(path)
        if fault:
            raise InvalidArgument(f"{FILE} is no Python that can be run: {fault}")
        raise InvalidArgument(
            f"no class in {FILE} says its signatures; write the version with "
            f"tfs.export.save_python, or put a {SIGNATURES} beside it"
        )
    return found[1]


def literal_concurrency(path: str) -> object:
    """Returns ``concurrency`` of the class in a ``servable.py``, None if it has none.

    Raises:
        InvalidArgument: The file is no source, or the value is not a plain number.

    """
    found = class_literal(path, "concurrency")
    return None if found is None else found[1]


def _size_bytes(path: str) -> int:
    """Returns a file's size; 0 for a link that leads nowhere, as editors leave them."""
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
