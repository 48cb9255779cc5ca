"""Which version each label means right now: a pure function of what is available.

A label may be set before its version is loaded, and a move takes effect only when
the new version can answer: until then the label keeps its old meaning. (TensorFlow
Serving refuses such labels; docs/divergences.md.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


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
