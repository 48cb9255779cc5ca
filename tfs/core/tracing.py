"""The seam between requests and whoever traces some of them (OpenTelemetry, if asked for).

A request that is sampled carries a :class:`~tfs.core.trace.Trace` on its cancel token, and
its task carries the one under which it is computed. Without a tracer nothing is made, and
nothing is looked at but :data:`TRACING`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from tfs.core.call import Call
from tfs.core.trace import Trace

CallT = TypeVar("CallT", bound=Call)


class Tracer(Protocol):
    """Decides which requests are traced. Confined to the serving loop; never raises."""

    def begin(self, call: Call, method: str) -> Trace | None:
        """Begins the trace of a request, if it is sampled."""
        ...

    def begin_some(self, calls: Sequence[CallT], method: str) -> Sequence[CallT]:
        """Begins the traces of those requests that are sampled; returns these."""
        ...


class Tracing:
    """What traces requests of this process; one for all, as its environment says.

    Attributes:
        tracer: None if nothing does.

    """

    __slots__ = ("tracer",)

    def __init__(self) -> None:
        self.tracer: Tracer | None = None


TRACING: Final = Tracing()


def begin_trace(call: Call, method: str) -> bool:
    """Begins the trace of a call, once, if it is sampled; returns whether it has one."""
    tracer = TRACING.tracer
    if tracer is None:
        return False
    token = call.cancel
    if token.trace is None:
        token.trace = tracer.begin(call, method)
    return token.trace is not None
