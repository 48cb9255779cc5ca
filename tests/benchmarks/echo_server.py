"""The floor under TFS over grpcio: returns the request's bytes, whatever the method.

It is grpcio.aio on asyncio, as TFS's own grpcio transport is, so the difference is what
serving adds. Run as `python -m tests.benchmarks.echo_server`, in a process of its own
so that its CPU can be counted. It prints `listening on 127.0.0.1:PORT` and ends on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[bytes, bytes]
else:  # generic in the stubs only
    _Handler = grpc.GenericRpcHandler


class EchoHandler(_Handler):
    """Answers every unary method with its request. Immutable."""

    def __init__(self) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(_echo)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        return self._handler


async def _echo(request: bytes, context: object) -> bytes:
    return request


async def serve_until_sigterm(handler: grpc.GenericRpcHandler[Any, bytes]) -> None:
    """Serves on a free port of the loopback, says which, and ends on SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve_until_sigterm(EchoHandler()))
