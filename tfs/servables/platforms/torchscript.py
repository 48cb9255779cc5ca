"""Platform ``torchscript``: a scripted or traced module, ``model.pt``."""

from __future__ import annotations

import os
from typing import Final

from tfs.core.errors import InvalidArgument
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.version_directory import SIGNATURES
from tfs.servables.archive import (
    CODE_FACTOR,
    ArchiveKind,
    inspect_archive,
    is_archive_of,
    wrong_kind,
)
from tfs.servables.platform import LoadContext, VersionDescription, describe
from tfs.servables.version_loader import VersionLoader

FILE: Final = "model.pt"


class TorchScript:
    """See :class:`tfs.servables.platform.Platform`. Immutable."""

    name: Final = "torchscript"

    def recognizes(self, path: str) -> bool:
        return is_archive_of(os.path.join(path, FILE), ArchiveKind.TORCHSCRIPT)

    def runs_code(self, path: str) -> bool:
        """Returns False, as TorchScript's interpreter has no access to the system."""
        return False

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return VersionLoader(path, self, context)

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or ``signatures.json``'s."""
        return describe(path, self.name, self._own)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of the tensors, and of the file while it is read."""
        contents = inspect_archive(os.path.join(path, FILE))
        if contents.kind is not ArchiveKind.TORCHSCRIPT:
            raise wrong_kind(contents.kind, ArchiveKind.TORCHSCRIPT)
        return ResourceAllocation.ram(
            contents.tensor_bytes + CODE_FACTOR * contents.other_bytes,
            contents.size_bytes,
        )

    def why_apart(self, path: str) -> str:
        return ""

    def _own(self, path: str) -> VersionDescription:
        if not os.path.isfile(os.path.join(path, SIGNATURES)):
            raise InvalidArgument(
                "TorchScript does not tell names and shapes of its outputs: write the "
                f"version with tfs.export.save, or put a {SIGNATURES} beside it"
            )
        return VersionDescription({})
