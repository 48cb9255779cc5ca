"""A worker in reserve, which is forked and warm before it is needed.

A fork and the first load in a new process always take the same milliseconds, in which
page tables, Python objects and pages of the allocator become the process's own. A spare
has done that already. It is taken when a worker is needed, because one crashed or a
version is being loaded. The next spare is made when no worker was needed for a while.
"""

from __future__ import annotations

import logging
from typing import Final

from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.runtime.guest.platforms.platform_imports import MODULES as SLOW_IMPORTS
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.worker_process import WorkerProcess, WorkerReply
from tfs.runtime.process.zygote import Forked, Zygote

log = logging.getLogger(__name__)

_QUIET_S: Final = 0.3  # how long no worker must be needed before the next spare is made


class SpareWorker:
    """Keeps at most one spare; its memory is about that of a worker without a model.

    Loop-confined, except for the constructor. It makes its first spare after the first
    worker was wanted. It does not keep the zygote alive: when nobody wants that any
    more, the spare ends too. While nothing happens, it does nothing.

    Args:
        loop: Watches the spare.
        zygote: Forks it.
        options: Options of the workers that will be asked for.

    """

    def __init__(
        self, loop: ServingLoop, zygote: Zygote, options: WorkerOptions
    ) -> None:
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._worker: WorkerProcess | None = None
        self._is_warm = False
        self._last_use_s = 0.0
        self._timer: Timer | None = None
        self._closed = False
        zygote.when_unused(self._drop)

    @property
    def pid(self) -> int | None:
        """The process id of the spare once it is warm, otherwise None."""
        worker = self._worker
        return worker.pid if worker is not None and self._is_warm else None

    def take(self, platform: str = "", concurrency: int = 1) -> WorkerProcess | None:
        """Returns the spare, if it is warm, has the platform's imports and runs one call.

        The caller owns it. Either way a worker is wanted now, and the next spare is made
        later.
        """
        self._note_use()
        worker = self._worker
        if worker is None or not self._is_warm or concurrency > 1:
            return None
        if platform in SLOW_IMPORTS and platform not in worker.imported:
            self._drop()  # the zygote is about to import it, and the next spare has it
            return None
        if worker.has_ended:  # perhaps in this round of the loop
            self._drop()
            return None
        worker.stop_listening()
        self._worker = None
        return worker

    def close(self) -> None:
        """Ends the spare and makes no other; idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop()

    def _note_use(self) -> None:
        self._last_use_s = self._loop.clock.now()
        if self._timer is None and not self._closed:
            self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.call_at(
            self._last_use_s + _QUIET_S, self._make_if_quiet
        )

    def _make_if_quiet(self) -> None:
        self._timer = None
        if not self._zygote.is_in_use or self._worker is not None:
            return
        if not self._zygote.is_ready:
            self._last_use_s = (
                self._loop.clock.now()
            )  # workers that somebody waits for come first
        if self._loop.clock.now() < self._last_use_s + _QUIET_S:
            self._wait()
        else:
            self._make()

    def _make(self) -> None:
        try:
            worker = self._worker = WorkerProcess(self._loop, self._options)
        except OSError as error:
            log.warning("event=no_spare_worker why=%r", error.strerror)
            return
        self._is_warm = False

        def on_forked(outcome: Forked | str | None) -> None:
            if isinstance(outcome, Forked):
                worker.attach(outcome)
            if worker is not self._worker:  # closed meanwhile
                worker.close()
            elif isinstance(outcome, Forked):
                worker.listen(lambda _: self._drop(), self._drop)
                worker.send("warm_up", {}, (), self._note_warm, background=True)
            else:
                self._drop()
                if outcome is None:
                    self._note_use()  # the next zygote makes the next spare
                else:
                    log.warning("event=no_spare_worker why=%r", outcome)

        self._zygote.fork(self._options, worker.remote_fds, on_forked)

    def _note_warm(self, reply: WorkerReply | None) -> None:
        self._is_warm = reply is not None
        if reply is not None and (error := reply.error()) is not None:
            log.warning("event=spare_worker_stays_cold why=%r", error.message)

    def _drop(self) -> None:
        """Gives up a spare that is dead or no longer wanted."""
        worker, self._worker = self._worker, None
        self._is_warm = False
        if worker is not None:
            worker.close()
