"""Has one version of each code measured, and the others of that code wait for it.

A thousand versions of ten codes would otherwise be loaded in a thousand processes: none
of them is known when its load begins.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator


class CodeTurns:
    """One version of each code at a time, and a bounded number of them. Thread-safe.

    Args:
        num: How many versions of different codes may have their turn at once.

    """

    def __init__(self, num: int) -> None:
        # Guards the fields below; leaf: nothing is called under it.
        self._changed = threading.Condition()
        self._left = num
        self._busy: set[str] = set()
        self._num_taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def turn(self, code_digest: str) -> Iterator[int]:
        """Waits for the turn of a version; yields how many of its code had one before.

        Blocks while another version of that code has its turn.
        """
        with self._changed:
            while code_digest in self._busy or not self._left:
                self._changed.wait()
            self._busy.add(code_digest)
            self._left -= 1
            num_before = self._num_taken[code_digest]
            self._num_taken[code_digest] += 1
        try:
            yield num_before
        finally:
            with self._changed:
                self._busy.discard(code_digest)
                self._left += 1
                self._changed.notify_all()

    def num_taken(self, code_digest: str) -> int:
        """Returns how many versions of that code have, or had, their turn."""
        with self._changed:
            return self._num_taken[code_digest]

    def forget(self, code_digest: str) -> None:
        """Drops the count of a code, because it is known now."""
        with self._changed:
            self._num_taken.pop(code_digest, None)
