"""The host's end of the process that keeps the weights on one device.

Leases are written to its channel whether it runs already or not: they wait there while
it is forked. If it cannot be started, the channel is closed, and the holder of the
other end of a lease sees that.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import signal
from collections.abc import Callable

from tfs.core.serving_loop import ServingLoop
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.zygote_client import ZygoteClient
from tfs.runtime.process.zygote_conversation import Forked

log = logging.getLogger(__name__)


class KeeperProcess:
    """One keeper, from its fork on. Loop-confined.

    Args:
        loop: Watches it.
        zygote: Forks it, and is kept until then.
        options: It runs with the same options as workers.
        kind: Kind of memory, see ``guest/devices/device_memory.py``.
        device: The device whose memory it is.
        on_dropped: Called with a version that is gone from the device.
        on_end: Called once, with the reason, if it ends without being asked to.

    Raises:
        OSError: There are no descriptors left.

    """

    def __init__(
        self,
        loop: ServingLoop,
        zygote: ZygoteClient,
        options: WorkerOptions,
        kind: str,
        device: str,
        on_dropped: Callable[[int], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._zygote = zygote
        self._on_dropped = on_dropped
        self._on_end = on_end
        self._pidfd = -1
        self._closed = False
        self.pid: int | None = None
        """Its process id, once it is forked."""
        self._channel, theirs = control_channel.pair()
        self._channel.setblocking(False)
        loop.watch(self._channel.fileno(), lambda _: self._read())
        zygote.acquire()

        def on_forked(outcome: Forked | str | None) -> None:
            theirs.close()
            if not isinstance(outcome, Forked):
                why = outcome or "the zygote ended over it"
                self._end(f"it cannot be started: {why}")
                return
            self.pid, self._pidfd = outcome.pid, outcome.pidfd
            if self._closed:
                self._kill()
            else:
                loop.watch(self._pidfd, lambda _: self._end("it has died"))

        zygote.fork(options, (theirs.fileno(),), on_forked, keeper=(kind, device))

    def lease(self, version: int, files: VersionFiles) -> int | None:
        """Returns the worker's end of a new lease, or None; the caller closes it."""
        if self._closed:
            return None
        try:
            ours, theirs = control_channel.pair()
        except OSError as error:
            log.warning("event=no_lease why=%r", error.strerror)
            return None
        body = {"lease": version, "files": list(files.files)}
        with ours:
            if self._send(body, (ours.fileno(), *files.fds)):
                return theirs.detach()
        theirs.close()
        return None

    def drop(self, version: int) -> bool:
        """Drops a version when its last lease ends; returns whether it could be told."""
        return not self._closed and self._send({"drop": version}, ())

    def close(self) -> None:
        """Ends it, so that the device has all its memory back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()
        self._zygote.release()
        if self._pidfd >= 0:
            self._loop.unwatch(self._pidfd)
            self._kill()

    def _send(self, body: dict[str, object], fds: tuple[int, ...]) -> bool:
        try:
            control_channel.send(self._channel, json.dumps(body).encode(), fds)
        # The channel is full, or its end is gone, which is noticed elsewhere.
        except OSError as error:
            log.warning("event=keeper_takes_nothing why=%r", error.strerror)
            return False
        return True

    def _read(self) -> None:
        if self._closed:
            return
        for message in control_channel.waiting(self._channel):
            if message is None:
                self._end("its channel ended")
                return
            body, fds = message
            control_channel.close_all(fds)
            self._on_dropped(json.loads(body)["dropped"])
            if self._closed:
                return

    def _end(self, why: str) -> None:
        if not self._closed:
            self.close()
            self._on_end(why)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        # torch keeps files that count who opened a device's memory. It removes them only
        # if its process is not killed.
        for path in glob.glob(f"/dev/shm/torch_{self.pid}_*"):
            with contextlib.suppress(OSError):
                os.unlink(path)
