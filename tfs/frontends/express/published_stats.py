"""The statistics of express, by the names of ``tfs/core/stat_names.py``.

They are computed when they are read, so publishing costs the serving loop nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tfs.core import stat_names
from tfs.core.stats import Stats
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.counters import Counters
from tfs.frontends.http2.connection import Connection


class Counted(Protocol):
    """The parts of the transport that statistics read, from any thread."""

    @property
    def counters(self) -> Counters:
        """What happened since the start."""
        ...

    @property
    def budget(self) -> MemoryBudget:
        """The server's budget."""
        ...

    @property
    def num_handshakes(self) -> int:
        """TLS handshakes under way."""
        ...

    def connections(self) -> list[Connection]:
        """Returns the open connections."""
        ...


def publish(stats: Stats, transport: Counted) -> None:
    """Registers the transport's numbers. They may lag by what is in flight."""
    counters = transport.counters

    def num_answered() -> int:
        return counters.answered + sum(
            connection.sender.num_answered for connection in transport.connections()
        )

    def num_decoded() -> int:
        return counters.decoded_heads + sum(
            connection.num_decoded_heads for connection in transport.connections()
        )

    def num_resets() -> int:
        return counters.resets + sum(
            connection.num_resets for connection in transport.connections()
        )

    gauge = stats.gauge
    gauge(
        stat_names.RPC_CONNECTIONS,
        lambda: transport.num_handshakes,
        state="handshake",
    )
    gauge(
        stat_names.RPC_CONNECTIONS, lambda: len(transport.connections()), state="open"
    )
    gauge(
        stat_names.RPC_STREAMS,
        lambda: sum(len(each.streams) for each in transport.connections()),
    )
    gauge(stat_names.RPC_RECEIVE_BYTES, lambda: transport.budget.used_bytes)
    gauge(stat_names.RPC_FAILED_ACCEPTS, lambda: counters.failed_accepts)
    gauge(stat_names.RPC_SLOW_ROUNDS, lambda: counters.slow_rounds)
    gauge(stat_names.RPC_HEADS, num_decoded, how="decoded")
    # Heads that were not decoded were found in the cache. Neither number includes
    # calls in progress.
    gauge(
        stat_names.RPC_HEADS,
        lambda: max(0, num_answered() - num_decoded()),
        how="cached",
    )
    connection_events: dict[str, Callable[[], int]] = {
        "accepted": lambda: counters.connections,
        "refused": lambda: counters.refused_connections,
        "failed_handshake": lambda: counters.failed_handshakes,
        "fault": lambda: counters.faults,
        "flood": lambda: counters.floods,
        "failure": lambda: counters.failures,
        "timeout": lambda: counters.timeouts,
    }
    for event, read in connection_events.items():
        gauge(stat_names.RPC_CONNECTION_EVENTS, read, event=event)
    call_events: dict[str, Callable[[], int]] = {
        "answered": num_answered,
        "reset": num_resets,
        "cut_off": lambda: counters.cut_off_calls,
        "handler_failure": lambda: counters.handler_failures,
        "late_finish": lambda: counters.late_finishes,
    }
    for event, read in call_events.items():
        gauge(stat_names.RPC_CALL_EVENTS, read, event=event)
