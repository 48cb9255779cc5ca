"""The zygote as its host sees it: it is started when workers are wanted, and ended later.

``ZygoteProcess`` is the program. No worker needs it to stay alive: they are all children
of this process (``guest/zygote/process_tree.py``). If it is killed while there are users,
the next one is started at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.zygote_process import ExitStatuses, ZygoteProcess

log = logging.getLogger(__name__)

_LINGER_S: Final = 30.0
_CLOSED: Final = "the server is shutting down"


@dataclass(frozen=True, slots=True)
class Forked:
    """A new process, a child of this one; the receiver owns ``pidfd``.

    Attributes:
        pid: Its process id, which is not reused until ``exits`` knows how it ended.
        pidfd: Readable once it has ended.
        exits: Will know how it ended.

    """

    pid: int
    pidfd: int
    exits: ExitStatuses


OnForked = Callable[["Forked | str | None"], None]
"""Takes the process, or the reason why there is none.

None means that the zygote ended meanwhile. Somebody who still wants a process has to
ask again, with new descriptors: a process that nobody was told of may hold the old
ones. It ends when they are closed.
"""


class StartedZygote(Protocol):
    """A program that becomes a zygote, or is one. Thread-safe."""

    @property
    def channel(self) -> socket.socket:
        """Our end of the conversation, non-blocking."""
        ...

    @property
    def exits(self) -> ExitStatuses:
        """How its forks ended."""
        ...

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Calls ``fn`` with why it ended, if that is known before the channel ends."""
        ...

    def close(self) -> None:
        """Ends it soon, but nothing that it forked; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class _ForkRequest:
    fields: Mapping[str, object]
    fds: tuple[int, ...]
    on_done: OnForked


class Zygote:
    """Forks workers. Loop-confined, except for the constructor.

    Args:
        loop: Drives the conversation; runs the callbacks.
        linger_s: Seconds without users after which the program is ended.
        started: A program that ``prepare`` or the first fork uses instead of starting one.

    Attributes:
        pid: The process id of the program while it is ready.

    """

    def __init__(
        self,
        loop: ServingLoop,
        *,
        linger_s: float = _LINGER_S,
        started: StartedZygote | None = None,
    ) -> None:
        self._loop = loop
        self._linger_s = linger_s
        self._started = started
        self._program: StartedZygote | None = None
        self._waiting: list[_ForkRequest] = []  # until it is ready
        self._sent: dict[int, _ForkRequest] = {}
        self._next_token = 0
        self._num_users = 0
        self._linger: Timer | None = None
        self._closed = False
        self.pid: int | None = None

    def prepare(self) -> None:
        """Starts the program, or uses the one that was started; ends it if nobody wants it."""
        if self._program is not None or self._closed:
            return
        with contextlib.suppress(OSError):  # the first fork tries again, and tells why
            self._start()
        if self._program is not None and self._num_users == 0 and self._linger is None:
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
        if self._num_users == 0 and self._program is not None:
            self._end_later()

    def fork(
        self,
        options: WorkerOptions,
        fds: tuple[int, ...],
        on_done: OnForked,
        *,
        platform: str = "",
    ) -> None:
        """Forks a worker that owns copies of ``fds``; starts the zygote if need be.

        ``on_done`` takes the worker, or the reason why there is none. The caller may
        close ``fds`` in it. If the platform's imports take long (``import_for``),
        the zygote does them once, before it forks.
        """
        if self._closed:
            on_done(_CLOSED)
            return
        fields = {"options": asdict(options), "platform": platform}
        request = _ForkRequest(fields, fds, on_done)
        if self._program is None:
            try:
                self._start()
            except OSError as error:
                on_done(f"the zygote cannot be started: {error.strerror}")
                return
        if self.pid is None:
            self._waiting.append(request)
        else:
            self._send(request)

    def close(self) -> None:
        """Ends the zygote, but nothing that it forked; idempotent."""
        self._closed = True
        if self._started is not None:
            self._started.close()
            self._started = None
        self._end_program(_CLOSED)

    # -- on the loop -------------------------------------------------------------

    def _start(self) -> None:
        program = self._program = self._started or ZygoteProcess()
        self._started = None
        self._loop.watch(program.channel.fileno(), lambda _: self._read(program))
        program.on_end(lambda why: self._loop.post(lambda: self._lose(program, why)))

    def _send(self, request: _ForkRequest) -> None:
        assert self._program is not None
        token = self._next_token
        self._next_token += 1
        body = json.dumps({"token": token, **request.fields}).encode()
        try:
            control_channel.send(self._program.channel, body, request.fds)
        except BlockingIOError:
            request.on_done("the zygote does not keep up")
        except ConnectionError:
            # It is answered when the zygote's end is noticed.
            self._sent[token] = request
        except OSError as error:
            request.on_done(f"the zygote cannot be asked: {error.strerror}")
        else:
            self._sent[token] = request

    def _read(self, program: StartedZygote) -> None:
        if program is not self._program:
            return
        for message in control_channel.waiting(program.channel):
            if message is None:
                self._lose(program, "its channel ended")
                return
            body, fds = message
            try:
                self._take(program, json.loads(body), fds)
            finally:
                control_channel.close_all(fds)
            if program is not self._program:
                return

    def _take(
        self, program: StartedZygote, message: Mapping[str, object], fds: list[int]
    ) -> None:
        match message:
            case {"ready": int(pid)}:
                _check_fork_state(message)
                self.pid = pid
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    self._send(request)
            case {"forked": int(token), "pid": int(pid)}:
                request = self._sent.pop(token)
                with contextlib.suppress(OSError):
                    # The worker does this too; whoever is first, it has its group.
                    os.setpgid(pid, pid)
                request.on_done(Forked(pid, fds.pop(), program.exits))
            case {"failed": int(token), "why": str(why)}:
                self._sent.pop(token).on_done(why)

    def _lose(self, program: StartedZygote, why: str) -> None:
        """Notes that the program has ended without being asked to."""
        if program is not self._program:
            return
        was_ready = self.pid is not None
        requests = self._stop()
        log.warning("event=zygote_ended why=%r", why)
        if was_ready and self._num_users:
            with contextlib.suppress(OSError):  # the next fork tries again
                self._start()  # for the next interpreter that needs a worker
        for request in requests:
            request.on_done(None if was_ready else f"the zygote is gone: {why}")

    def _end_later(self) -> None:
        self._linger = self._loop.call_at(
            self._loop.clock.now() + self._linger_s, self._end_unused
        )

    def _end_unused(self) -> None:
        self._linger = None
        self._end_program("nobody uses it")

    def _end_program(self, why: str) -> None:
        for request in self._stop():
            request.on_done(why)

    def _stop(self) -> list[_ForkRequest]:
        program, self._program, self.pid = self._program, None, None
        if program is not None:
            self._loop.unwatch(program.channel.fileno())
            program.close()
        requests = [*self._waiting, *self._sent.values()]
        self._waiting, self._sent = [], {}
        return requests


def _check_fork_state(message: Mapping[str, object]) -> None:
    """Logs what makes forks of a zygote unsafe: a fault of ours, or of an import."""
    if message.get("num_threads") != 1:
        log.error("event=zygote_has_threads num_threads=%s", message.get("num_threads"))
    if message.get("has_cuda_context"):
        log.error("event=zygote_has_cuda_context hint='its workers cannot use CUDA'")
