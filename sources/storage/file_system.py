"""What a source has to know of the storage of versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a version directory at one moment. Immutable.

    Attributes:
        names: Its files and folders, top level only.
        fingerprint: Differs whenever a file was added, removed, renamed, resized
            or written again, or can be read now and could not before; also where times
            and sizes are the same, if the manifest differs or another directory is
            linked to. ``__pycache__`` does not count, because importing a version's
            code must not look like a change of the version.
        newest_change_s: When anything in it last changed, seconds since the epoch
            by the clock of the storage; None if the storage cannot tell.
        is_barred: Whether a file in it may not be read.
        is_linked: Whether its path, or something in it, is a link. Changes where that
            leads raise no event here.
        has_manifest: Whether a manifest is among its files; None if that was not looked
            at.
        changes: Differs also if a file was replaced by one of the same size and time, or
            its rights changed; empty if the storage cannot tell.
        folders: The paths of the directory and of those below it, which may be watched.

    """

    names: frozenset[str]
    fingerprint: str
    newest_change_s: float | None = None
    is_barred: bool = False
    is_linked: bool = False
    has_manifest: bool | None = None
    changes: str = ""
    folders: tuple[str, ...] = ()


class FileSystem(Protocol):
    """Reads directories, local or remote. Thread-safe.

    Implementors promise: every failure is an OSError, FileNotFoundError if the
    path is not there, NotADirectoryError if it is no directory; nothing is cached
    between calls; paths are joined with ``/``.
    """

    def list_directories(self, path: str) -> Sequence[str]:
        """Returns the names of the directories in ``path``, links followed."""
        ...

    def broken_links(self, path: str) -> Sequence[str]:
        """Returns the names of the links in ``path`` that lead to nothing."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether a file lies at ``path``; False when it is not there."""
        ...

    def contents(self, path: str) -> Contents:
        """Returns what lies in the directory ``path``, sub-folders included."""
        ...

    def place(self, path: str) -> str:
        """Returns the store or network mount with which ``path`` may stop answering.

        It never blocks and never raises, even while the place does not answer. It is
        empty for what always answers; only paths with a place can hang.
        """
        ...

    def gives_events(self, path: str) -> bool:
        """Whether the kernel reports every change below ``path``; never raises."""
        ...


def why(error: OSError) -> str:
    """Returns the system's words for the error, without the path they may carry."""
    return error.strerror or str(error) or type(error).__name__
