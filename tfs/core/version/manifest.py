"""The manifest of a version directory: what the version is, file by file.

docs/version-directory.md describes the form. No key is repeated in it: Python's reader keeps
the last of several equal keys without a word, but in a file that people write, a repeated
key is a line that was copied and of which one half was to be changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tfs.core.errors import DataLoss, InvalidArgument
from tfs.core.signature import Signature
from tfs.core.version.signature_json import signature_from_json, signature_to_json

FORMAT: Final = 1
MANIFEST: Final = "servable.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A payload file's promise: size and hex digest."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Producer:
    """Who wrote the version: versions of TFS and torch, ISO time of creation."""

    tfs: str = ""
    torch: str = ""
    created: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``servable.json``. Immutable.

    Attributes:
        platform: "torch_package" and so on.
        files: Every payload file by its path relative to the version directory,
            ``/``-separated, inside it.
        entry: The platform's own: which pickle, which resource.
        signatures: The signatures, by key.
        producer: Who wrote it.

    """

    platform: str
    files: Mapping[str, FileEntry]
    signatures: Mapping[str, Signature]
    entry: Mapping[str, object] = field(default_factory=dict)
    producer: Producer = field(default_factory=Producer)

    def to_json(self) -> str:
        """Returns the file's text."""
        form = {
            "format": FORMAT,
            "platform": self.platform,
            "files": {
                name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256}
                for name, entry in self.files.items()
            },
            "entry": dict(self.entry),
            "signatures": {n: signature_to_json(s) for n, s in self.signatures.items()},
            "producer": {
                "tfs": self.producer.tfs,
                "torch": self.producer.torch,
                "created": self.producer.created,
            },
        }
        return json.dumps(form, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Reads the file's text.

        Raises:
            DataLoss: Not a manifest, or of a newer format; says where.

        """
        try:
            form: Any = read_strict(text)
            if not isinstance(form, dict):
                raise TypeError("not an object")
            if form["format"] != FORMAT:
                raise ValueError(f"format {form['format']!r} is not {FORMAT}")
            files = {
                inside(name): FileEntry(int(f["size_bytes"]), str(f["sha256"]))
                for name, f in form["files"].items()
            }
            signatures = read_signatures(form["signatures"], where)
            producer = form.get("producer", {})
            return cls(
                platform=str(form["platform"]),
                files=files,
                signatures=signatures,
                entry=dict(form.get("entry", {})),
                producer=Producer(
                    **{k: str(producer.get(k, "")) for k in ("tfs", "torch", "created")}
                ),
            )
        except (
            KeyError, TypeError, ValueError, AttributeError, RecursionError,
            OverflowError,
        ) as error:  # fmt: skip
            what = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise DataLoss(f"bad {MANIFEST} in {where}: {what}") from error
        except InvalidArgument as error:
            raise DataLoss(error.message) from error


def read_signatures(form: object, where: str) -> dict[str, Signature]:
    """Reads the ``signatures`` object of a manifest or of ``signatures.json``.

    Raises:
        InvalidArgument: Saying where and what is wrong.

    """
    if not isinstance(form, dict) or not form:
        raise InvalidArgument(f"{where}: signatures must be a non-empty object")
    return {
        str(name): signature_from_json(part, f"{where}, signature {name!r}")
        for name, part in form.items()
    }


def inside(name: str) -> str:
    """Returns a file's name if it stays inside the version directory.

    Raises:
        ValueError: It leads out of it; names it.

    """
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"file name {name!r} leaves the version directory")
    return name


def read_strict(text: str) -> object:
    """Returns the value of a JSON text.

    Raises:
        ValueError: It is not JSON, or an object has a key twice; names the key.
        RecursionError: Lists or objects are nested too deeply.

    """
    value: object = json.loads(text, object_pairs_hook=_object)
    return value


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found
