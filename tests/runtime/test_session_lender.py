"""Lending the library's interpreters, without any."""

from __future__ import annotations

import gc
import threading

from tfs.runtime.guest.sessions.value_codec import encode
from tfs.runtime.library.interpreters import InterpreterLender
from tfs.runtime.library.sessions import InterpreterSession
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
