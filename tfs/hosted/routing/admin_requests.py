"""Asks jobs by their AdminService, for threads that may wait."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import Message

from tfs.core.errors import (
    Aborted,
    DeadlineExceeded,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.http2.unary_request import Outcome
from tfs.hosted.reports import JobReport, report_of
from tfs.hosted.routing.job_connection import TlsFiles
from tfs.hosted.routing.job_requests import JobRequests
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

R = TypeVar("R", bound=Message)

_ADMIN_TIMEOUT_S: Final = 5.0
_ASPIRE_TIMEOUT_S: Final = 60.0  # ten thousand models take a server some seconds


class AdminRequests:
    """Implements :class:`~tfs.hosted.servers.JobClient`, over connections of its own.

    Args:
        loop: Has the connections; its own thread must not ask.
        tls: For TLS to the jobs; None speaks plain text.

    """

    def __init__(self, loop: ServingLoop, tls: TlsFiles | None = None) -> None:
        self._loop = loop
        self._requests = JobRequests(loop, tls)
        # Held by who makes a long reply a report: the loop waits for the interpreter as long
        # as for one thread, not for ten, when ten servers have answered. Leaf.
        self._reporting = threading.Lock()

    def list_models(self, address: str, before: JobReport) -> JobReport:
        request = pb.ListModelsRequest(since=before.revision)
        reply = self._ask(address, request, pb.ListModelsResponse)
        with self._reporting:
            return report_of(reply, before)

    def aspire(self, address: str, request: pb.AspireRequest) -> None:
        # A version that fails to load is no error: the server serves what it can.
        self._ask(address, request, pb.AspireResponse, _ASPIRE_TIMEOUT_S)

    def probe(
        self, address: str, request: pb.ProbeRequest, timeout_s: float
    ) -> pb.ProbeResponse:
        """Has a server try a version.

        Raises:
            Aborted: It answered before, and ended meanwhile.
            ServingError: It does not answer, or refuses.

        """
        alive = pb.ListModelsRequest(models=[request.config.name])
        with contextlib.suppress(NotFound):
            self._ask(address, alive, pb.ListModelsResponse)
        try:
            return self._ask(address, request, pb.ProbeResponse, timeout_s)
        except Unavailable as error:
            raise Aborted(error.message) from error

    def keep(self, addresses: Collection[str]) -> None:
        self._loop.post(partial(self._requests.keep, {*addresses}))

    def close(self) -> None:
        """Ends the calls under way."""
        self._loop.post(self._requests.close)

    def _ask(
        self,
        address: str,
        request: Message,
        reply: type[R],
        timeout_s: float = _ADMIN_TIMEOUT_S,
    ) -> R:
        method = type(request).__name__.removesuffix("Request")
        path = f"/tfs.v1.AdminService/{method}"
        message = request.SerializeToString()
        outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        sent: list[Callable[[], None]] = []

        def send() -> None:
            told = outcomes.put
            sent.append(
                self._requests.send(address, path, message, timeout_s, (), told)
            )

        self._loop.post(send)
        try:
            outcome = outcomes.get(timeout=timeout_s)
        except queue.Empty:
            self._loop.post(lambda: sent[0]())  # gives it up
            raise DeadlineExceeded(
                f"no answer from {address} within {timeout_s:g} s"
            ) from None
        if isinstance(outcome, ServingError):
            raise outcome
        return reply.FromString(outcome)
