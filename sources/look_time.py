"""The time of the next look at something.

Polls, events, settling directories and configurations each ask for a look at some time,
and the earliest of these counts. But the next look does not come before the pause after
the last one is over, because a copy in progress raises events by the hundred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class LookTime:
    """The time of the next look at one thing. Guarded by its owner's lock.

    Attributes:
        due_s: When, by the clock; infinite if nobody asks for a look.
        soonest_s: Until when events have to wait.

    """

    due_s: float = math.inf
    soonest_s: float = -math.inf

    def ask(self, now_s: float) -> bool:
        """Asks for a look as soon as the pause allows; returns if that is sooner."""
        wanted_s = max(now_s, self.soonest_s)
        if wanted_s >= self.due_s:
            return False
        self.due_s = wanted_s
        return True

    def insist(self, now_s: float) -> None:
        """Asks for a look now, whether or not the pause is over."""
        self.due_s = now_s

    def begin(self) -> None:
        """Notes that a look begins; later requests ask for another one."""
        self.due_s = math.inf

    def end(self, soonest_s: float, due_s: float) -> None:
        """Sets the next look; one that was asked for meanwhile may come earlier.

        Args:
            soonest_s: The end of the pause.
            due_s: When the next look is due if nobody asks; infinite for never.

        """
        self.soonest_s = soonest_s
        asked_s = math.inf if self.due_s == math.inf else max(self.due_s, soonest_s)
        self.due_s = min(due_s, asked_s)
