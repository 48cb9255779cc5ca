"""The end of a process together with its parent's. Imports nothing that takes time."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Asks for a signal when the parent ends; exits if it has.

    After changing users: that would take the request back.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)
