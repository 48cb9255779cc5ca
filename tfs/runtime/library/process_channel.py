"""Sessions in a process, for the library."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from tfs.core.errors import Internal, ServingError
from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.process.process_model import on_loop
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import Worker, WorkerState
from tfs.runtime.process.worker_process import WorkerReply
from tfs.runtime.task_outcome import closed


class ProcessChannel:
    """A worker whose guest answers sessions. Thread-safe; all but properties blocks.

    Implements :class:`~tfs.runtime.library.interpreters.SessionChannel`.

    Args:
        loop: Watches the worker.
        options: Say how long a request may take.
        worker: The worker; closed with this.

    """

    def __init__(
        self, loop: ServingLoop, options: ProcessOptions, worker: Worker
    ) -> None:
        self._loop = loop
        self._timeout_s = options.load_timeout_s
        self._worker = worker

    @property
    def num_unanswered(self) -> int:
        """Requests that the worker has not answered yet."""
        process = self._worker.process
        return 0 if process is None else process.num_awaited

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the worker is gone."""
        return self._worker.num_deaths

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Has the worker's session guest answer a request.

        Returns:
            The reply, and descriptors that the caller closes.

        Raises:
            ServingError: The error that the guest returned; or Internal if the worker
                died over the request, and with it everything that the session held.

        """
        if self._worker.state is WorkerState.CLOSED:
            raise closed(self._worker.name)

        def begin(answer: Future[tuple[bytes, list[int]]]) -> None:
            def on_reply(reply: WorkerReply | None) -> None:
                if reply is None:
                    text = f"the interpreter of this session {self._worker.last_end}"
                    gone = Internal(f"{text}; what it held is gone, begin anew")
                    answer.set_exception(gone)
                elif (error := reply.error()) is not None:
                    answer.set_exception(error)
                else:
                    taken, reply.fds = reply.fds, []
                    answer.set_result((reply.payload, taken))

            def on_ready(error: ServingError | None) -> None:
                if error is not None:
                    answer.set_exception(error)
                elif (process := self._worker.live) is not None:
                    fields = {"body": request}
                    process.send("session", fields, fds, on_reply, background=False)

            self._worker.want(on_ready)

        late = Internal(
            f"interpreter {self._worker.name} did not answer a session within "
            f"{self._timeout_s:.0f} s; allow its calls more time (load_timeout_s), or "
            "begin a session anew"
        )
        return on_loop(self._loop, begin, self._timeout_s, late)

    def close(self, deadline_s: float) -> None:
        """Ends the worker, and whatever it is doing; may be repeated."""
        if self._worker.state is WorkerState.CLOSED:
            return

        def begin(is_closed: Future[None]) -> None:
            self._worker.close()
            with suppress(InvalidStateError):
                is_closed.set_result(None)

        late = Internal(f"interpreter {self._worker.name} does not close")
        timeout_s = max(0.0, deadline_s - self._loop.clock.now())
        on_loop(self._loop, begin, timeout_s, late)
