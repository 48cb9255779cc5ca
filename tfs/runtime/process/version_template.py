"""A zygote with one version loaded, whose forks have it at once.

Reading a graph takes a tenth of a second and more, also with all imports done. A fork of
a process that has read it shares what that made, until it writes to it: its worker is
back in the time of a fork. It is a zygote of its own, forked off the one that has the
platform's imports, and ends with the version.
"""

from __future__ import annotations

import base64
import json
import logging
import pickle
import socket
from collections.abc import Callable
from typing import Final

from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.model_source import ModelSource
from tfs.runtime.process.zygote_client import ZygoteClient

log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0  # from the load, one's end, or that of who is to fork it


class VersionTemplate:
    """One such process, from asking for it to the version's end. Thread-safe.

    Args:
        loop: Drives the conversation with it.
        zygote: Has it forked.
        source: The version, which has been loaded in a worker before.
        files: Its bytes; the caller's, duplicated here.

    """

    def __init__(
        self,
        loop: ServingLoop,
        zygote: ZygoteClient,
        source: ModelSource,
        files: VersionFiles,
    ) -> None:
        self._loop = loop
        self._zygote = zygote
        self._source = source
        self._files = files.duplicate()
        self._client: ZygoteClient | None = None
        self._timer: Timer | None = None
        self._closed = False
        # Not while it is measured and perhaps moved elsewhere, nor beside other loads.
        loop.post(self._start_later)

    @property
    def pid(self) -> int | None:
        """The process, once it has the version loaded, else None."""
        client = self._client
        return client.pid if client is not None else None

    @property
    def forks(self) -> ZygoteClient | None:
        """Who forks workers that have the version; None while nobody can."""
        client = self._client
        return client if client is not None and client.is_ready else None

    def close(self) -> None:
        """Ends it, and workers it forked, soon; idempotent."""
        self._loop.post(self._close)

    def _start(self) -> None:
        self._timer = None
        if self._closed:
            return
        request = {
            "template": self._source.platform,
            # Read by a process of ours, from a channel nobody else holds.
            "source": base64.b64encode(pickle.dumps(self._source)).decode(),
            "files": list(self._files.files),
        }
        ours, theirs = control_channel.pair()
        ours.setblocking(False)
        try:
            self._zygote.ask(
                json.dumps(request).encode(), (theirs.fileno(), *self._files.fds)
            )
        except OSError:  # there is no zygote now
            ours.close()
            self._start_later()
            return
        finally:
            theirs.close()
        client = ZygoteClient(
            self._loop, started=_Started(ours, lambda: self._note_end(client))
        )
        self._client = client
        client.acquire()
        client.adopt()

    def _note_end(self, client: ZygoteClient) -> None:
        """Takes in that a process has ended; makes the next, if it did well."""
        if client is not self._client:
            return
        self._client = None
        who = self._source.id.slashed
        if client.is_ready:
            self._start_later()
        else:
            log.warning("event=no_template servable=%s why='it does not load'", who)

    def _start_later(self) -> None:
        if self._closed:
            return
        when_s = self._loop.clock.now() + _PAUSE_S
        self._timer = self._loop.call_at(when_s, self._start)

    def _close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._files.close()


class _Started:
    """A zygote that is another one's child: its channel's end is all one sees of it."""

    def __init__(self, channel: socket.socket, on_close: Callable[[], None]) -> None:
        self.channel = channel
        self._on_close = on_close

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Does nothing: the channel tells."""

    def close(self) -> None:
        """Ends it, soon, or takes note of its end."""
        self.channel.close()
        self._on_close()
