"""Requests of library sessions to the guest that runs in an interpreter's worker."""

from __future__ import annotations

from tfs.core.errors import Internal, ServingError
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.waiter import Waiter
from tfs.runtime.process.worker import WorkerReply
from tfs.runtime.process.worker_life import WorkerLife
from tfs.runtime.process.worker_requests import WorkerRequests


class SessionRequests:
    """Has the session guest answer requests. Thread-safe; blocks, never on the loop.

    Args:
        name: The interpreter's, for messages.
        requests: Sends requests to the worker.
        life: The life of the worker; one is started if there is none.
        options: Limits, timeouts and how workers are made.

    Attributes:
        num_unanswered: Requests under way; written by the loop.

    """

    def __init__(
        self,
        name: str,
        requests: WorkerRequests,
        life: WorkerLife,
        options: ProcessOptions,
    ) -> None:
        self._name = name
        self._requests = requests
        self._life = life
        self._options = options
        self.num_unanswered = 0

    def exchange(self, request: bytes, fds: tuple[int, ...]) -> tuple[bytes, list[int]]:
        """Returns the guest's reply, and descriptors that the caller closes.

        Raises:
            ServingError: The error that the guest returned; or Internal if the worker
                died over the request, and with it everything that the session held.

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
                    worker.send(
                        "session", {"body": request}, fds, on_reply, background=False
                    )

            self._life.want(when_ready)

        timeout_s = self._options.load_timeout_s
        late = Internal(
            f"interpreter {self._name} did not answer a session within {timeout_s:.0f} s; "
            "allow its calls more time (load_timeout_s), or begin a session anew"
        )
        return self._requests.ask(begin, timeout_s, late)
