"""Has a process say on stderr where its Python code is, when it crashes or hangs.

"Ended by SIGSEGV" tells the author of a model nothing; the lines that were being run
tell most of it. What writes them is Python's own faulthandler, which needs neither the
interpreter's lock nor memory. It leaves the way in which a process ends as it was.
"""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

SHOW_STACKS: Final = signal.SIGRTMAX - 1
"""Asks a worker for its stacks; a number that no library is known to use."""


def show_stacks() -> None:
    """Has this process, and those forked from it, show their stacks from now on.

    Without stderr nothing is shown, and the signal does nothing.
    """
    try:
        faulthandler.enable()
        faulthandler.register(SHOW_STACKS)
    except (RuntimeError, ValueError, OSError):
        signal.signal(SHOW_STACKS, signal.SIG_IGN)
