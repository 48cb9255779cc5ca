"""A store of versions in memory, whose n-th call a test may let fail."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import BinaryIO

from sources.servable_to_monitor import StoragePath
from tfs.core.version.manifest import FileEntry, Manifest, signature_from_json

SIGNATURE = signature_from_json(
    {"method": "predict", "inputs": {}, "outputs": {"y": {"dtype": "int8", "shape": [1]}},
     "batched": False},
    "",
)  # fmt: skip


class FakeRemote:
    """Remote files in a dict, with a fault at the n-th call. Thread-safe enough."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.num_calls = 0
        self.num_copies = 0
        self.failing_call = 0

    def read(self, path: str) -> bytes:
        self._enter()
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path]

    def copy(self, path: str, to: BinaryIO) -> str:
        self.num_copies += 1
        data = self.read(path)
        to.write(data)
        return hashlib.sha256(data).hexdigest()

    def file_sizes(self, path: str) -> Mapping[str, int]:
        self._enter()
        below = path + "/"
        return {
            name.removeprefix(below): len(data)
            for name, data in self.files.items()
            if name.startswith(below)
        }

    def publish(self, url: str, **files: bytes) -> StoragePath:
        """Writes a version with a manifest; ``_`` in a name stands for ``.``."""
        entries = {}
        for key, data in files.items():
            name = key.replace("_", ".")
            self.files[f"{url}/{name}"] = data
            entries[name] = FileEntry(len(data), hashlib.sha256(data).hexdigest())
        manifest = Manifest("torch_package", entries, {"a": SIGNATURE})
        self.files[f"{url}/servable.json"] = manifest.to_json().encode()
        fingerprint = hashlib.sha256(self.files[f"{url}/servable.json"]).hexdigest()
        return StoragePath(url, fingerprint[:8], "torch_package")

    def _enter(self) -> None:
        self.num_calls += 1
        if self.num_calls == self.failing_call:
            raise OSError(5, "Input/output error")
