"""Platforms ``torchscript`` and ``torch_package``: archives that torch wrote, ``model.pt``."""

from __future__ import annotations

import os
import zipfile
from typing import Final

from tfs.core.errors import InvalidArgument
from tfs.core.resources import ResourceAllocation
from tfs.core.version.version_layout import ARCHIVE
from tfs.core.version_directory import SIGNATURES
from tfs.servables.source_reach import why_package
from tfs.servables.version_files import (
    ArchiveKind,
    VersionDescription,
    contents_of,
    copied_resources,
    describe,
    is_archive_of,
    mapped_resources,
)


class TorchScript:
    """See :class:`tfs.servables.platform.VersionReader`. Immutable."""

    name: Final = "torchscript"

    def recognizes(self, path: str) -> bool:
        return is_archive_of(os.path.join(path, ARCHIVE), ArchiveKind.TORCHSCRIPT)

    def runs_code(self, path: str) -> bool:
        """Returns False, as TorchScript's interpreter has no access to the system."""
        return False

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or ``signatures.json``'s."""
        return describe(path, self.name, self._own)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of the tensors, and of the file while it is read."""
        archive = os.path.join(path, ARCHIVE)
        return copied_resources(contents_of(archive, ArchiveKind.TORCHSCRIPT))

    def why_apart(self, path: str) -> str:
        return ""

    def _own(self, path: str) -> VersionDescription:
        if not os.path.isfile(os.path.join(path, SIGNATURES)):
            raise InvalidArgument(
                "TorchScript does not tell names and shapes of its outputs: write the "
                f"version with tfs.export.save, or put a {SIGNATURES} beside it"
            )
        return VersionDescription({})


_DEFAULT_ENTRY: Final = {"package": "model", "resource": "model.pkl"}


class TorchPackage:
    """See :class:`tfs.servables.platform.VersionReader`. Immutable."""

    name: Final = "torch_package"

    def recognizes(self, path: str) -> bool:
        return is_archive_of(os.path.join(path, ARCHIVE), ArchiveKind.PACKAGE)

    def runs_code(self, path: str) -> bool:
        return True

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or ``signatures.json``'s."""
        return describe(path, self.name, self._own)

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns the size of the archive, of what cannot be mapped, and of the code.

        Interpreters map tensors from one copy of the file; those that an edited
        archive holds compressed are read into memory of their own, whatever the
        file's size.
        """
        archive = os.path.join(path, ARCHIVE)
        return mapped_resources(contents_of(archive, ArchiveKind.PACKAGE))

    def why_apart(self, path: str) -> str:
        return why_package(os.path.join(path, ARCHIVE))

    def _own(self, path: str) -> VersionDescription:
        if not os.path.isfile(os.path.join(path, SIGNATURES)):
            raise InvalidArgument(
                "a torch.package archive does not tell its signatures: write the "
                f"version with tfs.export.save, or put a {SIGNATURES} beside it"
            )
        return VersionDescription({}, _find_entry(os.path.join(path, ARCHIVE)))


def _find_entry(archive: str) -> dict[str, object]:
    """Returns the usual pickle, or the only one of an archive that others wrote."""
    with zipfile.ZipFile(archive) as opened:
        names = [name.partition("/")[2] for name in opened.namelist()]
    pickles = [name for name in names if name.endswith(".pkl")]
    usual = f"{_DEFAULT_ENTRY['package']}/{_DEFAULT_ENTRY['resource']}"
    if usual in pickles:
        return dict(_DEFAULT_ENTRY)
    if len(pickles) != 1:
        raise InvalidArgument(
            f"the archive holds {len(pickles)} pickles and none is {usual}; write a "
            "manifest whose entry names package and resource"
        )
    folder, _, resource = pickles[0].rpartition("/")
    return {"package": folder.replace("/", "."), "resource": resource}
