"""A zygote with one version loaded, whose forks have that version at once.

Reading a graph takes a tenth of a second or more, even when all imports are done. A
fork of a process that has read it shares the result, as far as nobody writes to it, so
a crashed worker is back in the time that a fork takes. The template is a zygote of its
own, forked from the one that has the platform's imports. It ends with the version; its
workers do not end with it.
"""

from __future__ import annotations

import base64
import logging
import pickle
from dataclasses import asdict
from typing import Final

from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.zygote_client import ZygoteClient
from tfs.runtime.process.zygote_conversation import ZygoteConversation

log = logging.getLogger(__name__)

# Failures in a row. One may come from the end of the process that forks the template.
_MAX_FAILURES: Final = 2
# Pause after the version's load, and after the end of a template or of its parent.
_PAUSE_S: Final = 1.0


class VersionTemplate:
    """One such process, from the request for it until the version ends. Thread-safe.

    Args:
        loop: Drives the conversation with it.
        zygote: Forks the template.
        options: Options of the workers that it forks; it runs with the same.
        source: The version, which has been loaded in a worker before.
        files: The version's payload; it remains the caller's and is duplicated here.

    """

    def __init__(
        self,
        loop: ServingLoop,
        zygote: ZygoteClient,
        options: WorkerOptions,
        source: ModelSource,
        files: VersionFiles,
    ) -> None:
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._source = source
        self._files = files.duplicate()
        self._zygote_with_it: ZygoteConversation | None = None
        self._timer: Timer | None = None
        self._closed = False
        self._num_failures = 0
        # Later: now the version is measured and perhaps moved, and others may load.
        loop.post(self._start_later)

    @property
    def pid(self) -> int | None:
        """The process id once it has loaded the version, otherwise None."""
        zygote = self._zygote_with_it
        return zygote.pid if zygote is not None else None

    @property
    def forks(self) -> ZygoteConversation | None:
        """Forks workers that have the version; None while nothing can."""
        zygote = self._zygote_with_it
        return zygote if zygote is not None and zygote.is_ready else None

    def close(self) -> None:
        """Ends it soon, but nothing that it forked; idempotent."""
        self._loop.post(self._close)

    def _start(self) -> None:
        self._timer = None
        if self._closed:
            return
        request = {
            "template": self._source.platform,
            # Pickle is safe: only our own process has the other end of the channel.
            "source": base64.b64encode(pickle.dumps(self._source)).decode(),
            "files": list(self._files.files),
            "options": asdict(self._options),
        }
        platform, fds = self._source.platform, self._files.fds
        try:
            forked = self._zygote.fork_template(platform, request, fds)
        except OSError:  # there is no zygote at the moment
            self._start_later()
            return
        self._zygote_with_it = ZygoteConversation(
            self._loop, forked, self._note_ready, self._note_end
        )

    def _note_ready(self) -> None:
        self._num_failures = 0

    def _note_end(self, _why: str) -> bool:
        """Notes that the process has ended; starts the next one if this one worked."""
        zygote, self._zygote_with_it = self._zygote_with_it, None
        who = self._source.id.slashed
        self._num_failures += zygote is None or zygote.pid is None
        if self._num_failures < _MAX_FAILURES:
            self._start_later()
        else:
            log.warning("event=no_template servable=%s why='it does not load'", who)
        return True  # those who asked it for a worker ask the zygote instead

    def _start_later(self) -> None:
        if self._closed:
            return
        when_s = self._loop.clock.now() + _PAUSE_S
        self._timer = self._loop.call_at(when_s, self._start)

    def _close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        zygote, self._zygote_with_it = self._zygote_with_it, None
        if zygote is not None:
            zygote.close("the version is unloaded")
        self._files.close()
