"""Closed-loop load from one grpcio.aio client: N requests in flight, always.

The client shares the machine with the server, so its rate is no measure of the server
alone; the server's CPU per request (`process_cpu`) is.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio

Check = Callable[[bytes], bool]


@dataclass(slots=True)
class LoadResult:
    """What came back.

    Attributes:
        num_ok: replies whose bytes passed the check.
        faults: everything else, counted by what it was: a status code's name or
            "wrong reply".
        latencies_s: of the right replies, unordered.
    """

    num_ok: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def num_failed(self) -> int:
        return self.faults.total()

    def latency_s(self, quantile: float) -> float:
        """Returns the latency that `quantile` of the right replies did not exceed.

        Raises:
            ValueError: there was no right reply.
        """
        if not self.latencies_s:
            raise ValueError(f"no right reply, only {dict(self.faults)}")
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def run_closed_loop(
    target: str,
    method: str,
    body: bytes,
    *,
    num_in_flight: int,
    duration_s: float,
    check: Check,
    timeout_s: float = 10.0,
) -> LoadResult:
    """Sends `body` to `method` for `duration_s`; blocks until the last reply.

    Each of those in flight is sent at least once, however short or late that time is.
    """
    return asyncio.run(
        closed_loop(
            target,
            method,
            body,
            num_in_flight=num_in_flight,
            duration_s=duration_s,
            check=check,
            timeout_s=timeout_s,
        )
    )


async def closed_loop(
    target: str,
    method: str,
    body: bytes,
    *,
    num_in_flight: int,
    check: Check,
    duration_s: float = math.inf,
    stop: asyncio.Event | None = None,
    timeout_s: float = 10.0,
) -> LoadResult:
    """The same, for a caller that does something else meanwhile, and may `stop` it."""
    result = LoadResult()
    started_s = time.perf_counter()
    end_s = started_s + duration_s
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary(method, bytes, bytes)

        async def caller() -> None:
            is_due = True
            while is_due:
                sent_s = time.perf_counter()
                try:
                    reply = await call(body, timeout=timeout_s)
                except grpc.aio.AioRpcError as error:
                    result.faults[error.code().name] += 1
                else:
                    if check(reply):
                        result.num_ok += 1
                        result.latencies_s.append(time.perf_counter() - sent_s)
                    else:
                        result.faults["wrong reply"] += 1
                is_due = time.perf_counter() < end_s and not (stop and stop.is_set())

        await asyncio.gather(*(caller() for _ in range(num_in_flight)))
    result.duration_s = time.perf_counter() - started_s
    return result
