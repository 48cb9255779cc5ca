"""The options of the express transport."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf

from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits


@dataclass(frozen=True, slots=True)
class ExpressOptions:
    """Limits and timeouts of the transport. Immutable, validated on creation.

    Attributes:
        limits: What one connection may ask for.
        max_receive_bytes: Most bytes of receive windows granted and requests held, over
            all connections.
        max_connections: Most connections; further ones are closed at once.
        max_handshakes: Most TLS handshakes under way at the same time. For a further
            one, the oldest that waits for its client is given up.
        max_read_bytes: Most bytes taken from one connection in one round. While other
            connections have something to do, this, ``limits.max_requests_per_round``
            and ``max_written_bytes`` are reduced
            (:mod:`~tfs.frontends.rpc.express.turns`).
        max_written_bytes: Most bytes of large answers moved to one connection's socket
            in one round.
        max_unsent_bytes: While the kernel has not taken more bytes of answers than
            this, nothing more is read from that connection. A few long answers that are
            being taken do not count.
        max_stream_queued_bytes: Most bytes of answers that wait in one stream. Beyond
            that, ``StreamCall.send`` refuses.
        max_backlog_bytes: Most bytes of answers that clients do not take, over all
            connections. Beyond that, the slowest connections are closed.
        least_open_bytes: The least that requests and such answers may take together
            before they wait for each other. It applies if it is more than a sixteenth
            of ``max_receive_bytes``; requests get no more than a quarter of that.
        handshake_timeout_s: Time from accept until preface and SETTINGS have arrived.
            A TLS handshake before that may take as long again.
        header_timeout_s: Time for a header block, or any frame but DATA, to arrive.
        body_timeout_s: Time for a request message to arrive, plus one second per
            ``min_body_bytes_per_s`` received, and the time that it waits for the budget.
        min_body_bytes_per_s: Slower clients are cut off after ``body_timeout_s``.
        write_timeout_s: Time for a client to take any of the bytes that wait for it.
            Answers have to be taken at 16 KB a second.
        starve_timeout_s: While connections starve, requests of others fail if they
            arrive at less than ``min_body_bytes_per_s`` for this long.
        favour_timeout_s: The same for the favoured connection, for which all others
            wait. If the receive budget has no room for it for this long, its youngest
            unfinished request fails.
        max_connection_age_s: Time after which a connection is drained, a tenth more or
            less, so that a balancer's clients move; infinite by default.
        max_connection_age_grace_s: Time after that for its calls to end.
        idle_timeout_s: Time without any call after which a connection is drained.
        keepalive_time_s: Time without any byte after which the client gets a PING.
        keepalive_timeout_s: How long the server waits for the answer to that PING.
        drain_grace_s: Time for a client to see that the server drains. Requests that it
            sends later are ignored.
        sweep_interval_s: How often these timeouts are checked, and so how exact they
            are. Deadlines of calls are not among them.
        slow_round_s: A round that takes longer is logged.
        look_s: How long the loop looks for the next request of a client that sends one
            at a time, before it sleeps
            (:mod:`~tfs.frontends.rpc.express.lone_caller`); 0 is never.

    """

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_receive_bytes: int = 256 << 20
    max_connections: int = 10_000
    max_handshakes: int = 1024
    max_read_bytes: int = 262_144
    max_written_bytes: int = 2 << 20
    max_unsent_bytes: int = 1 << 20
    max_stream_queued_bytes: int = 4 << 20
    max_backlog_bytes: int = 256 << 20
    least_open_bytes: int = 8 << 20
    handshake_timeout_s: float = 10.0
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    min_body_bytes_per_s: int = 16_384
    write_timeout_s: float = 30.0
    starve_timeout_s: float = 5.0
    favour_timeout_s: float = 2.0
    max_connection_age_s: float = inf
    max_connection_age_grace_s: float = inf
    idle_timeout_s: float = 3600.0
    keepalive_time_s: float = 300.0
    keepalive_timeout_s: float = 20.0
    drain_grace_s: float = 1.0
    sweep_interval_s: float = 1.0
    slow_round_s: float = 0.1
    look_s: float = 0.0

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name == "look_s":
                if value < 0:
                    raise ValueError(f"look_s must not be negative: {value}")
            elif isinstance(value, int | float) and value <= 0:
                raise ValueError(f"{option.name} must be positive: {value}")
