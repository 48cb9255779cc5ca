"""The statistics of express, by the names of ``tfs/core/stat_names.py``.

They are computed when they are read, so publishing costs the serving loop nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tfs.core import stat_names
from tfs.core.stats import Stats
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.clients import Clients
from tfs.frontends.express.session import Session
from tfs.frontends.http2.connection import Connection


def publish(stats: Stats, clients: Clients[Session], budget: MemoryBudget) -> None:
    """Registers a transport's numbers. They may lag by what is in flight."""
    counters = clients.counters

    def total(read: Callable[[Connection], int]) -> int:
        return sum(read(session.connection) for session in list(clients.sessions))

    def num_answered() -> int:
        return counters.answered + total(lambda each: each.sender.num_answered)

    def num_decoded() -> int:
        return counters.decoded_heads + total(lambda each: each.heads.num_decoded)

    def num_resets() -> int:
        return counters.resets + total(lambda each: each.control.num_resets)

    connections: dict[str, Callable[[], int]] = {
        "handshake": lambda: len(clients.handshakes.under_way),
        "open": lambda: len(clients.sessions),
    }
    heads: dict[str, Callable[[], int]] = {
        "decoded": num_decoded,
        # Those that were not decoded were found in the cache. Neither number includes
        # calls in progress.
        "cached": lambda: max(0, num_answered() - num_decoded()),
    }
    connection_events: dict[str, Callable[[], int]] = {
        "accepted": lambda: counters.connections,
        "refused": lambda: counters.refused_connections,
        "failed_handshake": lambda: counters.failed_handshakes,
        "fault": lambda: counters.faults,
        "flood": lambda: counters.floods,
        "failure": lambda: counters.failures,
        "timeout": lambda: counters.timeouts,
    }
    call_events: dict[str, Callable[[], int]] = {
        "answered": num_answered,
        "reset": num_resets,
        "cut_off": lambda: counters.cut_off_calls,
        "handler_failure": lambda: counters.handler_failures,
        "late_finish": lambda: counters.late_finishes,
    }
    gauge = stats.gauge
    for state, read in connections.items():
        gauge(stat_names.RPC_CONNECTIONS, read, state=state)
    for how, read in heads.items():
        gauge(stat_names.RPC_HEADS, read, how=how)
    for event, read in connection_events.items():
        gauge(stat_names.RPC_CONNECTION_EVENTS, read, event=event)
    for event, read in call_events.items():
        gauge(stat_names.RPC_CALL_EVENTS, read, event=event)
    gauge(stat_names.RPC_STREAMS, lambda: total(lambda each: len(each.streams)))
    gauge(stat_names.RPC_RECEIVE_BYTES, lambda: budget.used_bytes)
    gauge(stat_names.RPC_FAILED_ACCEPTS, lambda: counters.failed_accepts)
    gauge(stat_names.RPC_SLOW_ROUNDS, lambda: counters.slow_rounds)
