"""Which models fare otherwise than at an earlier look: for those who ask again and again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from tfs.core.clock import Clock
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

_MOST: Final = 1000  # as many are reported well within the time that callers wait


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

    def changes(
        self, looks: Mapping[str, object], since: int
    ) -> tuple[list[str], pb.ListModelsResponse]:
        """Notes how models look now, and returns the first that changed since a revision.

        With them comes what a reply says of them: the revisions, and the models that are
        not there any more. With 0, or a revision of another process, all have changed.
        """
        with self._lock:
            seen = self._seen
            for name, look in looks.items():
                if name not in seen or seen[name][1] != look:
                    self._note(name, look)
            for name in seen.keys() - looks.keys():
                if seen[name][1] is not None:
                    self._note(name, None)
            is_paged = since > 0
            if not self._first <= since <= self._revision:
                since = 0
            changed = []
            for name, (at, look) in reversed(seen.items()):
                if at <= since:
                    break
                if since or look is not None:
                    changed.append(name)
            changed.reverse()
            newest = revision = self._revision
            if is_paged and len(changed) > _MOST:
                changed = changed[:_MOST]
                revision = seen[changed[-1]][0]
        names = [name for name in changed if name in looks]
        gone = [name for name in changed if name not in looks]
        return names, pb.ListModelsResponse(
            revision=revision, since=since, gone=gone, newest=newest
        )

    def _note(self, name: str, look: object) -> None:
        self._seen.pop(name, None)  # the last to change comes last
        self._revision += 1
        self._seen[name] = self._revision, look
