"""The host's end of the zygote: starts it when workers are wanted, ends it after.

The program is a ``ZygoteProcess``; the conversation with it is the serving loop's.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.busy_cores import BusyCores
from tfs.runtime.process.standby_zygote import StandbyZygote
from tfs.runtime.process.zygote_process import ZygoteProcess

log = logging.getLogger(__name__)

_LINGER_S: Final = 30.0
_STANDBY_PAUSE_S: Final = 1.0  # from a zygote's start to that of the one behind it


@dataclass(frozen=True, slots=True)
class Forked:
    """A new worker; the receiver owns ``pidfd``.

    ``zygote_pid`` is its parent, with which it ends.
    """

    pid: int
    pidfd: int
    zygote_pid: int


class StartedZygote(Protocol):
    """A process that becomes a zygote, or is one. Thread-safe."""

    @property
    def channel(self) -> socket.socket:
        """The conversation's end here, non-blocking."""
        ...

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Calls ``fn`` with why it ended, where that is known before the channel's end."""
        ...

    def close(self) -> None:
        """Ends it and every worker it forked, soon; idempotent."""
        ...


class _ForkRequest:
    def __init__(
        self,
        options: WorkerOptions,
        fds: tuple[int, ...],
        on_done: Callable[[Forked | str], None],
        *,
        is_spare: bool,
        platform: str,
        keeper: tuple[str, str] | None,
    ) -> None:
        self.options = options
        self.fds = fds
        self.on_done = on_done
        self.is_spare = is_spare
        self.platform = platform
        self.keeper = keeper


class ZygoteClient:
    """Forks workers. Loop-confined, except the constructor.

    Args:
        loop: Drives the conversation; runs the callbacks.
        environment: Added to the zygote's environment.
        linger_s: Seconds without users after which the zygote is ended.
        started: Taken instead of starting one, by ``adopt`` or the first fork; whoever
            is one's child ends with its channel.
        keeps_standby: Whether a second zygote is kept, which takes the place of the
            first at once when that is killed.

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
        self._standby: StandbyZygote | None = None
        self._standby_timer: Timer | None = None
        self._environment = dict(environment or {})
        self._linger_s = linger_s
        self._started = started
        self._process: StartedZygote | StandbyZygote | None = None
        self._channel: socket.socket | None = None
        self._ready = False
        self._waiting: list[_ForkRequest] = []
        self._sent: dict[int, _ForkRequest] = {}
        self._next_token = 0
        self._watchers: dict[int, Callable[[int | None], None]] = {}
        self._num_users = 0
        self._linger: Timer | None = None
        self._closed = False
        self.pid: int | None = None
        """The zygote's process id while it is ready."""
        self.busy_cores = BusyCores(loop)
        """Of all interpreters whose workers it forks."""

    @property
    def is_in_use(self) -> bool:
        """Whether somebody wants it."""
        return self._num_users > 0

    @property
    def standby_pid(self) -> int | None:
        """The process that would take the zygote's place; None while there is none."""
        return self._standby.pid if self._standby is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether it has started, and forks at once."""
        return self._ready

    def adopt(self) -> None:
        """Takes the zygote that was started already; ends it if nobody wants it."""
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
        if self._num_users == 0 and self._channel is not None:
            self._end_later()

    def fork(
        self,
        options: WorkerOptions,
        fds: tuple[int, ...],
        on_done: Callable[[Forked | str], None],
        *,
        is_spare: bool = False,
        platform: str = "",
        keeper: tuple[str, str] | None = None,
    ) -> None:
        """Forks a worker that owns copies of ``fds``; starts the zygote if need be.

        ``on_done`` takes the worker or the reason why there is none. The caller may
        close ``fds`` in it. A spare warms up, and tells its control channel so. A
        platform whose imports take long (``platform_imports``) has them behind it. With
        ``keeper``, a kind of memory and a device, it is no worker but keeps weights
        there (``guest/weights_keeper.py``).
        """
        if self._closed:
            on_done("the server is shutting down")
            return
        request = _ForkRequest(
            options,
            fds,
            on_done,
            is_spare=is_spare,
            platform=platform,
            keeper=keeper,
        )
        if self._ready:
            self._send(request)
            return
        self._waiting.append(request)
        if self._channel is None:
            self._start()

    def ask(self, request: bytes, fds: tuple[int, ...]) -> None:
        """Sends a request that is answered over a channel among ``fds``, or not at all.

        Raises:
            OSError: There is no zygote now, or it does not keep up.

        """
        if self._channel is None or not self._ready:
            raise OSError("there is no zygote")
        control_channel.send(self._channel, request, fds)

    def watch_death(self, pid: int, on_death: Callable[[int | None], None]) -> None:
        """Calls ``on_death(status)`` once when the zygote has reaped ``pid``.

        With None if the zygote has ended, and nobody knows the status.
        """
        self._watchers[pid] = on_death

    def unwatch_death(self, pid: int) -> None:
        """Stops watching; idempotent."""
        self._watchers.pop(pid, None)

    def close(self) -> None:
        """Ends the zygote and every worker it forked; idempotent."""
        self._closed = True
        if self._started is not None:
            self._started.close()
            self._started = None
        self._end()
        self._fail_all("the server is shutting down")

    # -- on the loop -------------------------------------------------------------

    def _start(self) -> None:
        process = self._started or ZygoteProcess(self._environment)
        self._started = None
        channel = process.channel
        self._process, self._channel = process, channel
        self._loop.watch(channel.fileno(), self._on_readable)
        process.on_end(lambda why: self._loop.post(lambda: self._on_end(channel, why)))

    def _send(self, request: _ForkRequest) -> None:
        assert self._channel is not None
        token = self._next_token
        self._next_token += 1
        message = {
            "token": token,
            "options": asdict(request.options),
            "spare": request.is_spare,
            "platform": request.platform,
            "keeper": request.keeper,
        }
        try:
            control_channel.send(
                self._channel, json.dumps(message).encode(), request.fds
            )
        except BlockingIOError:
            request.on_done("the zygote does not keep up")
        except OSError as error:
            request.on_done(f"the zygote is gone: {error.strerror}")
        else:
            self._sent[token] = request

    def _on_readable(self, _events: int) -> None:
        channel = self._channel
        while channel is not None and channel is self._channel:
            try:
                message = control_channel.receive(channel)
            except BlockingIOError:
                return
            except OSError:
                message = None
            if message is None:
                self._on_end(channel, "its channel ended")
                return
            body, fds = message
            self._on_message(json.loads(body), fds)

    def _on_message(self, message: Mapping[str, object], fds: list[int]) -> None:
        match message:
            case {"ready": int(pid)}:
                _check_fork_state(message)
                self.pid = pid
                self._ready = True
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    self._send(request)
                self._stand_by_later()
            case {"branched": str(platform)}:
                log.info("event=zygote_branched platform=%s", platform)
                _check_fork_state(message)
            case {"forked": int(token), "pid": int(pid)}:
                request = self._sent.pop(token)
                assert self.pid is not None
                request.on_done(Forked(pid, fds.pop(), self.pid))
            case {"failed": int(token), "why": str(why)}:
                self._sent.pop(token).on_done(why)
            case {"died": int(pid), "status": int(status)}:
                on_death = self._watchers.pop(pid, None)
                if on_death is not None:
                    on_death(status)
        control_channel.close_all(fds)

    def _on_end(self, channel: socket.socket, why: str) -> None:
        if channel is not self._channel:
            return
        watchers = list(self._watchers.values())
        standby, self._standby = self._standby, None
        self._drop_channel()
        if not self._closed:
            log.warning("event=zygote_ended why=%r", why)
        if standby is not None and standby.pid is not None and not self._closed:
            self._promote(standby)
        else:
            if standby is not None:
                standby.close()
            self._fail_all(f"the zygote is gone: {why}")
        for on_death in watchers:
            on_death(None)

    def _stand_by_later(self) -> None:
        if self._keeps_standby and self._standby_timer is None and not self._closed:
            when_s = self._loop.clock.now() + _STANDBY_PAUSE_S
            self._standby_timer = self._loop.call_at(when_s, self._stand_by)

    def _stand_by(self) -> None:
        self._standby_timer = None
        if not self._ready or self._channel is None or self._standby is not None:
            return

        def on_end() -> None:
            self._standby = None
            self._stand_by_later()

        try:
            self._standby = StandbyZygote(self._loop, self._channel, on_end)
        except OSError as error:
            log.warning("event=no_standby_zygote why=%r", error.strerror)

    def _promote(self, standby: StandbyZygote) -> None:
        """Puts the second zygote into the first one's place, with what was asked of it.

        What the first one had forked for that has ended with it.
        """
        channel = standby.take()
        self._process, self._channel = standby, channel
        self._loop.watch(channel.fileno(), self._on_readable)
        self._ready, self.pid = True, standby.pid
        log.info("event=zygote_replaced pid=%s", standby.pid)
        sent, self._sent = list(self._sent.values()), {}
        for request in sent:
            self._send(request)
        self._stand_by_later()

    def _end_later(self) -> None:
        self._linger = self._loop.call_at(
            self._loop.clock.now() + self._linger_s, self._end
        )

    def _end(self) -> None:
        self._linger = None
        if self._standby_timer is not None:
            self._standby_timer.cancel()
            self._standby_timer = None
        if self._standby is not None:
            self._standby.close()
            self._standby = None
        if self._channel is not None:
            self._drop_channel()

    def _drop_channel(self) -> None:
        assert self._channel is not None
        self._loop.unwatch(self._channel.fileno())
        assert self._process is not None
        self._process.close()
        self._process = self._channel = None
        self._ready = False
        self.pid = None
        self._watchers.clear()

    def _fail_all(self, why: str) -> None:
        failed = [*self._waiting, *self._sent.values()]
        self._waiting = []
        self._sent = {}
        for request in failed:
            request.on_done(why)


def _check_fork_state(message: Mapping[str, object]) -> None:
    """Says what makes forks of a zygote unsafe; a fault of ours, or of an import."""
    if message.get("num_threads") != 1:
        log.error("event=zygote_has_threads num_threads=%s", message.get("num_threads"))
    if message.get("has_cuda_context"):
        log.error("event=zygote_has_cuda_context hint='its workers cannot use CUDA'")
