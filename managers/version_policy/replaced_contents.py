"""Which loaded contents of a version newer ones have replaced: nothing uses them any more.

While its files change, a version has harnesses of several generations. Requests reach the
newest that was loaded. Usually the transition policy unloads the one before, because the
newest is aspired. But if the files change again at that moment, neither is aspired, and
as long as the third contents fail a policy keeps what serves: only the newest of the two
does.
"""

from __future__ import annotations

from collections.abc import Sequence

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import HarnessState


def replaced_contents(versions: Sequence[HarnessSnapshot]) -> list[HarnessSnapshot]:
    """Returns what is loaded and not aspired, but for the newest of each version."""
    left = [v for v in versions if v.state is HarnessState.READY and not v.is_aspired]
    newest: dict[int, int] = {}
    for v in left:
        number = v.id.version
        newest[number] = max(v.generation, newest.get(number, v.generation))
    return [v for v in left if v.generation < newest[v.id.version]]
