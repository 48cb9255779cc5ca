"""How a request travels to a server, and how its reply is read."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import grpc
import numpy as np
import numpy.typing as npt

from tests.benchmarks import h2load

Array = npt.NDArray[np.float32]

REPLY_TIMEOUT_S = 30.0
OCTETS = "application/octet-stream"


class NoAnswerError(Exception):
    """The server did not answer, or with an error; says what came."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One server's transport and messages. Immutable.

    Attributes:
        path: of the URL; gRPC's full method name.
        encode: one row to the message that asks for it.
        decode: the reply's message to the values of the output, flat; ValueError or
            another exception if it is no such message.
        is_grpc: messages are framed as gRPC does.
        is_http1: HTTP/1.1, a connection for each request in flight; else HTTP/2, one
            connection with as many streams.
        headers: beside the content type, where it is not gRPC.
    """

    path: str
    encode: Callable[[Array], bytes]
    decode: Callable[[bytes], Array]
    is_grpc: bool = False
    is_http1: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def ask(self, target: str, body: bytes) -> bytes:
        """Returns the reply to one request; blocks. Not what is timed.

        Raises:
            NoAnswerError: There is none yet.
        """
        return (
            _ask_grpc(target, self.path, body)
            if self.is_grpc
            else self._ask(target, body)
        )

    def _headers(self) -> dict[str, str]:
        return {"content-type": OCTETS, **self.headers}

    def _ask(self, target: str, body: bytes) -> bytes:
        # In HTTP/1.1 also where HTTP/2 is measured: it is the same handler behind it.
        connection = http.client.HTTPConnection(target, timeout=REPLY_TIMEOUT_S)
        try:
            connection.request("POST", self.path, body, self._headers())
            response = connection.getresponse()
            reply = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(str(error)) from error
        finally:
            connection.close()
        if response.status != 200:
            raise NoAnswerError(f"status {response.status}: {reply[:200]!r}")
        return reply

    def load(
        self,
        program: h2load.H2load,
        target: str,
        body: bytes,
        *,
        num_requests: int,
        num_in_flight: int,
    ) -> h2load.Load:
        """Sends `body` that often; blocks until all is answered."""
        if self.is_grpc:
            return h2load.run(
                program,
                target,
                self.path,
                body,
                num_requests=num_requests,
                num_in_flight=num_in_flight,
            )
        return h2load.send(
            program,
            f"http://{target}{self.path}",
            body,
            [f"{name}: {value}" for name, value in self._headers().items()],
            num_requests=num_requests,
            num_connections=num_in_flight if self.is_http1 else 1,
            num_streams=1 if self.is_http1 else num_in_flight,
            is_http1=self.is_http1,
        )

    def check(self, load: h2load.Load, reply_bytes: int) -> None:
        """Every request was answered, and with as many bytes as the right reply has.

        Raises:
            ValueError: It was not; says what came instead.
        """
        if not self.is_http1:
            load.check(reply_bytes, h2load.PREFIX_BYTES if self.is_grpc else 0)
            return
        expected_bytes = load.num_asked * reply_bytes
        # The status is not asked for: see h2load.Load. An error has another size.
        if load.num_answered != load.num_asked or load.num_data_bytes != expected_bytes:
            raise ValueError(
                f"{load.num_answered} of {load.num_asked} requests answered, "
                f"{load.num_data_bytes} bytes of replies, not {expected_bytes}"
            )


def _ask_grpc(target: str, method: str, body: bytes) -> bytes:
    unlimited = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with grpc.insecure_channel(target, options=unlimited) as channel:
        try:
            reply: bytes = channel.unary_unary(method, bytes, bytes)(
                body, timeout=REPLY_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise NoAnswerError(f"{error.code().name}: {error.details()}") from error
    return reply


def to_bytes(row: Array) -> bytes:
    return row.tobytes()


def from_bytes(reply: bytes) -> Array:
    return np.frombuffer(reply, np.float32)
