"""Sends requests to jobs, over a connection to each that is made when it is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from tfs.codec.call_error import error_of
from tfs.core.call import Metadata
from tfs.core.errors import Unavailable
from tfs.core.executor import ThreadExecutor
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.tensor_view import Buffer
from tfs.frontends.http2.client_connection import ClientConnection
from tfs.frontends.http2.unary_request import Outcome, UnaryRequest
from tfs.frontends.wire import Wire
from tfs.hosted.routing.job_connection import JobConnection, TlsFiles, connect

log = logging.getLogger(__name__)

_NUM_THREADS: Final = 16
# After a job could not be reached, or its connection was lost: less than between two
# looks at a server.
_PAUSE_S: Final = 0.2


class JobRequests:
    """Is a :class:`~tfs.hosted.routing.python_router.RequestSender`, over HTTP/2.

    Args:
        loop: The router's.
        tls: For TLS to the jobs; None speaks plain text.

    """

    def __init__(self, loop: ServingLoop, tls: TlsFiles | None = None) -> None:
        self._loop = loop
        self._tls = tls
        self._connecting = ThreadExecutor(_NUM_THREADS, "connect-job", loop.clock)
        self._jobs: dict[str, _Job] = {}
        self._connections: set[JobConnection] = set()
        self._dirty: dict[JobConnection, None] = {}
        self._is_closed = False
        loop.add_round_hook(self._flush, Phase.FLUSH)

    def send(
        self,
        address: str,
        method: str,
        message: Buffer,
        timeout_s: float | None,
        metadata: Metadata,
        on_done: Callable[[Outcome], None],
    ) -> Callable[[], None]:
        job = self._jobs.get(address)
        if job is None:
            job = self._jobs[address] = _Job(self, self._loop, address)
        done = partial(_tell, on_done)
        request = UnaryRequest(method, message, timeout_s, metadata, done)
        job.send(request)
        return partial(job.give_up, request)

    def keep(self, addresses: Collection[str]) -> None:
        for address in [each for each in self._jobs if each not in addresses]:
            self._jobs.pop(address).leave()

    def close(self) -> None:
        self._is_closed = True
        self._loop.remove_round_hook(self._flush)
        for connection in list(self._connections):
            connection.close("the router ends")
        self._connecting.close(self._loop.clock.now())

    # -- for a job --------------------------------------------------------------------

    def connect(self, job: _Job) -> None:
        """Connects to a job, and tells it what came of it."""

        def run() -> None:
            try:
                wire = connect(job.address, self._tls)
            except (OSError, ValueError) as error:
                self._loop.post(partial(job.on_failed, str(error)))
            else:
                self._loop.post(partial(self._on_connected, job, wire))

        try:
            self._connecting.submit(run)
        except RuntimeError as error:  # there are no more threads, or this is closed
            self._loop.post(partial(job.on_failed, str(error)))

    def mark_dirty(self, connection: JobConnection) -> None:
        """Has a connection flushed at the end of the round."""
        self._dirty[connection] = None

    def _on_connected(self, job: _Job, wire: Wire) -> None:
        if self._is_closed:
            wire.socket.close()
            job.on_failed("the router ends")
            return

        def on_lost(connection: JobConnection, problem: str) -> None:
            self._connections.discard(connection)
            job.on_lost(connection, problem)

        is_secure = self._tls is not None
        requests = ClientConnection(job.address, is_secure, job.send, error_of)
        made = JobConnection(self._loop, wire, requests, self.mark_dirty, on_lost)
        self._connections.add(made)
        job.on_connected(made)

    def _flush(self, now_s: float) -> float | None:
        if not self._dirty:
            return None
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            if connection.flush():
                self._dirty[connection] = None
        return now_s if self._dirty else None


def _tell(on_done: Callable[[Outcome], None], outcome: Outcome) -> None:
    """Tells an outcome; those behind it on the connection are told theirs in any case."""
    try:
        on_done(outcome)
    except Exception:
        log.exception("event=outcome_failed")


class _Job:
    """A job that requests are sent to, whether it is connected or not."""

    def __init__(self, owner: JobRequests, loop: ServingLoop, address: str) -> None:
        self.address = address
        self._owner = owner
        self._loop = loop
        self._now = loop.clock.now
        # The last takes new requests; the others end once theirs have.
        self._connections: list[JobConnection] = []
        self._waiting: dict[UnaryRequest, None] = {}  # for a connection
        self._is_connecting = False
        self._is_left = False
        self._problem = ""
        self._may_connect_s = 0.0

    def send(self, request: UnaryRequest) -> None:
        if self._connections and not self._connections[-1].requests.is_leaving:
            self._connections[-1].send(request)
            return
        self._waiting[request] = None
        if self._is_connecting:
            return
        if self._now() < self._may_connect_s:
            self._loop.post(self._fail_waiting)
        else:
            self._is_connecting = True
            self._owner.connect(self)

    def give_up(self, request: UnaryRequest) -> None:
        if self._waiting.pop(request, self) is self:
            for connection in self._connections:
                connection.give_up(request)

    def leave(self) -> None:
        """Has its connections closed once they have nothing under way."""
        self._is_left = True
        for connection in self._connections:
            connection.requests.is_leaving = True
            self._owner.mark_dirty(connection)

    def on_connected(self, connection: JobConnection) -> None:
        self._is_connecting = False
        self._connections.append(connection)
        waiting, self._waiting = self._waiting, {}
        for request in waiting:
            connection.send(request)
        if self._is_left:
            self.leave()

    def on_failed(self, problem: str) -> None:
        self._is_connecting = False
        self._rest(problem)
        self._fail_waiting()

    def on_lost(self, connection: JobConnection, problem: str) -> None:
        self._connections.remove(connection)
        if problem:
            self._rest(problem)

    def _rest(self, problem: str) -> None:
        self._problem = problem
        self._may_connect_s = self._now() + _PAUSE_S

    def _fail_waiting(self) -> None:
        if self._is_connecting:
            return  # again, meanwhile
        error = f"no server answers at {self.address}: {self._problem}"
        waiting = list(self._waiting)
        for request in waiting:  # of which an outcome may give up others
            if self._waiting.pop(request, self) is None:
                request.on_done(Unavailable(error))
