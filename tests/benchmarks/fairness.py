"""What a flooding connection does to another one's latency.

Both are connections of one server. The flood keeps its streams busy from a process that
gets what the quiet client leaves of their core (SCHED_IDLE), so that what is measured is
the server's doing: two programs on one core wait for each other as well.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks import h2load
from tests.benchmarks.harness import Sample
from tests.benchmarks.quiet_client import QuietClient

PAUSE_S = 0.001
"""Between two requests of the quiet client."""

_LONGER_THAN_ANY_RUN = 1_000_000_000
_SETTLE_S = 0.2


@contextmanager
def flooding(
    program: h2load.H2load, target: str, path: str, body: bytes, num_in_flight: int
) -> Iterator[None]:
    """Has h2load send ``body`` over one connection, with so many streams at a time."""
    with tempfile.TemporaryDirectory() as folder:
        message = Path(folder) / "message"
        message.write_bytes(b"\0" + struct.pack(">I", len(body)) + body)
        process = subprocess.Popen(
            [
                *(str(program.program), "--clients=1", f"--data={message}"),
                f"--requests={_LONGER_THAN_ANY_RUN}",
                f"--max-concurrent-streams={num_in_flight}",
                *("--window-bits=24", "--connection-window-bits=26"),
                *("--header=content-type: application/grpc", "--header=te: trailers"),
                f"http://{target}{path}",
            ],
            env=program.command_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
            time.sleep(_SETTLE_S)
            if process.poll() is not None:
                raise RuntimeError(f"h2load ended with {process.returncode}")
            yield
        finally:
            process.kill()
            process.wait()


def latency_measurer(
    client: QuietClient, num_requests: int, pause_s: float = PAUSE_S
) -> Callable[[], Sample]:
    """Returns the measurer of a client's p50 and p99, in microseconds."""

    def measure() -> Sample:
        taken = sorted(client.latencies_us(num_requests, pause_s))
        return {
            "p50_us": taken[len(taken) // 2],
            "p99_us": taken[min(len(taken) - 1, int(0.99 * len(taken)))],
        }

    return measure
