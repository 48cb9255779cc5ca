"""The surroundings of a connection, passed through its layers as one value."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.frontends.rpc.express.http2.connection_events import ConnectionEvents
from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.http2.flow_control import ReceiveBudget
from tfs.frontends.rpc.express.http2.receive_buffers import ReceiveBuffers


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The surroundings of one connection. Immutable; its parts are the server's.

    Attributes:
        events: The object that is told what the peer does.
        budget: The server's receive budget.
        limits: What the peer may ask.
        begun_s: When the connection was accepted, by the loop's clock.
        buffers: Provides the memory of large messages. None gives each a buffer of its
            own.

    """

    events: ConnectionEvents
    budget: ReceiveBudget
    limits: ConnectionLimits
    begun_s: float
    buffers: ReceiveBuffers | None = None
