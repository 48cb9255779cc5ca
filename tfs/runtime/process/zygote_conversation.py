"""The host's end of the conversation with one zygote, from its start to its end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from tfs.core.serving_loop import ServingLoop
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.exit_statuses import ExitStatuses
from tfs.runtime.process.forked_zygote import ForkedZygote

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Forked:
    """A new process, a child of this one; the receiver owns ``pidfd``.

    Attributes:
        pid: Its process id, which is not reused until ``exits`` knows how it ended.
        pidfd: Readable once it has ended.
        zygote_pid: The process of which it is a copy.
        exits: Will know how it ended.

    """

    pid: int
    pidfd: int
    zygote_pid: int
    exits: ExitStatuses


OnForked = Callable[["Forked | str | None"], None]
"""Takes the process, or the reason why there is none.

None means that the zygote ended meanwhile. Somebody who still wants a process has to
ask again, with new descriptors: a process that nobody was told of may hold the old
ones. It ends when they are closed.
"""


class StartedZygote(Protocol):
    """A process that becomes a zygote, or is one. Thread-safe."""

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


class _ForkRequest:
    def __init__(
        self,
        options: WorkerOptions,
        fds: tuple[int, ...],
        on_done: OnForked,
        *,
        is_spare: bool,
    ) -> None:
        self.fds = fds
        self.on_done = on_done
        self.fields = {
            "options": asdict(options),
            "spare": is_spare,
        }


class ZygoteConversation:
    """Asks one zygote for forks. Loop-confined.

    Args:
        loop: Watches its channel.
        zygote: Ended by ``close``.
        on_ready: Called when it can fork.
        on_end: Called once, with the reason, if it ends without being asked to. Returns
            whether another zygote may be asked for what this one was asked for.

    Attributes:
        exits: How its forks ended.
        pid: Its process id, once it is ready; stays when it has ended.
        is_over: Whether it has ended, or was closed.

    """

    def __init__(
        self,
        loop: ServingLoop,
        zygote: StartedZygote,
        on_ready: Callable[[], None],
        on_end: Callable[[str], bool],
    ) -> None:
        self._loop = loop
        self._zygote = zygote
        self._on_ready = on_ready
        self._on_end = on_end
        self._waiting: list[_ForkRequest] = []
        self._zygotes_waiting: list[tuple[bytes, socket.socket]] = []
        self._sent: dict[int, _ForkRequest] = {}
        self._next_token = 0
        self.exits = zygote.exits
        self.pid: int | None = None
        self.is_over = False
        loop.watch(zygote.channel.fileno(), self._on_readable)
        zygote.on_end(lambda why: loop.post(lambda: self._end(why)))

    @property
    def is_ready(self) -> bool:
        """Whether it can fork at once."""
        return self.pid is not None and not self.is_over

    def fork(
        self,
        options: WorkerOptions,
        fds: tuple[int, ...],
        on_done: OnForked,
        *,
        is_spare: bool = False,
    ) -> None:
        """Forks a process that owns copies of ``fds``, once the zygote is ready.

        The caller may close ``fds`` in ``on_done``. See ``ZygoteClient.fork``.
        """
        request = _ForkRequest(options, fds, on_done, is_spare=is_spare)
        if self.is_over:
            on_done(None)
        elif self.pid is None:
            self._waiting.append(request)
        else:
            self._send(request)

    def fork_zygote(
        self, request: Mapping[str, object], fds: tuple[int, ...] = ()
    ) -> ForkedZygote:
        """Forks a zygote: a standby, a branch or a template.

        Its channel shows what becomes of it. Before this zygote is ready, only one
        without ``fds`` can be asked for.

        Raises:
            OSError: This zygote is not ready, is gone, or does not keep up.

        """
        if self.is_over or (fds and self.pid is None):
            raise OSError("there is no zygote")
        body = json.dumps(request).encode()
        ours, theirs = control_channel.pair()
        ours.setblocking(False)
        if self.pid is None:
            self._zygotes_waiting.append((body, theirs))
            return ForkedZygote(ours, self.exits)
        try:
            control_channel.send(self._zygote.channel, body, (theirs.fileno(), *fds))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ForkedZygote(ours, self.exits)

    def close(self, why: str) -> None:
        """Ends the zygote, and tells those who wait for it why; idempotent."""
        if not self.is_over:
            for request in self._stop():
                request.on_done(why)

    # -- on the loop -------------------------------------------------------------

    def _send(self, request: _ForkRequest) -> None:
        token = self._next_token
        self._next_token += 1
        body = json.dumps({"token": token, **request.fields}).encode()
        try:
            control_channel.send(self._zygote.channel, body, request.fds)
        except BlockingIOError:
            request.on_done("the zygote does not keep up")
        except ConnectionError:
            # It is answered when the zygote's end is noticed.
            self._sent[token] = request
        except OSError as error:
            request.on_done(f"the zygote cannot be asked: {error.strerror}")
        else:
            self._sent[token] = request

    def _on_readable(self, _events: int) -> None:
        if self.is_over:
            return
        for message in control_channel.waiting(self._zygote.channel):
            if message is None:
                self._end("its channel ended")
                return
            body, fds = message
            try:
                self._on_message(json.loads(body), fds)
            finally:
                control_channel.close_all(fds)
            if self.is_over:
                return

    def _on_message(self, message: Mapping[str, object], fds: list[int]) -> None:
        match message:
            case {"ready": int(pid)}:
                _check_fork_state(message)
                self.pid = pid
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    self._send(request)
                zygotes, self._zygotes_waiting = self._zygotes_waiting, []
                for body, theirs in zygotes:
                    with (
                        theirs,
                        contextlib.suppress(OSError),
                    ):  # the end of its channel is noticed
                        control_channel.send(
                            self._zygote.channel, body, (theirs.fileno(),)
                        )
                self._on_ready()
            case {"forked": int(token), "pid": int(pid)}:
                request = self._sent.pop(token)
                assert self.pid is not None
                # The worker has done so itself, or has ended.
                with contextlib.suppress(OSError):
                    # The worker does this too; whoever is first, it has its group.
                    os.setpgid(pid, pid)
                request.on_done(Forked(pid, fds.pop(), self.pid, self.exits))
            case {"failed": int(token), "why": str(why)}:
                self._sent.pop(token).on_done(why)

    def _end(self, why: str) -> None:
        if self.is_over:
            return
        requests = self._stop()
        ask_again = self._on_end(why)
        for request in requests:
            request.on_done(None if ask_again else f"the zygote is gone: {why}")

    def _stop(self) -> list[_ForkRequest]:
        self.is_over = True
        self._loop.unwatch(self._zygote.channel.fileno())
        self._zygote.close()
        for _, theirs in self._zygotes_waiting:
            theirs.close()
        self._zygotes_waiting = []
        requests = [*self._waiting, *self._sent.values()]
        self._waiting, self._sent = [], {}
        return requests


def _check_fork_state(message: Mapping[str, object]) -> None:
    """Logs what makes forks of a zygote unsafe: a fault of ours, or of an import."""
    if message.get("num_threads") != 1:
        log.error("event=zygote_has_threads num_threads=%s", message.get("num_threads"))
    if message.get("has_cuda_context"):
        log.error("event=zygote_has_cuda_context hint='its workers cannot use CUDA'")
