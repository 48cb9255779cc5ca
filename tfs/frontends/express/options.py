"""The options of the express transport."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf

from tfs.frontends.http2.state import ConnectionLimits


@dataclass(frozen=True, slots=True)
class ExpressOptions:
    """Limits and timeouts of the transport. Immutable, validated on creation.

    Attributes:
        limits: What one connection may ask for.
        max_receive_bytes: Most bytes that clients make the server keep
            (:mod:`tfs.frontends.budget`).
        max_connections: Most connections; further ones are closed at once.
        max_handshakes: Most TLS handshakes under way at the same time. For a further
            one, the oldest that waits for its client is given up.
        max_read_bytes: Most bytes taken from one connection in one round.
        max_written_bytes: Most bytes of long answers moved to one connection's socket
            in one round.
        max_unsent_bytes: While the kernel has not taken more bytes of answers than
            this, nothing more is read from that connection.
        max_stream_queued_bytes: Most bytes of answers that wait in one stream. Beyond
            that, ``StreamCall.send`` refuses.
        no_progress_timeout_s: What waits for its client for so long is ended
            (:mod:`tfs.frontends.express.timeouts`).
        max_connection_age_s: Time after which a connection is drained, a tenth more or
            less, so that a balancer's clients move; infinite by default.
        max_connection_age_grace_s: Time after that for its calls to end.
        keepalive_time_s: Time without any byte after which the client gets a PING.
        drain_grace_s: Time for a client to see that the server drains. Requests that it
            sends later are ignored.
        sweep_interval_s: How often these timeouts are checked, and so how exact they
            are. Deadlines of calls are not among them.
        slow_round_s: A round that takes longer is logged.

    """

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_receive_bytes: int = 256 << 20
    max_connections: int = 10_000
    max_handshakes: int = 1024
    max_read_bytes: int = 262_144
    max_written_bytes: int = 2 << 20
    max_unsent_bytes: int = 1 << 20
    max_stream_queued_bytes: int = 4 << 20
    no_progress_timeout_s: float = 10.0
    max_connection_age_s: float = inf
    max_connection_age_grace_s: float = inf
    keepalive_time_s: float = 300.0
    drain_grace_s: float = 1.0
    sweep_interval_s: float = 1.0
    slow_round_s: float = 0.1

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int | float) and value <= 0:
                raise ValueError(f"{option.name} must be positive: {value}")
