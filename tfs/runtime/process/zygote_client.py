"""The zygotes of a host, which are started when workers are wanted, and ended later.

A ``ZygoteProcess`` is the program, and a ``ZygoteConversation`` is what is said to it.
The first zygote has forks. A **standby** takes its place when it is killed, because
importing torch anew takes a second, in which no worker could be replaced. For each
platform whose imports take long there is a **branch**, which has done these imports and
forks the platform's workers. None needs another to stay alive, and no worker needs any:
they are all children of this process (``guest/zygote/sibling_fork.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.guest.platforms.platform_imports import MODULES as SLOW_IMPORTS
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.forked_zygote import ForkedZygote
from tfs.runtime.process.zygote_conversation import (
    OnForked,
    StartedZygote,
    ZygoteConversation,
)
from tfs.runtime.process.zygote_process import ZygoteProcess

log = logging.getLogger(__name__)

_LINGER_S: Final = 30.0
_STANDBY_PAUSE_S: Final = 1.0  # from a zygote's start to that of the one behind it
_CLOSED: Final = "the server is shutting down"


class ZygoteClient:
    """Forks workers. Loop-confined, except for the constructor.

    Args:
        loop: Drives the conversations; runs the callbacks.
        environment: Added to the zygote's environment.
        linger_s: Seconds without users after which the zygotes are ended.
        started: A zygote that ``adopt`` or the first fork uses instead of starting one.
        keeps_standby: Whether a second zygote is kept, which takes the place of the
            first one at once when that is killed.

    """

    def __init__(
        self,
        loop: ServingLoop,
        environment: Mapping[str, str] | None = None,
        *,
        linger_s: float = _LINGER_S,
        started: StartedZygote | None = None,
        keeps_standby: bool = False,
    ) -> None:
        self._loop = loop
        self._keeps_standby = keeps_standby
        self._standby: ZygoteConversation | None = None
        self._standby_timer: Timer | None = None
        self._environment = dict(environment or {})
        self._linger_s = linger_s
        self._started = started
        self._first: ZygoteConversation | None = None
        self._num_ends = 0  # how many first zygotes ended without being asked to
        self._branches: dict[str, ZygoteConversation] = {}  # by platform
        self._when_unused: list[Callable[[], None]] = []
        self._num_users = 0
        self._linger: Timer | None = None
        self._closed = False
        """Shared by all interpreters whose workers it forks."""

    @property
    def pid(self) -> int | None:
        """The process id of the zygote while it is ready."""
        first = self._first
        return first.pid if first is not None else None

    @property
    def is_in_use(self) -> bool:
        """Whether somebody wants it."""
        return self._num_users > 0

    @property
    def standby_pid(self) -> int | None:
        """The process id of the standby; None while there is none."""
        standby = self._standby
        return standby.pid if standby is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether it has started and can fork at once."""
        return self._first is not None and self._first.is_ready

    def branch_pid(self, platform: str) -> int | None:
        """The process id of a platform's branch; None while there is none."""
        branch = self._branches.get(platform)
        return branch.pid if branch is not None else None

    def adopt(self) -> None:
        """Uses the zygote that was started already; ends it if nobody wants it."""
        if self._started is None or self._closed:
            return
        self._start()
        if self._num_users == 0:
            self._end_later()

    def acquire(self) -> None:
        """Counts a user; the zygote stays while there is one."""
        self._num_users += 1
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def release(self) -> None:
        """Takes a user back."""
        self._num_users -= 1
        if self._num_users == 0 and self._first is not None:
            self._end_later()

    def when_unused(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` whenever the zygotes are ended because nobody wants them."""
        self._when_unused.append(fn)

    def fork(
        self,
        options: WorkerOptions,
        fds: tuple[int, ...],
        on_done: OnForked,
        *,
        is_spare: bool = False,
        platform: str = "",
    ) -> None:
        """Forks a worker that owns copies of ``fds``; starts the zygote if need be.

        ``on_done`` takes the worker, or the reason why there is none. The caller may
        close ``fds`` in it. A spare warms up, and then says so on its control channel.
        If the platform's imports take long (``platform_imports``), the worker has done
        them.
        """
        if self._closed:
            on_done(_CLOSED)
            return
        first = self._first or self._start()
        zygote = first
        if platform in SLOW_IMPORTS:
            try:
                zygote = self._branches.get(platform) or self._branch(first, platform)
            except OSError as error:
                on_done(f"the zygote forks no branch: {error.strerror}")
                return
        zygote.fork(options, fds, on_done, is_spare=is_spare)

    def fork_template(
        self, platform: str, request: Mapping[str, object], fds: tuple[int, ...]
    ) -> ForkedZygote:
        """Forks a zygote that loads a version, from the process that forks its workers.

        Raises:
            OSError: That process is not there now. If there can be one, it has been
                asked for.

        """
        zygote = self._first
        if zygote is not None and platform in SLOW_IMPORTS and not self._closed:
            zygote = self._branches.get(platform) or self._branch(zygote, platform)
        if zygote is None:
            raise OSError("there is no zygote")
        return zygote.fork_zygote(request, fds)

    def close(self) -> None:
        """Ends the zygotes, but nothing that they forked; idempotent."""
        self._closed = True
        if self._started is not None:
            self._started.close()
            self._started = None
        self._end(_CLOSED)

    # -- on the loop -------------------------------------------------------------

    def _start(self) -> ZygoteConversation:
        process = self._started or ZygoteProcess(self._environment)
        self._started = None
        first = self._converse(process)
        self._first = first
        return first

    def _converse(self, zygote: StartedZygote) -> ZygoteConversation:
        conversation = ZygoteConversation(
            self._loop,
            zygote,
            lambda: self._on_ready(conversation),
            lambda why: self._on_end(conversation, why),
        )
        return conversation

    def _branch(self, first: ZygoteConversation, platform: str) -> ZygoteConversation:
        zygote = first.fork_zygote({"branch": platform})
        num_ends = self._num_ends

        def on_end(why: str) -> bool:
            if self._branches.get(platform) is branch:
                del self._branches[platform]
            log.warning("event=zygote_branch_ended platform=%s why=%r", platform, why)
            # Try again if it had been made, or if the process that should make it ended.
            return branch.pid is not None or num_ends != self._num_ends

        def on_ready() -> None:
            log.info("event=zygote_branched platform=%s", platform)

        branch = ZygoteConversation(self._loop, zygote, on_ready, on_end)
        self._branches[platform] = branch
        return branch

    def _on_ready(self, zygote: ZygoteConversation) -> None:
        if zygote is self._first:
            self._stand_by_later()

    def _on_end(self, zygote: ZygoteConversation, why: str) -> bool:
        if zygote is self._standby:
            self._standby = None
            self._stand_by_later()
            return True
        self._num_ends += 1
        self._first = None
        standby, self._standby = self._standby, None
        log.warning("event=zygote_ended why=%r", why)
        if standby is not None and standby.is_ready:
            self._first = standby
            log.info("event=zygote_replaced pid=%s", standby.pid)
            self._stand_by_later()
        else:
            if standby is not None:
                standby.close(why)
            if zygote.pid is not None and self._num_users:
                self._start()  # for the next interpreter that needs a worker
        return zygote.pid is not None

    def _stand_by_later(self) -> None:
        if self._keeps_standby and self._standby_timer is None and not self._closed:
            when_s = self._loop.clock.now() + _STANDBY_PAUSE_S
            self._standby_timer = self._loop.call_at(when_s, self._stand_by)

    def _stand_by(self) -> None:
        self._standby_timer = None
        first = self._first
        if first is None or not first.is_ready or self._standby is not None:
            return
        try:
            self._standby = self._converse(first.fork_zygote({"standby": True}))
        except OSError as error:
            log.warning("event=no_standby_zygote why=%r", error.strerror)

    def _end_later(self) -> None:
        self._linger = self._loop.call_at(
            self._loop.clock.now() + self._linger_s, self._end_unused
        )

    def _end_unused(self) -> None:
        self._linger = None
        self._end("nobody uses it")
        for fn in self._when_unused:
            fn()

    def _end(self, why: str) -> None:
        if self._standby_timer is not None:
            self._standby_timer.cancel()
            self._standby_timer = None
        first, self._first = self._first, None
        standby, self._standby = self._standby, None
        branches, self._branches = self._branches, {}
        for zygote in (standby, *branches.values(), first):
            if zygote is not None:
                zygote.close(why)
