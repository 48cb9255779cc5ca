"""Hands the signals of a process to its main thread, one after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import Any, Final, Self

LOOK: Final = signal.SIGHUP
"""Has a server look at its config file and base paths; ends nothing."""


class SignalInbox:
    """Lets the main thread wait for signals. Confined to it, but for ``notify``.

    Python's C-level handler writes the signal's number into a socket, so that no code
    of ours runs inside a handler, where any lock could be held. Signals wait there
    until they are received.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1
        self._is_open = False

    def __enter__(self) -> Self:
        self._is_open = True
        os.register_at_fork(after_in_child=self._let_go)
        self._fd_before = signal.set_wakeup_fd(
            self._writer.fileno(), warn_on_full_buffer=False
        )
        return self

    def hear(self, *numbers: signal.Signals) -> None:
        """Takes these signals too, until the end of the block."""
        for number in numbers:
            before = signal.signal(number, _ignore)
            self._before.setdefault(number, before)

    def hear_unless_ignored(self, number: signal.Signals) -> None:
        """Takes a signal too, unless the process was started with that signal ignored."""
        if signal.getsignal(number) is not signal.SIG_IGN:
            self.hear(number)

    def _let_go(self) -> None:
        """Gives signals their default meaning in a process that a model forks from this one.

        Otherwise they would not end it, and would be heard here, through the socket: a
        pool of processes that a model ends would end the server.
        """
        if self._is_open:
            signal.set_wakeup_fd(-1)
            for number in self._before:
                signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *error: object) -> None:
        self._is_open = False
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def receive(self) -> str:
        """Blocks until a signal or ``notify`` comes; returns its name, or ""."""
        number = self._reader.recv(1)[0]
        return signal.Signals(number).name if number else ""

    def drop_repeats(self, within_s: float) -> None:
        """Blocks for ``within_s`` and drops the signals that came meanwhile.

        Programs that end a process group (timeout, make) signal the process itself as
        well. That is one request to drain, and not a second one to end at once.
        """
        time.sleep(within_s)
        self._reader.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(64):
                pass
        self._reader.setblocking(True)

    def notify(self) -> None:
        """Wakes ``receive`` without a signal. Thread-safe."""
        self._writer.send(b"\0")


def _ignore(number: int, frame: object) -> None:
    """Does nothing: the wake-up socket has carried the number already."""
