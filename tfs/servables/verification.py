"""Whether a version's files are those that were written.

A manifest has the digest of each file. An archive that no manifest lists has a checksum
of each of its records, because every zip file has.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import Final

from tfs.core.errors import DataLoss, ServingError
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.version_directory import (
    is_committed,
    payload_files,
    read_failure,
    read_manifest,
    verify_files,
)

_ARCHIVES: Final = (".pt", ".pt2")
_READ_BYTES: Final = 1 << 20


def verify_version(path: str) -> None:
    """Checks every file with a digest, and every other archive. Reads them all.

    Raises:
        DataLoss: A file is damaged, cut short or missing; names it.
        FailedPrecondition: A file may not be read.
        Unavailable: A file cannot be read now.

    """
    listed: set[str] = set()
    if is_committed(path):
        manifest = read_manifest(path)
        verify_files(path, manifest)
        listed = set(manifest.files)
    for name in payload_files(path):
        file = os.path.join(path, name)
        if name not in listed and name.endswith(_ARCHIVES):
            _verify_archive(file)


def _verify_archive(file: str) -> None:
    try:
        if not zipfile.is_zipfile(file):
            return  # weights of an old torch are none; who reads any other says so
        with zipfile.ZipFile(file) as archive:
            _check_count(file, archive)
            for info in archive.infolist():
                with archive.open(info) as record:
                    while record.read(_READ_BYTES):
                        yield_to_requests()
    except _OF_DAMAGE as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise read_failure(error, f"cannot read {file}") from error
        raise DataLoss(
            f"{file} is damaged: {error}; write the version again"
        ) from error


def _check_count(file: str, archive: zipfile.ZipFile) -> None:
    """Checks that the directory lists as many records as its end says.

    zipfile does not: a length that flipped hides the records behind it.

    Raises:
        zipfile.BadZipFile: It lists fewer.

    """
    with open(file, "rb") as opened:
        opened.seek(-(_END_BYTES + len(archive.comment)), os.SEEK_END)
        end = opened.read(_END_BYTES)
    count = int.from_bytes(end[10:12], "little")
    if count not in (len(archive.infolist()), _COUNTED_ELSEWHERE):
        raise zipfile.BadZipFile(f"its directory lacks some of {count} records")


_END_BYTES: Final = 22
_COUNTED_ELSEWHERE: Final = 0xFFFF  # in the record of a larger format

# What zipfile raises of flipped bytes, beside its own error: for names that are no text,
# flags and methods that it does not know, streams that are none, and offsets that no file
# has (EINVAL).
_OF_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # of encryption; NotImplementedError is one
)


@contextlib.contextmanager
def damage_told(path: str) -> Iterator[None]:
    """Has damage of a version told as such, whatever reading its files ran into.

    Raises:
        DataLoss: In place of any error in the block, if a file is damaged, or if the error
            is not one that is meant for people.

    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            what = f"cannot read {error.filename or path}"
            raise read_failure(error, what) from error
        verify_version(path)
        if isinstance(error, ServingError):
            raise
        raise DataLoss(
            f"the version cannot be read: {error}; write it again"
        ) from error
