"""Which version a label means, and which one answers a request that names none: pure.

A label may be set before its version is loaded, and a move takes effect only when the new
version can answer. (TensorFlow Serving refuses such labels; docs/divergences.md.)

A split is sticky: the share of a caller is a hash of model and key, and the canary
answers those below the split's fraction. Widening the split adds callers to the
canary's side and never takes one away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

ROUTING_KEY: Final = "tfs-routing-key"
"""The metadata key that identifies the caller."""

_SPAN: Final = 1 << 64


def share_of(model: str, key: bytes) -> float:
    """Returns the caller's place in [0, 1), the same in every process."""
    digest = hashlib.blake2b(key, digest_size=8, key=_salt(model)).digest()
    return int.from_bytes(digest, "big") / _SPAN


def _salt(model: str) -> bytes:
    # blake2b keys are at most 64 bytes; longer names are hashed first.
    name = model.encode()
    return name if len(name) <= 64 else hashlib.blake2b(name).digest()


def routing_key(
    metadata: Sequence[tuple[str, str | bytes]], client_id: bytes | None
) -> bytes | None:
    """Returns the caller's key: from the metadata, else from the request, else None."""
    for key, value in metadata:
        if key == ROUTING_KEY and value:
            return value if isinstance(value, bytes) else value.encode()
    return client_id or None


def effective_primary(
    wanted: int | None,
    before: int | None,
    available: Collection[int],
    canary: int | None,
    rejected: Collection[int] = (),
    faulty: Collection[int] = (),
) -> int | None:
    """Returns the version that answers requests that name none.

    Args:
        wanted: The configured version; None for the latest that is not the canary.
        before: The version that answered last.
        available: Versions that can be requested.
        canary: The version on trial.
        rejected: Versions that a guard rejected, and that nobody named since.
        faulty: Versions that are available and were seen to fail.

    If a version is configured and available, it answers. Until it is available, the
    version that answered before goes on, while that is available, so that a change
    takes effect after the load. No other version answers then: an operator who named a
    version, or went back to one, does not want another in its place. If none is
    configured, the latest one that is not the canary answers. The canary never takes
    over by itself; but if it answered before its trial, it goes on until another
    version can. A rejected version answers only if it is the configured one. In the
    place of a faulty one, the newest that is older and well answers, if there is one.

    """
    if wanted is not None and wanted in available:
        if wanted not in faulty:
            return wanted
        return _well(wanted, available, {canary, *rejected, *faulty})
    usable = [version for version in available if version not in rejected]
    goes_on = before if before is not None and before in usable else None
    if wanted is not None:
        return goes_on
    others = [version for version in usable if version != canary]
    if not others:
        return goes_on
    return _well(max(others), others, faulty)


def _well(version: int, available: Collection[int], barred: Collection[object]) -> int:
    """Returns ``version``, or the newest older one that is not barred in its place."""
    if version not in barred:
        return version
    older = [each for each in available if each < version and each not in barred]
    return max(older, default=version)


def effective_labels(
    wanted: Mapping[str, int],
    before: Mapping[str, int],
    available: Collection[int],
) -> dict[str, int]:
    """Returns the version each wanted label means.

    Args:
        wanted: Version by label, as configured.
        before: What the labels meant last that could answer.
        available: Versions that can be requested.

    A wanted version that is available is meant; else what the label meant before,
    while that is available; else the wanted one, which callers then find missing.
    Labels that are not wanted any more are gone at once.

    """
    meant = {}
    for label, version in wanted.items():
        old = before.get(label)
        if version not in available and old is not None and old in available:
            meant[label] = old
        else:
            meant[label] = version
    return meant
