"""What both clients are told, checked, and what they tell grpcio."""

from __future__ import annotations

import math
from typing import Final

from tfs.core.errors import DeadlineExceeded, InvalidArgument

DEFAULT_TIMEOUT_S: Final = 30.0
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # After a failed attempt to connect, grpcio fails every call for a second and, the
    # longer the server was away, for up to two minutes after it is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
# A server opens its port before it has loaded its models, and says when it is ready: who
# connects and calls meanwhile gets NOT_FOUND. With this grpcio asks, and is told of changes.
_BALANCED_OPTION: Final = (
    "grpc.service_config",
    '{"loadBalancingConfig": [{"round_robin": {}}], '
    '"healthCheckConfig": {"serviceName": ""}}',
)
_LAST_PORT: Final = 65_535
_LONGEST_S: Final = 1e9
"""Longest timeout that is passed on: at some ten times as much grpcio's clock
overflows, and the call ends at once."""


def channel_options(*, balanced: bool) -> tuple[tuple[str, int | str], ...]:
    """Returns what a channel is made with; see ``Client`` for ``balanced``."""
    return (*_CHANNEL_OPTIONS, _BALANCED_OPTION) if balanced else _CHANNEL_OPTIONS


def checked_address(address: str) -> str:
    """Returns the address.

    Raises:
        InvalidArgument: There is none; grpcio would say so at the first call, at length.
            Or a port that there is not: that would be another one, modulo 65,536.

    """
    if not address:
        raise InvalidArgument("no address; give host:port or unix:/path")
    port = address.rpartition(":")[2]
    if port.isdecimal() and int(port) > _LAST_PORT and not address.startswith("unix:"):
        raise InvalidArgument(f"{address}: there is no port beyond {_LAST_PORT}")
    return address


def default_timeout_s(timeout_s: float) -> float:
    """Returns the timeout of calls that name none.

    Raises:
        InvalidArgument: It is not positive.

    """
    if not timeout_s > 0:  # nor is NaN
        raise InvalidArgument(f"timeout_s must be positive: {timeout_s}")
    return min(timeout_s, _LONGEST_S)


def call_timeout_s(timeout_s: float | None, default_s: float) -> float:
    """Returns what a call has; None is the default, infinity as long as can be said.

    Raises:
        InvalidArgument: It is not a number.
        DeadlineExceeded: It is not positive: whoever hands on what is left of a time
            has none. grpcio rounds up, and sends such a call now and then.

    """
    if timeout_s is None:
        return default_s
    if math.isnan(timeout_s):
        raise InvalidArgument("timeout_s is not a number")
    if timeout_s <= 0:
        raise DeadlineExceeded(f"no time for the call: timeout_s is {timeout_s}")
    return min(timeout_s, _LONGEST_S)
