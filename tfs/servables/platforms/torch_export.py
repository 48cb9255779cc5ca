"""Platform ``torch_export``: ``model.pt2``, of torch.export or AOTInductor."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from tfs.core.errors import InvalidArgument
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version_directory import SIGNATURES
from tfs.servables.archive import (
    CODE_FACTOR,
    ArchiveKind,
    archive_resources,
    inspect_archive,
    is_archive_of,
    wrong_kind,
)
from tfs.servables.platform import LoadContext, VersionDescription, describe
from tfs.servables.platforms.exported_signature import (
    read_exported_signature,
    read_max_rows,
)
from tfs.servables.reach.exported_code import why_code
from tfs.servables.version_loader import VersionLoader

FILE: Final = "model.pt2"
_KINDS: Final = (ArchiveKind.EXPORTED, ArchiveKind.AOTINDUCTOR)


class TorchExport:
    """See :class:`tfs.servables.platform.Platform`. Immutable."""

    name: Final = "torch_export"

    def recognizes(self, path: str) -> bool:
        return is_archive_of(os.path.join(path, FILE), *_KINDS)

    def runs_code(self, path: str) -> bool:
        """Whether it holds machine code (AOTInductor), pickles or odd names."""
        return bool(self.why_apart(path))

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return VersionLoader(path, self, context)

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or else that of the program.

        Its signatures have the program's limit of rows in any case.
        """
        description = describe(path, self.name, self._own)
        max_rows = read_max_rows(os.path.join(path, FILE))
        if max_rows is None:
            return description
        bounded = {
            name: replace(signature, max_rows=max_rows)
            if signature.batched
            else signature
            for name, signature in description.signatures.items()
        }
        return replace(description, signatures=bounded)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of the mapped file; or of compiled tensors, and the file."""
        contents = inspect_archive(os.path.join(path, FILE))
        if contents.kind not in _KINDS:
            raise wrong_kind(contents.kind, ArchiveKind.EXPORTED)
        if contents.kind is ArchiveKind.EXPORTED:
            return archive_resources(contents)
        return ResourceAllocation.ram(
            contents.tensor_bytes + CODE_FACTOR * contents.other_bytes,
            contents.size_bytes,
        )

    def why_apart(self, path: str) -> str:
        file = os.path.join(path, FILE)
        if inspect_archive(file).kind is not ArchiveKind.EXPORTED:
            return f"{FILE} is machine code"
        try:
            why = why_code(file)
        except Exception:
            why = "it cannot be read"  # loading it says what is wrong
        return f"{FILE} is more than a graph: {why}" if why else ""

    def _own(self, path: str) -> VersionDescription:
        if os.path.isfile(os.path.join(path, SIGNATURES)):
            return VersionDescription({})
        archive = os.path.join(path, FILE)
        if inspect_archive(archive).kind is not ArchiveKind.EXPORTED:
            raise InvalidArgument(
                "an AOTInductor package does not tell its signature: write the version "
                f"with tfs.export.save, or put a {SIGNATURES} beside it"
            )
        return VersionDescription({DEFAULT_SIGNATURE: read_exported_signature(archive)})
