"""Lets a manager thread have an interpreter's worker load a version."""

from __future__ import annotations

from collections.abc import Mapping

from tfs.core.errors import Internal, ServingError
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import LoadMemory
from tfs.runtime.process.payload_copy import copy_payload
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.resident_models import ResidentModels
from tfs.runtime.process.worker import OnReply, Worker
from tfs.runtime.process.worker_requests import Send, WorkerRequests


class VersionLoading:
    """Copies a version's payload and has it loaded. Thread-safe; blocks, so not on the loop.

    Args:
        loop: The serving loop, on which the steps are done.
        requests: Sends requests to the present worker.
        residents: The models on that worker.
        options: Limits, timeouts and how workers are made.

    """

    def __init__(
        self,
        loop: ServingLoop,
        requests: WorkerRequests,
        residents: ResidentModels,
        options: ProcessOptions,
    ) -> None:
        self._loop = loop
        self._requests = requests
        self._residents = residents
        self._options = options

    def stage(self, source: ModelSource) -> VersionFiles:
        """Has the worker copy the payload into memory. The caller closes the result.

        Raises:
            ServingError: The payload cannot be read, or the worker died.

        """

        def copy(fds: tuple[int, ...]) -> None:
            def send(worker: Worker, on_reply: OnReply) -> None:
                worker.send(
                    "copy",
                    {"source": source},
                    fds,
                    on_reply,
                    background=self._is_in_background(),
                )

            self._answer(source, send)

        return copy_payload(source, copy)

    def load(self, model: ProcessModel) -> None:
        """Has the worker load a model, and records what that took.

        Raises:
            ServingError: It does not load; nothing is left of it on the worker.

        """

        def send(worker: Worker, on_reply: OnReply) -> None:
            self._residents.load(
                model, worker, on_reply, background=self._is_in_background()
            )

        try:
            reply = self._answer(model.source, send)
        except ServingError as error:
            if isinstance(error, Internal):
                self._loop.post(lambda: self._residents.give_up_loading(model))
            raise
        # The worker maps weights without reading them, so imports take most of the time.
        model.process_changes = str(reply.get("changes", ""))
        import_s = reply.get("import_s")
        model.import_s = import_s if isinstance(import_s, float) else None
        model.load_memory = LoadMemory(
            *(_bytes_of(reply, key) for key in ("resident_bytes", "load_peak_bytes"))
        )

    def _is_in_background(self) -> bool:
        # Only if the interpreter serves nobody. Otherwise a thread of low priority could
        # hold the GIL without getting a core.
        return not self._residents.has_models and not self._options.is_urgent()

    def _answer(self, source: ModelSource, send: Send) -> Mapping[str, object]:
        who, timeout_s = source.id.slashed, self._options.load_timeout_s
        late = Internal(f"{who}: loading took over {timeout_s:.1f} s")
        return self._requests.answer(
            who, send, timeout_s, late, meanwhile="while loading it"
        )


def _bytes_of(reply: Mapping[str, object], key: str) -> int | None:
    value = reply.get(key)
    return value if isinstance(value, int) else None
