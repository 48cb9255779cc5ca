"""Which models fare otherwise than at an earlier look: for those who ask again and again."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfs.core.clock import Clock


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """What changed. Immutable.

    Attributes:
        revision: Numbers the look that this is of.
        since: The revision of the look before; 0: everything counts as changed.
        names: The models that changed, and are there.
        gone: Those that are not there any more.

    """

    revision: int = 0
    since: int = 0
    names: Sequence[str] = ()
    gone: Sequence[str] = ()


class ModelHistory:
    """When each model was last seen to change. Thread-safe.

    Args:
        clock: Its time begins the count, so that no process repeats the revisions of
            another.

    """

    def __init__(self, clock: Clock) -> None:
        # Guards the next; leaf.
        self._lock = threading.Lock()
        self._first = self._revision = int(clock.wall_s() * 1e6)
        # The revision of its last change, and how it looked then; None: it was gone.
        self._seen: dict[str, tuple[int, object]] = {}

    def changes(self, looks: Mapping[str, object], since: int) -> ModelChanges:
        """Notes how models look now, and returns those that changed since a revision."""
        with self._lock:
            self._revision = now = self._revision + 1
            seen = self._seen
            for name, look in looks.items():
                if name not in seen or seen[name][1] != look:
                    seen[name] = now, look
            for name in seen.keys() - looks.keys():
                if seen[name][1] is not None:
                    seen[name] = now, None
            if not self._first < since < now:
                return ModelChanges(now, 0, [*looks])
            changed = [name for name, (at, _) in seen.items() if at > since]
            names = [name for name in changed if name in looks]
            return ModelChanges(
                now, since, names, [name for name in changed if name not in looks]
            )
