"""Finds loaded contents of versions that newer ones have replaced and nobody uses.

While its files change, a version has harnesses of several generations. Requests reach
the newest that was loaded. Usually the transition policy unloads the one before,
because the newest is aspired. But if the files change again at that moment, neither is
aspired. While the third contents fail, a policy keeps what serves, and that is only the
newest of the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import HarnessState


def replaced_contents(versions: Sequence[HarnessSnapshot]) -> list[HarnessSnapshot]:
    """Returns loaded contents that are not aspired, except each version's newest."""
    left = [v for v in versions if v.state is HarnessState.READY and not v.is_aspired]
    newest: dict[int, int] = {}
    for v in left:
        number = v.id.version
        newest[number] = max(v.generation, newest.get(number, v.generation))
    return [v for v in left if v.generation < newest[v.id.version]]
