"""A server that answers rightly, and its end with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import torch

from tests.benchmarks.peers.exchange import Array, Exchange, NoAnswerError
from tests.benchmarks.peers.peer import Launch
from tests.benchmarks.peers.workload import Workload
from tests.benchmarks.process_cpu import ProcessTimes, offspring, read_all
from tests.benchmarks.server_process import ServerProcess

READY_TIMEOUT_S = 90.0
TERM_TIMEOUT_S = 3.0  # some do not heed SIGTERM; what is killed here is stateless
NUM_CHECKED = 16
NUM_CHECKED_AT_ONCE = 8


class WrongReplyError(Exception):
    """A server's answer is not what plain torch computes."""


class RunningServer:
    """A server from its start to its end. Confined to one thread.

    Attributes:
        first_answer_s: from the start of its process to its first right answer.
        body: a request; `reply_bytes` is the size of the answer to it.
    """

    def __init__(
        self,
        name: str,
        launch: Launch,
        exchange: Exchange,
        workload: Workload,
        *,
        environment: Mapping[str, str],
        cores: Collection[int],
        term_timeout_s: float = TERM_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._term_timeout_s = term_timeout_s
        self._launch = launch
        self.exchange = exchange
        self._workload = workload
        self._process = ServerProcess(
            launch.command,
            announcement=launch.announcement,
            env={**environment, **launch.environment},
            start_timeout_s=READY_TIMEOUT_S,
            cores=cores,
        )
        self.first_answer_s = 0.0
        self.rows = make_rows(workload, NUM_CHECKED)
        self.body = exchange.encode(self.rows[0])
        self.reply_bytes = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def target(self) -> str:
        return self._launch.target or self._process.target

    def output(self) -> str:
        """Returns what it printed."""
        return self._process.output()

    def __enter__(self) -> Self:
        started_s = time.monotonic()
        self._process.__enter__()
        try:
            self.reply_bytes = self._await_answer(started_s + READY_TIMEOUT_S)
            self.first_answer_s = time.monotonic() - started_s
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        tree = self._tree()
        signal_all(tree, signal.SIGCONT)
        # Not in time: it is killed below, with its children.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.terminate(self._term_timeout_s)
        signal_all(tree, signal.SIGKILL)
        self._process.__exit__(None, None, None)

    def pause(self) -> None:
        """Stops all its processes: what some do when idle costs nobody else time."""
        signal_all(self._tree(), signal.SIGSTOP)

    def resume(self) -> None:
        """Lets them go on; idempotent."""
        signal_all(self._tree(), signal.SIGCONT)

    def check(self) -> None:
        """Compares answers to different requests, several at once, with plain torch.

        Raises:
            WrongReplyError: One is another.
            NoAnswerError: One did not come.
        """
        with torch.inference_mode():
            model = self._workload.build()
            expected = [run_alone(model, self._workload, row) for row in self.rows]

        def ask(row: Array) -> bytes:
            return self.exchange.ask(self.target, self.exchange.encode(row))

        with ThreadPoolExecutor(NUM_CHECKED_AT_ONCE) as executor:
            replies = list(executor.map(ask, self.rows))
        for reply, values in zip(replies, expected, strict=True):
            if not is_right(self.exchange, reply, values):
                raise WrongReplyError(
                    f"{self.name} answers {self._workload.name} wrongly: {reply[:80]!r}"
                )

    def _tree(self) -> dict[int, ProcessTimes]:
        alive = {times.pid: times for times in read_all(Path("/proc"))}
        return offspring({self.pid}, alive) if self.pid in alive else {}

    def _await_answer(self, deadline_s: float) -> int:
        fault = "nothing came"
        while time.monotonic() < deadline_s:
            try:
                return len(self.exchange.ask(self.target, self.body))
            except NoAnswerError as error:
                fault = str(error)
                time.sleep(0.02)  # it is loading; there is nothing to wait on
        raise TimeoutError(
            f"{self.name} does not answer after {READY_TIMEOUT_S:g} s: {fault}\n"
            f"{self.output()[-1000:]}"
        )


class Folders:
    """Gives each server an empty folder; removes all at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def make(self) -> Path:
        """Returns a new one."""
        # What a killed server left half-written may vanish meanwhile.
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        return Path(self._stack.enter_context(folder))


def make_rows(workload: Workload, num_rows: int) -> list[Array]:
    """Returns different inputs, the same ones in every run."""
    generator = np.random.default_rng(7)
    return [
        generator.standard_normal(workload.row_shape, np.float32)
        for _ in range(num_rows)
    ]


def run_alone(model: torch.nn.Module, workload: Workload, row: Array) -> Array:
    """Returns what plain torch computes for one row, flat."""
    output = model(torch.from_numpy(row).reshape(1, *workload.row_shape))
    if isinstance(output, dict):
        (output,) = output.values()
    values: Array = output.numpy().reshape(-1)
    return values


def is_right(exchange: Exchange, reply: bytes, expected: Array) -> bool:
    """Tells whether a reply is what torch computes.

    Nearly: a batch adds up in another order than a single row.
    """
    try:
        values = exchange.decode(reply)
    except Exception:  # whatever a decoder thinks of a wrong reply
        return False
    return values.shape == expected.shape and np.allclose(
        values, expected, rtol=1e-3, atol=1e-4
    )


def signal_all(tree: Mapping[int, ProcessTimes], number: signal.Signals) -> None:
    """Sends a signal to those of a tree that still live; a reused pid gets none."""
    alive = {times.pid: times for times in read_all(Path("/proc"))}
    for pid, times in tree.items():
        if pid in alive and alive[pid].start == times.start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
