"""What went wrong with a call of grpcio's, and what its caller can do. No I/O."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Any, Final

from google.protobuf.message import DecodeError

from tfs.core.errors import BY_CODE, Code, ServingError, Unknown
from tfs.proto.google.rpc import error_details_pb2, status_pb2

# The beginning of messages of grpcio's own.
_LOCAL_DEADLINE: Final = "Deadline Exceeded"
_NO_CONNECTION: Final = (
    "failed to connect",
    "errors resolving",
    "connections to all backends failing",  # of a balanced client
)
# grpcio's words for a peer that is there and closes the connection.
_HUNG_UP: Final = ("Socket closed", "Connection reset", "TSI_DATA_CORRUPTED")
# Its words for a peer that speaks no TLS though it should; these are among those below.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER",)
# Its words for a peer whose certificate is not trusted, or is another host's.
_UNTRUSTED: Final = (
    "handshake failed",
    "TSI_PROTOCOL_FAILURE",
    "Hostname Verification Check failed",
)
# The server's words for an input of another dtype, with the wire's names of both.
_OTHER_DTYPE: Final = re.compile(
    r"input '(?P<name>.+)' expected to be (?P<wanted>\w+) but \w+ is provided"
)
_WIRE_NAMES: Final = {"float": "float32", "double": "float64", "half": "float16"}


def read_error(
    error: Any, address: str = "", inputs: Collection[str] = ()
) -> ServingError:
    """Returns a ``grpc.RpcError`` as ours, with the server's retry hint if it sent one.

    What grpcio itself found, without the server, names the address, if it is given. One
    of the ``inputs`` that has another dtype than the model's is said how to send: the
    wire's "float" and "double" are other types than numpy's.
    """
    code = Code(error.code().value[0])
    trailers = dict(error.trailing_metadata() or ())
    details = error.details() or code.name
    if not address:
        pass
    elif code is Code.DEADLINE_EXCEEDED and details == _LOCAL_DEADLINE:
        details = f"no answer from {address} in time; wait longer (timeout_s)"
    elif code is Code.UNAVAILABLE and details.startswith(_NO_CONNECTION):
        details = _why_not_connected(address, details)
    if code is Code.INVALID_ARGUMENT and inputs:
        other = _OTHER_DTYPE.fullmatch(details)
        if other and other["name"] in inputs:
            details += f"; {_how_to_send(other['wanted'])}"
    return error_of(code, details, trailers.get("grpc-status-details-bin", b""))


def error_of(code: Code, message: str, details: bytes) -> ServingError:
    """Returns the error of a gRPC status; its details may be empty, or no ``Status``."""
    retry_after_s = None
    with contextlib.suppress(DecodeError):
        retry_after_s = _retry_hint(details)
    kind = BY_CODE.get(code, Unknown)
    return kind(message or code.name, retry_after_s=retry_after_s)


def _how_to_send(wanted: str) -> str:
    """Returns what makes an input one of that dtype."""
    if wanted == "string":
        return "send text or bytes"
    dtype = _WIRE_NAMES.get(wanted, wanted)
    return f"send an array of dtype {dtype}, or Typed(values, {dtype!r})"


def _why_not_connected(address: str, details: str) -> str:
    """Returns what a user can do about a connection that grpc could not make."""
    if any(words in details for words in _HUNG_UP):
        return (
            f"what listens at {address} hung up; see whether it wants TLS "
            f"(credentials) or a certificate of ours ({details})"
        )
    if any(words in details for words in _NO_TLS):
        return (
            f"what listens at {address} speaks no TLS; call it without credentials "
            f"({details})"
        )
    if any(words in details for words in _UNTRUSTED):
        return (
            f"what listens at {address} is not trusted: its certificate is signed by "
            f"others than the credentials name, or is another host's ({details})"
        )
    if not {":", "/"} & {*address}:  # grpcio takes 443
        return (
            f"no server answers at {address}; add its port: {address}:8500 ({details})"
        )
    return f"no server answers at {address}; is it there? ({details})"


def _retry_hint(details: bytes) -> float | None:
    status = status_pb2.Status.FromString(details)
    for detail in status.details:
        if detail.type_url.endswith("/google.rpc.RetryInfo"):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            return float(delay.seconds) + float(delay.nanos) / 1e9
    return None
