"""A zygote that another zygote forked; only its channel leads to it."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tfs.runtime.process.exit_statuses import ExitStatuses


class ForkedZygote:
    """A zygote that this process did not start itself. Thread-safe.

    Attributes:
        channel: Our end of the conversation; the zygote ends when it is closed.
        exits: How the processes that it forked ended.

    """

    def __init__(self, channel: socket.socket, exits: ExitStatuses) -> None:
        self.channel = channel
        self.exits = exits

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Does nothing: the channel shows when it ends."""

    def close(self) -> None:
        """Ends it, soon; idempotent."""
        self.channel.close()
