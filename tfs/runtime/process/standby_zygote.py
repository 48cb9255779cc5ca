"""A second zygote, forked off the first one, that takes its place when it is killed.

Importing torch anew takes a second, in which no worker could be replaced. A fork that
waits has it behind it, shares its memory with the first one, and needs nothing of it:
it ends when the host closes its channel or is gone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

from tfs.core.serving_loop import ServingLoop
from tfs.runtime.guest import control_channel


class StandbyZygote:
    """One such process, from asking for it on. Loop-confined.

    Args:
        loop: Watches it.
        zygote: The channel of the one to fork.
        on_end: Called if it ends before it is taken.

    Attributes:
        channel: The conversation's end here; whoever takes it watches it.
        pid: The process, once it is ready, else None.

    Raises:
        OSError: It cannot be asked for; nothing is left.

    """

    def __init__(
        self, loop: ServingLoop, zygote: socket.socket, on_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_end = on_end
        self.pid: int | None = None
        self.channel, theirs = control_channel.pair()
        self.channel.setblocking(False)
        try:
            body = json.dumps({"standby": True}).encode()
            control_channel.send(zygote, body, (theirs.fileno(),))
        except OSError:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self._is_watched = True
        loop.watch(self.channel.fileno(), self._on_readable)

    def take(self) -> socket.socket:
        """Stops watching it and returns its channel, which is the caller's to watch."""
        self._unwatch()
        return self.channel

    def close(self) -> None:
        """Ends it, soon, with the workers it forked; idempotent."""
        self._unwatch()
        self.channel.close()

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.unwatch(self.channel.fileno())

    def _on_readable(self, _events: int) -> None:
        try:
            message = control_channel.receive(self.channel)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self.close()
            self._on_end()
            return
        body, fds = message
        control_channel.close_all(fds)
        match json.loads(body):
            case {"ready": int(pid)}:
                self.pid = pid
