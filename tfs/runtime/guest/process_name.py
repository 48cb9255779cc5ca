"""Sets the name that a process has in top, in ps and in the kernel's out-of-memory messages.

Otherwise all of a server's processes would be called "python3", and nobody could tell
which model takes all the memory.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

_MAX_BYTES: Final = 15  # the kernel's limit


def name_process(name: str) -> None:
    """Gives this process the start of ``name`` as its name; does nothing if it cannot."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(os.fsencode(name)[:_MAX_BYTES])
