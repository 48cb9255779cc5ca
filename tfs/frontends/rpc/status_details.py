"""How an error looks on the wire, whichever transport carries it."""

from __future__ import annotations

import re
from typing import Final

from tfs.core.errors import ServingError
from tfs.proto.google.rpc import error_details_pb2, status_pb2

MAX_MESSAGE_CHARS: Final = 1024
TRUNCATED: Final = "...TRUNCATED"
DETAILS_KEY: Final = "grpc-status-details-bin"

_RETRY_INFO_URL = "type.googleapis.com/google.rpc.RetryInfo"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def wire_message(error: ServingError) -> str:
    """Returns the message clients see: cut at 1,024 characters, control-free."""
    message = error.message
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + TRUNCATED
    return _UNPRINTABLE.sub("?", message)


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
