"""What the express transport can be told."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits


@dataclass(frozen=True, slots=True)
class ExpressOptions:
    """Limits and timeouts of the transport. Immutable, validated on creation.

    Attributes:
        limits: What one connection may ask for.
        max_receive_bytes: Receive windows granted and request bytes held, over all
            connections.
        max_connections: Beyond, new ones are closed at once.
        max_handshakes: Of TLS, under way at the same time; beyond, the oldest that
            waits for its client makes way.
        max_read_bytes: Taken from one connection in one round; less while others
            have something to do (:mod:`~tfs.frontends.rpc.express.turns`), as are
            ``limits.max_requests_per_round`` and the next.
        max_written_bytes: Of large answers, moved to one connection's socket in one
            round.
        max_unsent_bytes: Answers the kernel does not take; above, nothing more is
            read from that connection.
        max_stream_queued_bytes: Most answers that wait in one stream; above,
            ``StreamCall.send`` refuses.
        max_backlog_bytes: Answers that clients do not take, over all connections;
            above, the slowest are closed.
        least_open_bytes: What requests and such answers may take together before they
            wait for each other, where that is more than a sixteenth of
            ``max_receive_bytes``.
        handshake_timeout_s: From accept until preface and SETTINGS are there; as long
            again for TLS before it.
        header_timeout_s: For a header block, or any frame but DATA, to be whole.
        body_timeout_s: For a request message to be whole, plus one second per
            ``min_body_bytes_per_s`` received.
        min_body_bytes_per_s: Slower clients are cut off after ``body_timeout_s``.
        write_timeout_s: For a client to take anything of what waits for it; of an
            answer, at 16 KB a second.
        starve_timeout_s: While connections starve, requests of others fail that come
            at less than ``min_body_bytes_per_s`` for as long.
        favour_timeout_s: As much for the connection that is favoured, for which all
            others wait; and for the receive budget to have room for it: then its
            youngest unfinished request fails.
        idle_timeout_s: Without any call, until a connection is drained.
        keepalive_time_s: Without any byte, until the client is asked for a sign.
        keepalive_timeout_s: How long the server waits for that sign.
        drain_grace_s: For a client to see that we drain, before its later requests
            are ignored.
        sweep_interval_s: How often these timeouts are looked at; they are exact to
            that much. Deadlines of calls are not among them.
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
