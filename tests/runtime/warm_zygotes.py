"""Zygotes that start at once: forks of one that has torch imported, as standbys are.

Importing torch is nearly all of what the start of a zygote takes, and tests start many.
The program itself, and how it ends, is for the tests of ``ZygoteProcess`` and for those
whose host is a program of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Final

from tfs.runtime.guest import control_channel
from tfs.runtime.process.forked_zygote import ForkedZygote
from tfs.runtime.process.zygote_conversation import StartedZygote
from tfs.runtime.process.zygote_process import ZygoteProcess, worker_environment

# pytest says which test runs; torch's compiler where its caches are, and more.
_NOTED: Final = ("PYTEST_CURRENT_TEST", "TORCH", "_TORCH", "TRITON_")


class WarmZygotes:
    """Stands in for ``ZygoteProcess``: the program is started at most once. Thread-safe.

    What a test changed that a program would notice (the environment, the module path,
    the working directory, the Python) is for a fresh one to see.
    """

    def __init__(self) -> None:
        self._terms = _terms()
        # Guards the program; held while it is started and asked, neither of which blocks.
        self._lock = threading.Lock()
        self._first: ZygoteProcess | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> StartedZygote:
        """Returns a zygote that has nothing behind it but its imports."""
        if environment or _terms() != self._terms:
            return ZygoteProcess(environment)
        ours, theirs = control_channel.pair()
        ours.setblocking(False)
        request = json.dumps({"standby": True}).encode()
        with self._lock, theirs:
            first = self._first
            if first is None:
                first = self._first = ZygoteProcess()
                atexit.register(first.close)
            try:
                control_channel.send(first.channel, request, (theirs.fileno(),))
            except OSError:  # somebody killed it
                ours.close()
                self._first = None
                return ZygoteProcess()
        return ForkedZygote(ours, first.exits)


def _terms() -> tuple[str, str, dict[str, str]]:
    inherited = {
        name: value
        for name, value in worker_environment().items()
        if not name.startswith(_NOTED)
    }
    return sys.executable, os.getcwd(), inherited
