"""How an error looks on the wire, whichever transport carries it."""

from __future__ import annotations

import re
from typing import Final

from tfs.core.errors import Internal, ServingError, Unimplemented
from tfs.proto.google.rpc import error_details_pb2, status_pb2

MAX_MESSAGE_CHARS: Final = 1024
MAX_MESSAGE_BYTES: Final = 7168
"""Longest error message, as it travels (percent-encoded): clients take about 8 KB of
headers."""
MAX_HINTED_MESSAGE_BYTES: Final = 4096
"""The same for an error with a retry hint, in which the message travels twice."""
TRUNCATED: Final = "...TRUNCATED"
DETAILS_KEY: Final = "grpc-status-details-bin"
CARDINALITY: Final = Unimplemented("the method takes exactly one request message")
"""gRPC's error for no request message, or for more than one."""

_RETRY_INFO_URL = "type.googleapis.com/google.rpc.RetryInfo"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def wire_message(error: ServingError) -> str:
    """Returns the message that clients see: at most 1,024 characters, no controls.

    It is cut earlier if its encoded form would be longer than clients accept (7 KB;
    1,024 letters with accents fit). A message that is cut is marked as such. It is
    never cut earlier than by TensorFlow Serving, whose characters are bytes. If a
    grpcio client is sent 9 KB, every seventh call fails with RESOURCE_EXHAUSTED instead
    of the error.
    """
    hinted = error.retry_after_s is not None
    max_bytes = MAX_HINTED_MESSAGE_BYTES if hinted else MAX_MESSAGE_BYTES
    message = error.message
    if len(message) > MAX_MESSAGE_CHARS:  # it may quote megabytes
        message = message[:MAX_MESSAGE_CHARS] + TRUNCATED
    message = _UNPRINTABLE.sub("?", message)
    if not message.isascii() or "%" in message:
        message = _cut_encoded(message, max_bytes)
    return message


def handler_error(error: BaseException, path: str) -> ServingError:
    """Returns what a client is told when a handler raised ``error``.

    Our own errors are passed on as they are. The text of any other error stays in the
    server's log, because it may quote what the client should not know.
    """
    if isinstance(error, ServingError):
        return error
    return Internal(f"{path}: the server failed; see its log")


def percent_encode(message: str) -> bytes:
    """Returns ``message`` percent-encoded for ``grpc-message``: printable ASCII.

    A space that it begins or ends with is encoded as well. HTTP/2 allows none there (RFC
    9113 section 8.2.1), and clients that check it take the connection for broken.
    """
    if message.isascii() and message.isprintable() and "%" not in message:
        encoded = message.encode()
    else:
        encoded = b"".join(map(_encoded_char, message))
    if encoded.startswith(b" "):
        encoded = b"%20" + encoded[1:]
    if encoded.endswith(b" "):
        encoded = encoded[:-1] + b"%20"
    return encoded


def _encoded_char(char: str) -> bytes:
    if " " <= char <= "~" and char != "%":
        return char.encode()
    return b"".join(b"%%%02X" % byte for byte in char.encode())


def _cut_encoded(message: str, max_bytes: int) -> str:
    num_bytes = 0
    for index, char in enumerate(message):
        num_bytes += len(_encoded_char(char))
        if num_bytes > max_bytes:
            return message[:index] + TRUNCATED
    return message


def status_details(error: ServingError) -> bytes | None:
    """Returns a serialized ``google.rpc.Status`` with RetryInfo, None without a hint.

    It travels in the trailer ``grpc-status-details-bin``.
    """
    if error.retry_after_s is None:
        return None
    delay_ns = max(0, round(error.retry_after_s * 1e9))
    retry = error_details_pb2.RetryInfo(
        retry_delay={"seconds": delay_ns // 10**9, "nanos": delay_ns % 10**9}
    )
    status = status_pb2.Status(code=int(error.code), message=wire_message(error))
    status.details.add(type_url=_RETRY_INFO_URL, value=retry.SerializeToString())
    return status.SerializeToString()
