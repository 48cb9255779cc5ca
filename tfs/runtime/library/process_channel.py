"""Sessions in a process, for the library."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

from tfs.core.errors import Internal, ServingError
from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.process.process_model import on_loop
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import Worker, WorkerState
from tfs.runtime.process.worker_process import WorkerReply
from tfs.runtime.process.zygote import Zygote
from tfs.runtime.task_outcome import closed

_HANDSHAKE_S: Final = 120.0  # torch's import on a loaded machine takes many seconds


class ProcessChannel:
    """A worker whose guest answers sessions. Thread-safe; all but properties blocks.

    Implements :class:`~tfs.runtime.library.interpreters.SessionChannel`.

    Args:
        name: For logs and messages.
        loop: Watches the worker.
        zygote: Forks it.
        options: How it runs.

    """

    def __init__(
        self, name: str, loop: ServingLoop, zygote: Zygote, options: ProcessOptions
    ) -> None:
        self._name = name
        self._loop = loop
        self._timeout_s = options.load_timeout_s
        self._worker = Worker(name, loop, zygote, options, None)

    @property
    def pid(self) -> int | None:
        """The process; None while there is none."""
        return self._worker.pid

    @property
    def num_unanswered(self) -> int:
        """Requests that the worker has not answered yet."""
        process = self._worker.process
        return 0 if process is None else process.num_awaited

    @property
    def generation(self) -> int:
        """Changes whenever what sessions left in the worker is gone."""
        return self._worker.num_deaths

    def hold(self) -> None:
        """Starts the worker, which stays until ``close``.

        Raises:
            ServingError: No worker could be started.

        """
        self._check_open()

        def begin(is_ready: Future[None]) -> None:
            def on_ready(error: ServingError | None) -> None:
                if error is None:
                    is_ready.set_result(None)
                else:
                    is_ready.set_exception(error)

            self._worker.want(on_ready)

        late = Internal(f"interpreter {self._name} does not start")
        on_loop(self._loop, begin, _HANDSHAKE_S, late)

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
        self._check_open()

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
            f"interpreter {self._name} did not answer a session within "
            f"{self._timeout_s:.0f} s; allow its calls more time (load_timeout_s), or "
            "begin a session anew"
        )
        return on_loop(self._loop, begin, self._timeout_s, late)

    def close(self) -> None:
        """Ends the worker, and whatever it is doing; may be repeated."""
        if self._worker.state is WorkerState.CLOSED:
            return

        def begin(is_closed: Future[None]) -> None:
            self._worker.close()
            with suppress(InvalidStateError):
                is_closed.set_result(None)

        late = Internal(f"interpreter {self._name} does not close")
        on_loop(self._loop, begin, _HANDSHAKE_S, late)

    def _check_open(self) -> None:
        if self._worker.state is WorkerState.CLOSED:
            raise closed(self._name)
