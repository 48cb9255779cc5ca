"""A version directory: what a training pipeline drops and a server serves.

    <base_path>/<version>/
      servable.json   the manifest, written last: its presence commits the version
      model.pt ...    the payload, platform by platform
      examples.bin, batching_params.pbtxt, statistics.json, assets/, assets.extra/   optional

Writers fill a sibling ``.tmp-*`` directory and rename it, so a version appears
whole or not at all (docs/version-directory.md). Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.signature import Signature
from tfs.core.system.replaced_file import TEMPORARY_PREFIX, sync
from tfs.core.tensor_view import TensorView
from tfs.core.version.manifest import MANIFEST, FileEntry, Manifest, Producer
from tfs.core.version.version_layout import LAYOUTS

EXAMPLES: Final = "examples.bin"
SIGNATURES: Final = "signatures.json"
BATCHING_PARAMETERS: Final = "batching_params.pbtxt"
WARMUP_REQUESTS: Final = "assets.extra/tf_serving_warmup_requests"

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TAKEN: Final = "{} exists; a version is never overwritten: give it the next number"

MAX_DESCRIPTION_BYTES: Final = 4 << 20
"""Largest manifest or ``signatures.json``: reading JSON holds up every other thread."""

_READ_BYTES = 1 << 20


def is_committed(path: str) -> bool:
    """Whether the directory holds a manifest."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def read_manifest(path: str) -> Manifest:
    """Reads the manifest of the version directory ``path``.

    Raises:
        NotFound: There is no manifest (any more).
        DataLoss: It is not one.
        FailedPrecondition: It is there and may not be read.
        Unavailable: It cannot be read now.

    """
    try:
        text = read_description(os.path.join(path, MANIFEST))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"no {MANIFEST} in {path}") from error
    except UnicodeDecodeError as error:
        raise DataLoss(f"bad {MANIFEST} in {path}: not UTF-8") from error
    except ValueError as error:
        raise DataLoss(f"bad {MANIFEST} in {path}: {error}") from error
    except OSError as error:
        raise read_failure(error, f"cannot read {MANIFEST} in {path}") from error
    return _parse_manifest(text, path)


@functools.lru_cache(maxsize=64)  # a load asks for its manifest some four times
def _parse_manifest(text: str, where: str) -> Manifest:
    return Manifest.from_json(text, where)


def read_description(path: str) -> str:
    """Returns the text of a manifest or of a ``signatures.json``.

    Raises:
        OSError: It cannot be read.
        ValueError: It is absurdly large, or not UTF-8 (``UnicodeDecodeError``).

    """
    with open(path, "rb") as file:
        content = file.read(MAX_DESCRIPTION_BYTES + 1)
    if len(content) > MAX_DESCRIPTION_BYTES:
        raise ValueError(f"larger than {MAX_DESCRIPTION_BYTES >> 20} MiB")
    return content.decode()


def read_failure(error: OSError, what: str) -> ServingError:
    """Returns the error for a file of a version that could not be read.

    What is not there, or may not be read, stays so until somebody changes it: it is not
    tried again by itself. A store that does not answer may do so the next time.
    """
    text = f"{what}: {error.strerror or error}"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return DataLoss(text)
    if isinstance(error, PermissionError | IsADirectoryError):
        return FailedPrecondition(text)
    return Unavailable(text)


def verify_files(path: str, manifest: Manifest) -> None:
    """Checks size and digest of every file the manifest names. Reads them all.

    Raises:
        DataLoss: A file is missing or differs; names it and what differs.
        FailedPrecondition: A file may not be read.
        Unavailable: A file cannot be read now.

    """
    verify_sizes(path, manifest)
    for name, promised in manifest.files.items():
        yield_to_requests()
        file = os.path.join(path, name)
        try:
            actual = file_digest(file)
        except OSError as error:
            raise read_failure(error, f"cannot read {file}") from error
        if actual != promised.sha256:
            raise DataLoss(
                f"{file} does not match the sha256 in its manifest; "
                "write the version again"
            )


def verify_sizes(path: str, manifest: Manifest) -> None:
    """Checks that every file the manifest names is there and whole. Reads none.

    Raises:
        DataLoss: A file is missing or has another size; names it.
        FailedPrecondition: A file may not be looked at.
        Unavailable: A file cannot be looked at now.

    """
    for name, promised in manifest.files.items():
        file = os.path.join(path, name)
        try:
            size_bytes = os.path.getsize(file)
        except FileNotFoundError as error:
            raise DataLoss(
                f"{file} is not there, and the manifest names it; write the version again"
            ) from error
        except OSError as error:
            raise read_failure(error, f"cannot read {file}") from error
        if size_bytes != promised.size_bytes:
            raise DataLoss(
                f"{file} has {size_bytes} bytes, its manifest says "
                f"{promised.size_bytes}; write the version again"
            )


def check_payload(path: str, manifest: Manifest) -> None:
    """Checks that there is a payload of the manifest's platform, listed or not.

    Raises:
        DataLoss: There is none; names the file and the platform.

    """
    layout = LAYOUTS.get(manifest.platform)
    if layout and not any(os.path.isfile(os.path.join(path, n)) for n in layout.files):
        raise DataLoss(
            f"there is no {' and no '.join(layout.files)} in {path}, which its manifest says "
            f"is of platform {manifest.platform!r}; write the version again, or correct "
            "the manifest"
        )


def file_digest(path: str) -> str:
    """Returns the hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def check_files(path: str) -> None:
    """Checks that a version holds nothing that reading could wait for, for ever.

    Raises:
        FailedPrecondition: A file is a pipe, a socket or a device; names it.

    """
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            if not os.path.isfile(file) and os.path.exists(file):
                raise FailedPrecondition(
                    f"{file} is a pipe, a socket or a device; a version holds files and "
                    "folders: remove it"
                )


def payload_files(path: str) -> list[str]:
    """Returns the relative paths of all files under ``path`` but the manifest.

    ``__pycache__`` folders are left out: they appear when a version's code is
    imported, and belong to the interpreter that made them.
    """
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            relative = os.path.relpath(os.path.join(folder, name), path)
            if relative != MANIFEST:
                found.append(relative.replace(os.sep, "/"))
    return sorted(found)


@contextlib.contextmanager
def new_version(base_path: str, version: int) -> Iterator[str]:
    """Yields a temporary directory to fill; publishes it as ``version`` on success.

    The directory appears under its final name by one rename, after its files were
    flushed to disk; if the block raises, nothing is left behind.

    The block fills the directory and calls :func:`commit` last.

    Raises:
        InvalidArgument: The number is none that a server would find, or there is no
            base path.
        FailedPrecondition: The version exists already; it was not touched.
        OSError: The directory cannot be written; nothing is left behind. Where the disk is
            full, it names a file, or the version.

    """
    if not isinstance(version, int) or not 0 <= version < 1 << 63:
        raise InvalidArgument(
            f"version {version!r} is no whole number of up to 63 bits"
        )
    if not base_path:
        raise InvalidArgument("the base path is empty; name the model's directory")
    final = os.path.join(base_path, str(version))
    is_first = not os.path.lexists(base_path)
    os.makedirs(base_path, exist_ok=True)
    if os.path.lexists(final):
        raise FailedPrecondition(_TAKEN.format(final))
    temporary = tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}{version}-", dir=base_path)
    try:
        os.chmod(temporary, 0o755)
        yield temporary
        for name in (*payload_files(temporary), MANIFEST):
            sync(os.path.join(temporary, name))
        for folder, _, _ in os.walk(temporary):
            sync(folder)
        try:
            os.rename(temporary, final)
        except OSError as error:
            if not os.path.lexists(final):
                raise
            raise FailedPrecondition(_TAKEN.format(final)) from error
        sync(base_path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            # A write does not say of which file it was.
            error.filename = error.filename or final
        shutil.rmtree(temporary, ignore_errors=True)
        if is_first:
            with contextlib.suppress(OSError):  # another version has appeared
                os.rmdir(base_path)
        raise


def commit(
    path: str,
    platform: str,
    signatures: Mapping[str, Signature],
    entry: Mapping[str, object],
    producer: Producer,
) -> Manifest:
    """Writes the manifest over every file that ``path`` holds; returns it.

    Call it last, inside :func:`new_version`.
    """
    files = {}
    for name in payload_files(path):
        file = os.path.join(path, name)
        files[name] = FileEntry(os.path.getsize(file), file_digest(file))
    manifest = Manifest(platform, files, signatures, entry, producer)
    Path(path, MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def fingerprint(path: str) -> str:
    """Returns a digest of names, sizes and mtimes: differs when files are replaced.

    Cheap (no contents are read); for noticing a version overwritten in place.
    """
    digest = hashlib.sha256()
    for name in (*payload_files(path), MANIFEST):
        try:
            stat = os.stat(os.path.join(path, name))
        except OSError:
            digest.update(f"{name} gone\n".encode())
            continue
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def check_examples(folder: str, signatures: Mapping[str, Signature]) -> None:
    """Checks that the example inputs of signatures lie within the file. Reads nothing.

    Raises:
        DataLoss: One does not; names the signature, the input and both sizes.

    """
    try:
        size_bytes = os.path.getsize(os.path.join(folder, EXAMPLES))
    except OSError:
        size_bytes = 0
    for key, signature in signatures.items():
        for name, slot in signature.examples.items():
            item_bytes = signature.inputs[name].dtype.item_bytes
            end = slot.offset + math.prod(slot.shape) * item_bytes
            if slot.value is None and end > size_bytes:
                raise DataLoss(
                    f"signature {key!r}: the example of input {name!r} ends at byte "
                    f"{end} of {EXAMPLES}, which has {size_bytes}; correct its shape and "
                    "offset, or leave the example out"
                )


def read_example(folder: str, signature: Signature) -> dict[str, TensorView]:
    """Returns a signature's example inputs, defaults included.

    Raises:
        DataLoss: ``examples.bin`` is shorter than the signature says.

    """
    data = b""
    path = os.path.join(folder, EXAMPLES)
    if os.path.isfile(path):
        with open(path, "rb") as file:
            data = file.read()
    views = dict(signature.defaults)
    for name, slot in signature.examples.items():
        dtype = signature.inputs[name].dtype
        try:
            if slot.value is not None:
                views[name] = TensorView.checked(dtype, slot.shape, slot.value)
                continue
            end = slot.offset + math.prod(slot.shape) * dtype.item_bytes
            views[name] = TensorView.checked(dtype, slot.shape, data[slot.offset : end])
        except (KeyError, ValueError) as error:
            raise DataLoss(
                f"the example of input {name!r} does not fit {EXAMPLES} beside "
                f"{MANIFEST}: {error}"
            ) from error
    return views
