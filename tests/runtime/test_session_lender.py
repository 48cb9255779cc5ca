"""Lending the library's interpreters, without any."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from tfs.core.errors import Internal
from tfs.runtime.guest.sessions.value_codec import encode
from tfs.runtime.library.interpreters import InterpreterLender, ProcessChannel
from tfs.runtime.library.sessions import InterpreterSession
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import WorkerState
from tfs.testing.patience import PATIENCE_S


class CollectingChannel:
    """Answers None; garbage is collected whenever somebody looks how busy it is."""

    generation = 0

    @property
    def num_unanswered(self) -> int:
        gc.collect()
        return 0

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        return encode(None), []

    def close(self, deadline_s: float) -> None:
        pass


def test_an_abandoned_session_is_given_back_wherever_garbage_is_found() -> None:
    """Even by a thread that is choosing an interpreter for somebody else."""
    lender = InterpreterLender([CollectingChannel()])
    InterpreterSession(lender)  # it and its ``self`` are a cycle

    def lend() -> None:
        for _ in range(2):
            with lender.least_used():
                pass

    thread = threading.Thread(target=lend, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    with lender.least_used() as interpreter:
        assert interpreter.num_users == 1


class LateLoop:
    """Runs what is posted when the test says so."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []

    def post(self, function: Callable[[], None]) -> None:
        self.posted.append(function)


class StartingWorker:
    """Is ready as soon as somebody waits for it; notes what is sent."""

    name = "process-0"
    last_end = "ended"

    def __init__(self) -> None:
        self.state = WorkerState.ABSENT
        self.live = self
        self.sent: list[object] = []

    def ready(self) -> Future[None]:
        self.state = WorkerState.READY
        ready = Future[None]()
        ready.set_result(None)
        return ready

    def want(self, on_ready: Callable[[None], None]) -> None:
        assert self.state is WorkerState.READY
        on_ready(None)

    def send(self, *request: object, background: bool) -> None:
        self.sent.append(request)


def test_a_request_begins_when_its_process_is_ready_and_is_not_sent_late() -> None:
    """A call's time is its own; descriptors of one that was given up are others'."""
    loop, worker = LateLoop(), StartingWorker()
    options = ProcessOptions(load_timeout_s=1e-3)
    channel = ProcessChannel(cast("Any", loop), options, cast("Any", worker))
    with pytest.raises(Internal, match="did not answer a session"):
        channel.exchange(b"", (0,))
    assert worker.state is WorkerState.READY  # before anything was to be sent
    loop.posted.pop()()
    assert worker.sent == []
