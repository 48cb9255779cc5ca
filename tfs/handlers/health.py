"""grpc.health.v1: Check and Watch, for the server, its services and its models.

The empty name asks for readiness: SERVING once all models of the start have settled, as
long as at least one can answer, and NOT_SERVING while draining. ``tfs.live`` asks for
liveness: SERVING as long as the process answers at all. Services are known by their
full names and by TensorFlow Serving's bare ones; any other name is taken for a model's.
"""

from __future__ import annotations

from typing import Final, Protocol

from tfs.core.call import Call, StreamCall
from tfs.core.errors import NotFound, ResourceExhausted, ServingError
from tfs.handlers.message_limits import QUESTION_BYTES, parse
from tfs.proto.grpc.health.v1 import health_pb2 as pb

LIVENESS: Final = "tfs.live"
SERVICES: Final = frozenset(
    {
        "PredictionService",
        "ModelService",
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "tfs.v1.AdminService",
        "inference.GRPCInferenceService",
    }
)

MAX_WATCHERS: Final = 16_384
"""Most watches: more than there are connections, and all are told within 0.1 s."""


class HealthReader(Protocol):
    """What the health service needs to know. Thread-safe, never blocks."""

    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        ...

    def is_model_available(self, name: str) -> bool | None:
        """Whether the model can answer; None if no such model is configured."""
        ...


class HealthHandler:
    """Answers Check and Watch. Confined to the serving loop.

    ``refresh`` is called on the loop after anything that may change an answer.
    """

    def __init__(self, reader: HealthReader) -> None:
        self._reader = reader
        self._watchers: dict[
            StreamCall, tuple[str, pb.HealthCheckResponse.ServingStatus | None]
        ] = {}
        self._is_closed = False

    def check(self, call: Call) -> None:
        """Replies with the status now; an unknown name is NOT_FOUND."""
        try:
            service = parse(pb.HealthCheckRequest, call.message, QUESTION_BYTES).service
            status = self._status(service)
            if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
                raise NotFound(f"no service or model named {service!r}")
        except ServingError as error:
            call.fail(error)
            return
        call.reply(self._message(status))

    def watch(self, call: StreamCall) -> None:
        """Sends the status now and after every change, until the client goes away."""
        try:
            service = parse(pb.HealthCheckRequest, call.message, QUESTION_BYTES).service
            if len(self._watchers) >= MAX_WATCHERS:
                raise ResourceExhausted(f"{MAX_WATCHERS} health watches are open")
        except ServingError as error:
            call.fail(error)
            return
        if self._is_closed:
            call.reply(self._message(self._status(service)))
            return
        call.on_cancel(lambda: self._forget(call))
        if call.cancel.error is None:
            self._watchers[call] = (service, None)
            self._update(call, self._status(service))

    def refresh(self) -> None:
        """Tells the watchers whose answer changed."""
        # Each answer is computed once, because that looks at every model.
        names = {service for service, _ in self._watchers.values()}
        statuses = {name: self._status(name) for name in names}
        for call, (service, _) in list(self._watchers.items()):
            self._update(call, statuses[service])

    def close(self) -> None:
        """Ends every watch. A watch that begins later ends after its first answer."""
        self._is_closed = True
        watchers, self._watchers = self._watchers, {}
        for call in watchers:
            call.finish()

    def _update(
        self, call: StreamCall, status: pb.HealthCheckResponse.ServingStatus
    ) -> None:
        if call not in self._watchers:
            return  # the message sent to another watcher ended this one
        service, sent = self._watchers[call]
        if status == sent:
            return
        if call.send(self._message(status)):
            self._watchers[call] = (service, status)

    @staticmethod
    def _message(status: pb.HealthCheckResponse.ServingStatus) -> bytes:
        return pb.HealthCheckResponse(status=status).SerializeToString()

    def _forget(self, call: StreamCall) -> None:
        self._watchers.pop(call, None)

    def _status(self, service: str) -> pb.HealthCheckResponse.ServingStatus:
        if service == LIVENESS:
            return pb.HealthCheckResponse.SERVING
        if service == "" or service in SERVICES:
            serving: bool | None = self._reader.is_ready()
        else:
            serving = self._reader.is_model_available(service)
        if serving is None:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        if serving:
            return pb.HealthCheckResponse.SERVING
        return pb.HealthCheckResponse.NOT_SERVING
