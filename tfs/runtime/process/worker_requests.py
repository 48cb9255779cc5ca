"""Asks an interpreter's worker for something, from another thread than the loop's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tfs.core.errors import Internal, ServingError, Unavailable
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.process.waiter import Waiter
from tfs.runtime.process.worker import (
    OnReply,
    Worker,
    WorkerReply,
)
from tfs.runtime.process.worker_life import WorkerLife
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.task_outcome import closed

Send = Callable[[Worker, OnReply], None]
"""Sends a request to a ready worker; the answer goes to the second argument. On the loop."""

T = TypeVar("T")


class WorkerRequests:
    """Waits for what the loop does. Thread-safe; blocks, so never on the loop.

    Args:
        name: The interpreter's, for messages.
        loop: Drives the conversation.
        life: The life of the worker that is asked.

    """

    def __init__(self, name: str, loop: ServingLoop, life: WorkerLife) -> None:
        self._name = name
        self._loop = loop
        self._life = life

    def ask(
        self,
        begin: Callable[[Waiter[T]], None],
        timeout_s: float,
        late: ServingError,
    ) -> T:
        """Runs ``begin`` on the loop and waits for what it reports.

        Raises:
            ServingError: The error that it reports; ``late`` if it reports nothing for
                ``timeout_s`` seconds; or the interpreter is closed, and nothing ran.

        """
        waiter: Waiter[T] = Waiter()
        if self._life.state is WorkerState.CLOSED:
            raise closed(self._name)
        self._loop.post(lambda: begin(waiter))
        return waiter.wait(timeout_s, late)

    def answer(
        self,
        who: str,
        send: Send,
        timeout_s: float,
        late: ServingError,
        *,
        meanwhile: str = "",
    ) -> Mapping[str, object]:
        """Returns the present worker's answer to a request.

        Args:
            who: The version it is about, for messages.
            send: Sends it.
            timeout_s: How long to wait.
            late: Raised after that.
            meanwhile: What the worker was doing if it dies, for messages.

        Raises:
            ServingError: As ``ask``; or the worker's error; or there is no worker, or
                it died.

        """

        def begin(waiter: Waiter[Mapping[str, object]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                if reply is None:
                    how = f"{self._life.last_end} {meanwhile}".rstrip()
                    waiter.fail(Internal(f"{who}: its interpreter {how}"))
                elif (error := reply.error()) is not None:
                    waiter.fail(error)
                else:
                    waiter.set(reply.fields)

            worker = self._life.live
            if self._life.state is not WorkerState.READY or worker is None:
                waiter.fail(Unavailable(f"{who}: its interpreter is restarting"))
            else:
                send(worker, on_reply)

        return self.ask(begin, timeout_s, late)
