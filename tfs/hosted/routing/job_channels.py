"""gRPC channels to serving jobs: for AdminService, and for requests that are passed on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from tfs.codec.call_error import read_error
from tfs.core.call import Metadata
from tfs.core.errors import (
    BY_CODE,
    Aborted,
    Code,
    NotFound,
    Unavailable,
)
from tfs.hosted.reports import JobReport, report_of
from tfs.hosted.routing.python_router import Outcome
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

R = TypeVar("R", bound=Message)

_ADMIN_TIMEOUT_S: Final = 5.0
_ASPIRE_TIMEOUT_S: Final = 60.0  # ten thousand models take a server some seconds
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),  # less than between two looks
)


@dataclass(slots=True, eq=False)
class _JobChannel:
    """A channel; changed only under the lock of :class:`JobChannels`."""

    channel: grpc.Channel
    num_calls: int = 0
    report: JobReport | None = None  # the last one
    is_forgotten: bool = False


class JobChannels:
    """One channel to each job, made when first used. Thread-safe.

    Args:
        credentials: For TLS to the jobs; None speaks plain text.

    """

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._credentials = credentials
        # Guards the next two and what is in them; leaf.
        self._lock = threading.Lock()
        self._by_address: dict[str, _JobChannel] = {}
        self._open: set[_JobChannel] = (
            set()
        )  # including forgotten ones that still have calls

    def send(
        self,
        address: str,
        method: str,
        message: bytes,
        timeout_s: float | None,
        metadata: Metadata,
        on_done: Callable[[Outcome], None],
    ) -> Callable[[], None]:
        """Is a :data:`~tfs.hosted.routing.python_router.SendRequest`."""
        job = self._begin_call(address)
        try:
            future: Any = job.channel.unary_unary(method, None, None).future(
                message, timeout=timeout_s, metadata=tuple(metadata) or None
            )
        except BaseException:
            self._end_call(job)
            raise

        def done(ended: Any) -> None:
            self._end_call(job)
            on_done(_outcome(ended))

        future.add_done_callback(done)
        return lambda: future.cancel() and None

    def list_models(self, address: str) -> JobReport:
        """Asks a job for its models; see :class:`~tfs.hosted.servers.JobClient`."""
        with self._lock:
            job = self._by_address.get(address)
            known = job.report if job else None
        report = known or JobReport(revision=1)  # 1: all, in parts
        is_part = True
        while is_part:
            request = pb.ListModelsRequest(since=report.revision)
            reply = self._ask(address, request, pb.ListModelsResponse)
            report = report_of(reply, report)
            is_part = reply.revision < reply.newest
            # Each part counts, also where the next is not answered in time.
            with self._lock:
                if job := self._by_address.get(address):
                    job.report = report
        return report

    def aspire(self, address: str, request: pb.AspireRequest) -> None:
        """Tells a server what to serve; see :class:`~tfs.hosted.servers.JobClient`.

        A version that fails to load is not an error: the server serves what it can.
        """
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

    def forget(self, address: str) -> None:
        """Closes the channel to a job, if it is open, once its calls have ended."""
        with self._lock:
            job = self._by_address.pop(address, None)
            if job is not None:
                job.is_forgotten = True
        if job is not None:
            self._close_if_idle(job)

    def close(self) -> None:
        """Closes all channels, which ends the calls under way; idempotent."""
        with self._lock:
            left = list(self._open)
            self._open.clear()
            self._by_address.clear()
        for job in left:
            job.channel.close()

    def _ask(
        self,
        address: str,
        request: Message,
        reply: type[R],
        timeout_s: float = _ADMIN_TIMEOUT_S,
    ) -> R:
        method = type(request).__name__.removesuffix("Request")
        job = self._begin_call(address)
        try:
            call: Any = job.channel.unary_unary(
                f"/tfs.v1.AdminService/{method}", None, None
            )
            return reply.FromString(
                call(request.SerializeToString(), timeout=timeout_s)
            )
        except grpc.RpcError as error:
            raise read_error(error, address) from error
        finally:
            self._end_call(job)

    def _begin_call(self, address: str) -> _JobChannel:
        """Returns the channel for one more call, which ``_end_call`` ends."""
        with self._lock:
            job = self._by_address.get(address)
            if job is None:
                job = self._by_address[address] = _JobChannel(
                    grpc.insecure_channel(address, _OPTIONS)
                    if self._credentials is None
                    else grpc.secure_channel(address, self._credentials, _OPTIONS)
                )
                self._open.add(job)
            job.num_calls += 1
            return job

    def _end_call(self, job: _JobChannel) -> None:
        with self._lock:
            job.num_calls -= 1
        self._close_if_idle(job)

    def _close_if_idle(self, job: _JobChannel) -> None:
        with self._lock:
            is_last = job.is_forgotten and not job.num_calls and job in self._open
            if is_last:
                self._open.remove(job)
        if is_last:
            job.channel.close()


def _outcome(ended: Any) -> Outcome:
    """Returns the outcome of a call, whose future is done."""
    try:
        answer: bytes = ended.result()
        return answer
    except grpc.FutureCancelledError:
        return BY_CODE[Code.CANCELLED]("given up")
    except grpc.RpcError as error:
        return read_error(error)
