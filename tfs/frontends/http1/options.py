"""Limits of the HTTP/1.1 transport."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tfs.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How much clients may send, and how long they may take. Immutable, checked.

    Attributes:
        max_head_bytes: Longest request line and headers together.
        max_body_bytes: Longest body, as sent and when inflated.
        max_connections: Clients at a time; more are closed at once.
        max_handshakes: Most TLS handshakes under way at the same time.
        request_timeout_s: Deadline of a request, from its headers on; 0 for none.
        idle_timeout_s: How long a connection without requests is kept.
        no_progress_timeout_s: What waits for its client for so long is ended
            (:mod:`tfs.frontends.budget`).
        max_connection_age_s: After about so long a connection is closed behind the
            answer that comes next; 0 for never.
        compress_bytes: Least answer that is compressed for a client that accepts gzip.
        sweep_interval_s: How often timeouts are looked at.

    """

    max_head_bytes: int = 16 << 10
    max_body_bytes: int = 64 << 20
    max_connections: int = 10_000
    max_handshakes: int = 1024
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 300.0
    no_progress_timeout_s: float = 10.0
    max_connection_age_s: float = 0.0
    compress_bytes: int = 1 << 10
    sweep_interval_s: float = 1.0

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            may_be_0 = option.name in ("request_timeout_s", "max_connection_age_s")
            if value < 0 or (not value and not may_be_0):
                raise InvalidArgument(f"{option.name} must be positive; was {value}")
