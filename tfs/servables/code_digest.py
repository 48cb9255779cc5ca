"""Whether two versions run the same code, whatever their weights; without torch.

Measurements of a version also hold for the next one if only the weights differ. So the
digest covers everything in the version except the bytes of tensors, and also torch and the
host. The sizes of tensors are included, because they decide how long a call takes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import zipfile
from collections.abc import Iterator
from typing import Final

from tfs.core.loop.pacing import yield_to_requests
from tfs.core.version.signature_json import signature_to_json
from tfs.core.version_directory import (
    EXAMPLES,
    is_committed,
    payload_files,
    read_manifest,
)
from tfs.servables.archives import (
    ARCHIVE_ENDS,
    READ_BYTES,
    is_tensor_record,
    kind_of,
)

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
