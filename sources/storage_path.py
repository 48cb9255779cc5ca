"""Where a version lies: the payload that file-system sources hand to adapters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoragePath:
    """A version directory at one moment. Immutable.

    Two payloads of the same version differ when there is something new to load:
    another base path, files that were replaced in place, or other settings.

    Attributes:
        path: The version directory as it was found ("/models/digits/0042"), or a
            URL under a remote base path.
        fingerprint: Digest of the names, sizes and times of its files; empty when
            nobody looked (a static source).
        platform: The configured ``model_platform``, empty for "detect by content".
        settings: Whatever else decides how it is loaded, as one word for all of it.

    """

    path: str
    fingerprint: str = ""
    platform: str = ""
    settings: str = ""
