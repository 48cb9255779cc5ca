"""Whether looking again and again for something that is due is worth the processor."""

from __future__ import annotations

from typing import Final

_FEWEST: Final = 16
_MOST: Final = 1024


class SpinBackoff:
    """Skips looks after one that was in vain, more of them after each further one.

    A look saves a wake-up where what is awaited comes from another core meanwhile.
    Where that core is taken, by the looker itself at worst, every look is in vain and
    keeps back what it looks for: then one in a thousand is still made. Confined to one
    thread.
    """

    def __init__(self) -> None:
        self._num_to_skip = 0
        self._num_next = _FEWEST

    def may_look(self) -> bool:
        """Returns whether to look this time; counts one that is skipped."""
        if self._num_to_skip:
            self._num_to_skip -= 1
            return False
        return True

    def note(self, *, found: bool) -> None:
        """Takes the outcome of a look into account."""
        if found:
            self._num_next = _FEWEST
        else:
            self._num_to_skip = self._num_next
            self._num_next = min(2 * self._num_next, _MOST)
