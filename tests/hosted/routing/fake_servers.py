"""Servers of a fleet as a router sees them: they answer, are late, refuse, or are gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from tfs.proto.grpc.health.v1 import health_pb2

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0))


class FakeServer:
    """Answers every method with its name and the request. Thread-safe.

    Attributes:
        address: Where it listens.
        answer: Makes the answer; may wait, or refuse by ``context.abort``.
        requests: The methods and deadlines of what came.

    """

    def __init__(self, folder: Path, name: str, address: str = "") -> None:
        self.name = name
        self.address = address or f"unix:{folder}/{name}.sock"
        self.answer: Callable[[bytes, Any], bytes] = self.plain
        self.requests: list[tuple[str, float]] = []
        self.metadata: dict[str, str | bytes] = {}
        # Guards the last two; leaf.
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def plain(self, message: bytes, context: Any) -> bytes:
        return self.name.encode() + b":" + message

    def start(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)
        self._server.add_generic_rpc_handlers((_handlers(self),))
        self._server.add_insecure_port(self.address)
        self._server.start()

    def stop(self) -> None:
        """Ends it at once, with all its requests."""
        if self._server is not None:
            self._server.stop(None).wait()
        self._server = None

    def take(self, method: str, message: bytes, context: Any) -> bytes:
        if method.startswith("/grpc.health"):
            serving = health_pb2.HealthCheckResponse.SERVING
            return health_pb2.HealthCheckResponse(status=serving).SerializeToString()
        with self._lock:
            self.requests.append((method, context.time_remaining() or 0.0))
            self.metadata = dict(context.invocation_metadata())
        return self.answer(message, context)


def _handlers(server: FakeServer) -> grpc.GenericRpcHandler[Any, Any]:
    class Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
        def service(self, details: Any) -> Any:
            method = details.method
            return grpc.unary_unary_rpc_method_handler(
                lambda message, context: server.take(method, message, context)
            )

    return Handlers()
