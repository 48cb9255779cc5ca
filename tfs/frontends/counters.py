"""What happened on the connections of one transport since it started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What happened since the start. Written by the loop, read by anybody.

    Attributes:
        connections: Connections that were accepted.
        refused_connections: Connections closed at once because there were too many.
        failed_accepts: How often accepting failed, because no descriptor was free.
        failed_handshakes: TLS handshakes that failed because the client was unknown,
            too slow, or did not use TLS.
        faults: Connections closed because the peer broke a rule or was a nuisance.
        floods: Faults that were closed with ENHANCE_YOUR_CALM.
        failures: Connections closed because our own code raised.
        timeouts: Connections and calls given up for being silent.
        handler_failures: Exceptions that handlers raised.
        cut_off_calls: Calls that ended without their handler.
        late_finishes: Finishes of calls that had ended already.
        slow_rounds: Rounds that took longer than 0.1 s.
        answered: Calls answered on connections that are closed by now. Open connections
            count their own; so it is with the next two.
        resets: Streams that clients reset.
        decoded_heads: Request heads that were not in the cache of header blocks.

    """

    connections: int = 0
    refused_connections: int = 0
    failed_accepts: int = 0
    failed_handshakes: int = 0
    faults: int = 0
    floods: int = 0
    failures: int = 0
    timeouts: int = 0
    handler_failures: int = 0
    cut_off_calls: int = 0
    late_finishes: int = 0
    slow_rounds: int = 0
    answered: int = 0
    resets: int = 0
    decoded_heads: int = 0
