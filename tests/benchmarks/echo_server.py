"""The floor under any grpcio server: returns the request's bytes, whatever the method.

Run as `python -m tests.benchmarks.echo_server`, in a process of its own so that its
CPU can be counted. It prints `listening on 127.0.0.1:PORT` and ends on SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from concurrent import futures
from typing import TYPE_CHECKING

import grpc

# As many as the requests in flight that the benchmarks send: fewer would queue, and
# threads that never get work cost nothing.
NUM_THREADS = 16


if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[bytes, bytes]
else:  # generic in the stubs only
    _Handler = grpc.GenericRpcHandler


class EchoHandler(_Handler):
    """Answers every unary method with its request. Thread-safe."""

    def __init__(self) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(_echo)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        return self._handler


def _echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request


def serve() -> None:
    """Serves on a free port of the loopback until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.set())
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=NUM_THREADS),
        handlers=[EchoHandler()],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    stop.wait()
    server.stop(0).wait(5)


if __name__ == "__main__":
    serve()
