"""Open-loop load from a process of its own: requests at fixed times, come what may.

A closed loop stops asking while the server is slow and so hides what callers would
have seen; here request n leaves at start + n / rate whether or not the ones before it
were answered. Nothing is looked at while it runs: replies are kept, each different one
once, and judged by whoever started it.

    python -m tests.benchmarks.open_loop TARGET METHOD BODIES RESULT RATE CONNECTIONS

BODIES is a pickled list of messages, sent in turn; it says "sending" when connected,
runs until SIGTERM, waits for what is in flight and writes a pickled OpenLoopResult.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from tests.benchmarks.server_process import ServerProcess
from tfs.core.system.thread_priority import answer_soon

TIMEOUT_S = 10.0
END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and what came of it. Times are wall clock, to be set beside logs.

    Attributes:
        body_index: which of the bodies was sent.
        due_s: when it had to leave.
        sent_s: when it left; later where the generator was late.
        done_s: when its reply, or its failure, was there.
        reply: its bytes, or None.
        fault: the status code's name, or None.
    """

    body_index: int
    due_s: float
    sent_s: float
    done_s: float
    reply: bytes | None
    fault: str | None

    @property
    def latency_s(self) -> float:
        """From leaving to the answer: the generator's own lateness is not in it."""
        return self.done_s - self.sent_s

    @property
    def lateness_s(self) -> float:
        return self.sent_s - self.due_s


@dataclass(slots=True)
class OpenLoopResult:
    """Everything that was sent, in the order of the answers."""

    exchanges: list[Exchange] = field(default_factory=list)

    def faults(self, is_right: Callable[[int, bytes], bool]) -> Counter[str]:
        """Counts what failed: by status code, and as "wrong reply".

        Args:
            is_right: told the index of the body and the reply; asked once for each
                different pair.
        """
        known: dict[tuple[int, bytes], bool] = {}
        faults: Counter[str] = Counter()
        for exchange in self.exchanges:
            if exchange.reply is None:
                faults[exchange.fault or "no reply"] += 1
                continue
            key = exchange.body_index, exchange.reply
            if key not in known:
                known[key] = is_right(*key)
            if not known[key]:
                faults["wrong reply"] += 1
        return faults


class OpenLoop:
    """An open loop that runs. Confined to one thread.

    Attributes:
        result: what came back; complete once `open_loop` ended.
    """

    def __init__(self) -> None:
        self.result = OpenLoopResult()


@contextmanager
def open_loop(
    target: str,
    method: str,
    bodies: Sequence[bytes],
    *,
    rate_per_s: float,
    num_connections: int = 4,
) -> Iterator[OpenLoop]:
    """Sends from another process until the block ends; then the result is there.

    Raises:
        RuntimeError: the generator broke; says what it printed.
    """
    loop = OpenLoop()
    with tempfile.TemporaryDirectory() as name:
        bodies_path, result_path = Path(name, "bodies"), Path(name, "result")
        bodies_path.write_bytes(pickle.dumps(list(bodies)))
        command = [
            *(sys.executable, "-m", "tests.benchmarks.open_loop"),
            *(target, method, str(bodies_path), str(result_path)),
            *(str(rate_per_s), str(num_connections)),
        ]
        with ServerProcess(command, announcement=r"(sending)") as process:
            yield loop
            try:
                process.terminate(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise RuntimeError("the generator does not end") from None
            printed = process.output()
        if not result_path.exists():
            raise RuntimeError(f"the generator broke: {printed[-2000:]}")
        loop.result = pickle.loads(result_path.read_bytes())


async def send(
    target: str,
    method: str,
    bodies: Sequence[bytes],
    *,
    rate_per_s: float,
    num_connections: int,
    stop: asyncio.Event,
    ready: Callable[[], None],
) -> OpenLoopResult:
    """Sends until `stop`, over that many connections in turn; waits for the last."""
    result = OpenLoopResult()
    replies: dict[bytes, bytes] = {}
    # Without this grpc gives all channels to one target the same connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(target, options=options)
        for _ in range(num_connections)
    ]
    calls = [channel.unary_unary(method, bytes, bytes) for channel in channels]
    for call in calls:  # connected, and the path warm
        await call(bodies[0], timeout=TIMEOUT_S, wait_for_ready=True)
    wall_offset_s = time.time() - time.perf_counter()
    started_s = time.perf_counter()
    ready()

    async def exchange(index: int, due_s: float) -> None:
        body_index = index % len(bodies)
        sent_s = time.perf_counter()
        reply, fault = None, None
        try:
            reply = await calls[index % num_connections](
                bodies[body_index], timeout=TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            fault = f"{error.code().name}: {error.details()}"
        done_s = time.perf_counter()
        if reply is not None:
            reply = replies.setdefault(reply, reply)
        result.exchanges.append(
            Exchange(
                body_index,
                wall_offset_s + due_s,
                wall_offset_s + sent_s,
                wall_offset_s + done_s,
                reply,
                fault,
            )
        )

    running: set[asyncio.Task[None]] = set()
    index = 0
    while not stop.is_set():
        due_s = started_s + index / rate_per_s
        wait_s = due_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.create_task(exchange(index, due_s))
        running.add(task)
        task.add_done_callback(running.discard)
        index += 1
        if wait_s <= 0:
            await asyncio.sleep(0)  # behind: let the answers in all the same
    if running:
        await asyncio.wait(running)
    for channel in channels:
        await channel.close(None)
    return result


def main(argv: Sequence[str]) -> int:
    """Runs as the module's docstring says."""
    target, method, bodies_path, result_path, rate, connections = argv
    bodies = pickle.loads(Path(bodies_path).read_bytes())

    async def run() -> OpenLoopResult:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        return await send(
            target,
            method,
            bodies,
            rate_per_s=float(rate),
            num_connections=int(connections),
            stop=stop,
            ready=lambda: print("sending", flush=True),
        )

    # It stands for callers on machines of their own: what it waits for a processor here,
    # up to 3 ms beside a load, is not the server's. Its threads inherit this.
    answer_soon()
    gc.freeze()
    gc.disable()  # its pauses would be counted as the server's
    result = asyncio.run(run())
    draft = Path(f"{result_path}.tmp")
    draft.write_bytes(pickle.dumps(result))
    draft.replace(result_path)
    return 0


if __name__ == "__main__":
    # Under its importable name, so that the results can be unpickled elsewhere.
    from tests.benchmarks import open_loop as module

    raise SystemExit(module.main(sys.argv[1:]))
