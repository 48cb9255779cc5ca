"""Checks what both clients are given, and makes the options for grpcio."""

from __future__ import annotations

import math
from numbers import Real
from typing import Final

from tfs.client.retry_policy import RetryPolicy
from tfs.core.errors import DeadlineExceeded, InvalidArgument

DEFAULT_TIMEOUT_S: Final = 30.0
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # After a failed attempt to connect, grpcio fails every call for a second. If a
    # server was away for long, it does so for up to two minutes after the server is
    # back. This limits that pause.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
# A server opens its port before it has loaded its models, and a client that calls
# meanwhile gets NOT_FOUND. With this config grpcio asks for readiness, and is told of
# changes.
_BALANCED_OPTION: Final = (
    "grpc.service_config",
    '{"loadBalancingConfig": [{"round_robin": {}}], '
    '"healthCheckConfig": {"serviceName": ""}}',
)
_LAST_PORT: Final = 65_535
# What people write before a host, and grpcio takes for a part of the host's name.
_OTHER_SCHEMES: Final = ("http://", "https://", "grpc://", "grpcs://", "tcp://")
_IPV6: Final = frozenset("0123456789abcdefABCDEF:.")
"""What an IPv6 address without brackets is made of; host names and schemes have more."""

_LONGEST_S: Final = 1e9
"""Longest timeout in seconds that is passed on. At some ten times as much, grpcio's
clock overflows and the call ends at once."""


def channel_options(*, balanced: bool) -> tuple[tuple[str, int | str], ...]:
    """Returns the options of a channel; see ``Client`` for ``balanced``."""
    return (*_CHANNEL_OPTIONS, _BALANCED_OPTION) if balanced else _CHANNEL_OPTIONS


def checked_address(address: str) -> str:
    """Returns the address.

    Raises:
        InvalidArgument: There is no address, or it is a URL, a path or a bare IPv6
            address, which grpcio would report only at the first call, or take for
            another one; or its port is beyond 65,535, and would be taken modulo 65,536.

    """
    if not address:
        raise InvalidArgument("no address; give host:port or unix:/path")
    if not isinstance(address, str):
        raise InvalidArgument(f"an address is a text, host:port, not {address!r:.40}")
    if address.startswith("/"):
        raise InvalidArgument(f"{address}: for a Unix socket give unix:{address}")
    if address.count(":") > 1 and _IPV6.issuperset(address):
        raise InvalidArgument(
            f"{address}: put an IPv6 address into brackets, before its port: [::1]:8500"
        )
    if address.lower().startswith(_OTHER_SCHEMES):
        scheme, _, rest = address.partition("://")
        raise InvalidArgument(f"{address}: give host:port without {scheme}://, {rest}")
    port = address.rpartition(":")[2]
    if port.isdecimal() and int(port) > _LAST_PORT and not address.startswith("unix:"):
        raise InvalidArgument(f"{address}: there is no port beyond {_LAST_PORT}")
    return address


def default_timeout_s(timeout_s: float) -> float:
    """Returns the timeout of calls that name none.

    Raises:
        InvalidArgument: It is not a number, or not positive.

    """
    _check_number(timeout_s)
    if not timeout_s > 0:  # nor is NaN
        raise InvalidArgument(f"timeout_s must be positive: {timeout_s}")
    return min(timeout_s, _LONGEST_S)


def call_timeout_s(timeout_s: float | None, default_s: float) -> float:
    """Returns a call's timeout; None is the default, and infinity the longest possible.

    Raises:
        InvalidArgument: It is not a number.
        DeadlineExceeded: It is not positive, so the caller has no time left. grpcio
            rounds up, and would send such a call at times.

    """
    if timeout_s is None:
        return default_s
    _check_number(timeout_s)
    if math.isnan(timeout_s):
        raise InvalidArgument("timeout_s is not a number")
    if timeout_s <= 0:
        raise DeadlineExceeded(f"no time for the call: timeout_s is {timeout_s}")
    return min(timeout_s, _LONGEST_S)


def checked_retry(retry: RetryPolicy | None) -> RetryPolicy:
    """Returns the policy; None is the default one.

    Raises:
        InvalidArgument: It is none, which would show only when a call has failed.

    """
    if retry is None:
        return RetryPolicy()
    if not isinstance(retry, RetryPolicy):
        raise InvalidArgument(
            f"retry is a RetryPolicy, such as RetryPolicy(max_attempts=4), not "
            f"{retry!r:.40}"
        )
    return retry


def _check_number(timeout_s: object) -> None:
    if not isinstance(timeout_s, Real):
        raise InvalidArgument(
            f"timeout_s is a number of seconds, not {timeout_s!r:.40}"
        )
