"""gRPC channels to serving jobs, for their AdminService."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Collection
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from tfs.codec.call_error import read_error
from tfs.core.errors import Aborted, NotFound, Unavailable
from tfs.hosted.reports import JobReport, report_of
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


class JobChannels:
    """One channel to each job, made when first used. Thread-safe.

    Args:
        credentials: For TLS to the jobs; None speaks plain text.

    """

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._credentials = credentials
        # Guards the next two; leaf.
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        # Those that were let go and still have calls, too. A call holds its channel,
        # which closes when nothing does any more.
        self._open: weakref.WeakSet[grpc.Channel] = weakref.WeakSet()

    def list_models(self, address: str, before: JobReport) -> JobReport:
        """Asks a job for its models; see :class:`~tfs.hosted.servers.JobClient`."""
        request = pb.ListModelsRequest(since=before.revision)
        return report_of(self._ask(address, request, pb.ListModelsResponse), before)

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

    def keep(self, addresses: Collection[str]) -> None:
        """Closes the channels to all others, once their calls have ended."""
        with self._lock:
            for each in self._channels.keys() - addresses:
                del self._channels[each]

    def close(self) -> None:
        """Closes all channels, which ends the calls under way; idempotent."""
        with self._lock:
            left = list(self._open)
            self._open.clear()
            self._channels.clear()
        for channel in left:
            channel.close()

    def _ask(
        self,
        address: str,
        request: Message,
        reply: type[R],
        timeout_s: float = _ADMIN_TIMEOUT_S,
    ) -> R:
        method = type(request).__name__.removesuffix("Request")
        path = f"/tfs.v1.AdminService/{method}"
        channel = self._channel(address)
        call: Any = channel.unary_unary(path, None, None)
        try:
            answer = call(request.SerializeToString(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise read_error(error, address) from error
        return reply.FromString(answer)

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = (
                    grpc.insecure_channel(address, _OPTIONS)
                    if self._credentials is None
                    else grpc.secure_channel(address, self._credentials, _OPTIONS)
                )
                self._open.add(channel)
            return channel
