"""Looks into the files of a version, without torch and without running code.

* What the version is: its signatures, and what to call in it.
* Which archive it is, and how large its tensors are.
* Whether files are those that were written: a manifest has the digest of each file, and an
  archive that no manifest lists a checksum of each of its records, because every zip file
  has.
* Whether two versions run the same code, whatever their weights: measurements of one then
  hold for the other. So the digest covers everything but the bytes of tensors, and also torch
  and the host. The sizes of tensors are included, because they decide how long a call takes.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tfs.core.errors import DataLoss, InvalidArgument, NotFound, ServingError
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.resources import ResourceAllocation
from tfs.core.signature import Signature
from tfs.core.version.manifest import read_signatures, read_strict, signature_to_json
from tfs.core.version_directory import (
    EXAMPLES,
    SIGNATURES,
    is_committed,
    payload_files,
    read_description,
    read_failure,
    read_manifest,
    verify_files,
)


class ArchiveKind(enum.Enum):
    """The kinds of archives, by what wrote them."""

    PACKAGE = "torch.package"
    TORCHSCRIPT = "TorchScript"
    EXPORTED = "torch.export"
    AOTINDUCTOR = "AOTInductor"
    CHECKPOINT = "torch.save"
    OTHER = "unknown"


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """What the directory of a zip archive shows. Immutable.

    Attributes:
        kind: What wrote it.
        size_bytes: Size of the file.
        tensor_bytes: Summed sizes of the tensors' elements, uncompressed.
        compressed_tensor_bytes: The part of these that the file holds compressed,
            as other zip programs write it; torch never does.
        other_bytes: Summed sizes of everything else: code, pickles, resources.

    """

    kind: ArchiveKind
    size_bytes: int
    tensor_bytes: int
    compressed_tensor_bytes: int
    other_bytes: int


def inspect_archive(path: str) -> ArchiveContents:
    """Reads the directory of the zip archive at ``path``; cheap whatever its size.

    Raises:
        NotFound: There is no such file.
        DataLoss: It is no zip archive, or a damaged one.
        FailedPrecondition: It may not be read.
        Unavailable: It cannot be read now.

    """
    try:
        with zipfile.ZipFile(path) as archive:
            if min((each.header_offset for each in archive.infolist()), default=0):
                # What is at the end of a file cut short may be an archive within it.
                raise zipfile.BadZipFile("its first record does not begin it")
            records = [
                (
                    _inner(info.filename),
                    info.file_size,
                    info.compress_type == zipfile.ZIP_STORED,
                )
                for info in archive.infolist()
                if not info.is_dir()
            ]
        size_bytes = os.path.getsize(path)
    except FileNotFoundError as error:
        raise NotFound(f"no {os.path.basename(path)} in the version") from error
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        # For a file that was cut short, zipfile seeks to an offset that is invalid
        # (EINVAL).
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise read_failure(error, f"cannot read {path}") from error
        raise DataLoss(
            f"{os.path.basename(path)} is not a readable archive ({error}); it may "
            "have been cut short: write the version again"
        ) from error
    kind = kind_of({name for name, _, _ in records})
    tensors = [
        (size, is_stored)
        for name, size, is_stored in records
        if is_tensor_record(name, kind)
    ]
    tensor_bytes = sum(size for size, _ in tensors)
    return ArchiveContents(
        kind=kind,
        size_bytes=size_bytes,
        tensor_bytes=tensor_bytes,
        compressed_tensor_bytes=sum(s for s, is_stored in tensors if not is_stored),
        other_bytes=sum(size for _, size, _ in records) - tensor_bytes,
    )


def contents_of(path: str, *kinds: ArchiveKind) -> ArchiveContents:
    """As ``inspect_archive``, for an archive that has to be of one of these kinds.

    Raises:
        InvalidArgument: It is of another kind.
        DataLoss: It is of no kind, and may be damaged.
        ServingError: It cannot be read.

    """
    contents = inspect_archive(path)
    if contents.kind not in kinds:
        raise _wrong_kind(contents.kind, kinds[0])
    return contents


CODE_FACTOR: Final = 8
"""Generous estimate of the bytes that code and its objects take per byte in the
archive."""


def copied_resources(contents: ArchiveContents) -> ResourceAllocation:
    """Returns what one interpreter takes that copies the tensors out of the file."""
    return ResourceAllocation.ram(
        contents.tensor_bytes + CODE_FACTOR * contents.other_bytes, contents.size_bytes
    )


def mapped_resources(contents: ArchiveContents) -> ResourceAllocation:
    """Returns what one interpreter takes that maps the tensors from the file."""
    return ResourceAllocation.ram(
        contents.size_bytes
        + contents.compressed_tensor_bytes
        + CODE_FACTOR * contents.other_bytes
    )


def is_archive_of(path: str, *kinds: ArchiveKind) -> bool:
    """Whether the file exists, can be read, and is of one of these kinds."""
    try:
        contents_of(path, *kinds)
    except ServingError:
        return False
    return True


def _wrong_kind(found: ArchiveKind, wanted: ArchiveKind) -> ServingError:
    """Returns the error for an archive of another kind; one of no kind is damaged."""
    if found is ArchiveKind.CHECKPOINT:
        return InvalidArgument(
            "the file was written by torch.save, which keeps no code; write the "
            "version with tfs.export.save"
        )
    words = f"the file was written by {found.value}, not by {wanted.value}"
    if found is ArchiveKind.OTHER:
        return DataLoss(f"{words}; it may be damaged: write the version again")
    return InvalidArgument(words)


def _inner(name: str) -> str:
    """Returns a record's name without the folder that torch puts around all."""
    return name.partition("/")[2] or name


def kind_of(names: set[str]) -> ArchiveKind:
    """Tells an archive's kind by the names of its records."""
    if ".data/extern_modules" in names:
        return ArchiveKind.PACKAGE
    if "archive_format" in names or "models/model.json" in names:
        if any(name.startswith("data/aotinductor/") for name in names):
            return ArchiveKind.AOTINDUCTOR
        return ArchiveKind.EXPORTED
    if "serialized_exported_program.json" in names:
        return ArchiveKind.EXPORTED
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return ArchiveKind.TORCHSCRIPT
    if "data.pkl" in names:
        return ArchiveKind.CHECKPOINT
    return ArchiveKind.OTHER


def is_tensor_record(name: str, kind: ArchiveKind) -> bool:
    """Whether a record holds elements of a tensor."""
    if kind is ArchiveKind.PACKAGE:
        return name.startswith(".data/") and name.endswith(".storage")
    if kind in (ArchiveKind.TORCHSCRIPT, ArchiveKind.CHECKPOINT):
        return name.startswith(("data/", "constants/"))
    return "/weights/" in name or "/constants/" in name or name.endswith((".pt", ".so"))


ARCHIVE_ENDS: Final = (".pt", ".pt2")
READ_BYTES: Final = 1 << 20


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
        if name not in listed and name.endswith(ARCHIVE_ENDS):
            _verify_archive(file)


def _verify_archive(file: str) -> None:
    try:
        if not zipfile.is_zipfile(file):
            return  # weights of an old torch are none; who reads any other says so
        with zipfile.ZipFile(file) as archive:
            _check_count(file, archive)
            for info in archive.infolist():
                with archive.open(info) as record:
                    while record.read(READ_BYTES):
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


_RECORDED_AT_RANDOM: Final = ".data/serialization_id"


def code_digest(path: str, host: str | None = None, device: str = "cpu") -> str:
    """Returns a hex digest of the version directory's code. Reads all but tensors.

    Args:
        path: The version directory.
        host: A name of this machine; None finds one.
        device: The device on which the version computes. Measurements on one device do
            not hold for another.

    Raises:
        OSError: A file cannot be read.

    """
    digest = hashlib.sha256()
    known: dict[str, str] = {}
    if is_committed(path):
        manifest = read_manifest(path)
        known = {name: entry.sha256 for name, entry in manifest.files.items()}
        signatures = {n: signature_to_json(s) for n, s in manifest.signatures.items()}
        form = [manifest.platform, dict(manifest.entry), signatures]
        digest.update(json.dumps(form, sort_keys=True).encode())
    for name in payload_files(path):
        if name == EXAMPLES:
            continue
        digest.update(f"\n{name}\n".encode())
        file = os.path.join(path, name)
        for part in _parts(name, file, known.get(name)):
            yield_to_requests()
            digest.update(part)
    digest.update(f"\n{_torch_version()}\n{host or host_name()}".encode())
    if device != "cpu":
        digest.update(f"\n{device}".encode())
    return digest.hexdigest()


@functools.cache
def host_name() -> str:
    """Returns a name for this machine and its processor."""
    return f"{platform.node()} {platform.machine()} {os.cpu_count()} {_processor()}"


def _parts(name: str, file: str, sha256: str | None) -> Iterator[bytes]:
    if name.endswith(ARCHIVE_ENDS) and zipfile.is_zipfile(file):
        yield from _archive_parts(file)
    elif name.endswith(".safetensors"):
        yield _safetensors_header(file)
    elif sha256 is not None:
        yield sha256.encode()
    else:
        with open(file, "rb") as opened:
            while chunk := opened.read(READ_BYTES):
                yield chunk


def _archive_parts(file: str) -> Iterator[bytes]:
    with zipfile.ZipFile(file) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        inner = {info.filename: info.filename.partition("/")[2] for info in infos}
        kind = kind_of(set(inner.values()))
        for info in sorted(infos, key=lambda info: info.filename):
            name = inner[info.filename]
            if name == _RECORDED_AT_RANDOM:
                continue
            yield f"{name} {info.file_size}\n".encode()
            if not is_tensor_record(name, kind):
                yield archive.read(info)


def _safetensors_header(file: str) -> bytes:
    with open(file, "rb") as opened:
        size_bytes = int.from_bytes(opened.read(8), "little")
        return opened.read(min(size_bytes, READ_BYTES))


@functools.cache  # finding it parses the package's metadata, which takes milliseconds
def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


@dataclass(frozen=True, slots=True)
class VersionDescription:
    """What a version is, before anything of it runs. Immutable.

    Attributes:
        signatures: The signatures by key.
        entry: What to call in the payload; only the platform reads it.

    """

    signatures: Mapping[str, Signature]
    entry: Mapping[str, object] = field(default_factory=dict)


def describe(
    path: str, platform: str, own: Callable[[str], VersionDescription]
) -> VersionDescription:
    """Returns the description of a version.

    That is the manifest if there is one, else ``signatures.json``, else what the
    platform can find out by itself.

    Args:
        path: The version directory.
        platform: The platform it is read as.
        own: The platform's own description. Its signatures are asked for last, and its
            entry whenever there is no manifest. It raises whatever prevents that.

    Raises:
        ServingError: The description is damaged, of another platform, or absent.

    """
    if is_committed(path):
        manifest = read_manifest(path)
        if manifest.platform != platform:
            raise InvalidArgument(
                f"its manifest says platform {manifest.platform!r}, the configuration "
                f"says {platform!r}; leave model_platform out, or correct it"
            )
        return VersionDescription(manifest.signatures, manifest.entry)
    own_description = own(path)
    by_hand = os.path.join(path, SIGNATURES)
    if not os.path.isfile(by_hand):
        return own_description
    return VersionDescription(_read_by_hand(by_hand), own_description.entry)


def _read_by_hand(path: str) -> Mapping[str, Signature]:
    try:
        form = read_strict(read_description(path))
        return read_signatures(form, SIGNATURES)
    except (OSError, ValueError, RecursionError) as error:
        raise DataLoss(f"bad {SIGNATURES}: {error}") from error
    except InvalidArgument as error:
        raise DataLoss(error.message) from error
