"""A zygote that another one forked off; it is reached through its channel alone."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tfs.runtime.process.exit_statuses import ExitStatuses


class ForkedZygote:
    """A zygote that is no child of this process's own making. Thread-safe.

    Attributes:
        channel: The conversation's end here; with it the process ends.
        exits: How its forks ended.

    """

    def __init__(self, channel: socket.socket, exits: ExitStatuses) -> None:
        self.channel = channel
        self.exits = exits

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Does nothing: the channel tells."""

    def close(self) -> None:
        """Ends it, soon; idempotent."""
        self.channel.close()
