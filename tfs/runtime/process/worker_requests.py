"""Asks an interpreter's worker for something, from another thread than the loop's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from tfs.core.errors import Internal, ServingError, Unavailable
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.process.worker import OnReply, Worker, WorkerReply
from tfs.runtime.process.worker_life import WorkerLife
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.task_outcome import closed

Send = Callable[[Worker, OnReply], None]
"""Sends a request to a ready worker; the answer goes to the second argument. On the loop."""

T = TypeVar("T")


class Waiter(Generic[T]):
    """One result, set once on the loop, awaited on another thread. Thread-safe."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: ServingError | None = None
        self._value: T | None = None

    def set(self, value: T) -> None:
        """Ends the wait with a value."""
        self._value = value
        self._done.set()

    def fail(self, error: ServingError) -> None:
        """Ends the wait with an error."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float, late: ServingError) -> T:
        """Blocks until there is a result; the timeout may be infinite.

        Raises:
            ServingError: The one given to ``fail``, or ``late`` after ``timeout_s``.

        """
        if not self._done.wait(min(timeout_s, threading.TIMEOUT_MAX)):
            raise late
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set with the event


class WorkerRequests:
    """Waits for what the loop does. Thread-safe; blocks, so never on the loop.

    Args:
        name: The interpreter's, for messages.
        loop: Talks with the worker.
        life: The life of the worker that is asked.

    Attributes:
        num_unanswered: Requests of sessions under way; written by the loop.

    """

    def __init__(self, name: str, loop: ServingLoop, life: WorkerLife) -> None:
        self._name = name
        self._loop = loop
        self._life = life
        self.num_unanswered = 0

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

    def exchange(
        self, request: bytes, fds: tuple[int, ...], timeout_s: float
    ) -> tuple[bytes, list[int]]:
        """Has the worker's session guest answer a request; starts a worker if need be.

        Returns:
            The reply, and descriptors that the caller closes.

        Raises:
            ServingError: As ``ask``; or the error that the guest returned; or Internal
                if the worker died, and with it everything that the session held.

        """

        def begin(waiter: Waiter[tuple[bytes, list[int]]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                self.num_unanswered -= 1
                if reply is None:
                    text = f"the interpreter of this session {self._life.last_end}"
                    waiter.fail(Internal(f"{text}; what it held is gone, begin anew"))
                elif (error := reply.error()) is not None:
                    waiter.fail(error)
                else:
                    taken, reply.fds = reply.fds, []
                    waiter.set((reply.payload, taken))

            def when_ready(error: ServingError | None) -> None:
                if error is not None:
                    waiter.fail(error)
                elif (worker := self._life.live) is not None:
                    self.num_unanswered += 1
                    fields = {"body": request}
                    worker.send("session", fields, fds, on_reply, background=False)

            self._life.want(when_ready)

        late = Internal(
            f"interpreter {self._name} did not answer a session within {timeout_s:.0f} s; "
            "allow its calls more time (load_timeout_s), or begin a session anew"
        )
        return self.ask(begin, timeout_s, late)
