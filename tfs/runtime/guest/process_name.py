"""What a process is called in top, in ps and by a kernel that is out of memory.

Without it all of a server's processes are "python3", and whoever sees one of them take
all the memory cannot tell whose it is.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

_MAX_BYTES: Final = 15  # the kernel's


def name_process(name: str) -> None:
    """Names this process, by the start of ``name``; it keeps its name if it cannot."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(os.fsencode(name)[:_MAX_BYTES])
