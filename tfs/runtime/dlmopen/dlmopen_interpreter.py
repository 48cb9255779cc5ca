"""Backend ``dlmopen``: a private CPython of this process, with a GIL of its own.

These are the paper's interpreters on stock wheels: only descriptions of tensors are
serialised, no process is woken, and the weights of a version are in memory once. They
need Linux with glibc and models on the CPU, and are used only where an operator asks
for them. Nothing is contained: a call that crashes ends the process, a call that hangs
holds its interpreter, and an interpreter takes some 145 MB that are freed only when the
process ends.
"""

from __future__ import annotations

import logging
import threading
import time

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition
from tfs.core.servable import InferenceTask, Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.dlmopen import dlmopen_namespace
from tfs.runtime.dlmopen.dlmopen_namespace import Namespace
from tfs.runtime.dlmopen.namespace_model import CallTurn, NamespaceModel
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter import OnAnotherThread
from tfs.runtime.task_outcome import closed, unloaded

log = logging.getLogger(__name__)

_MIN_FREE_KEYS = 4  # a library that finds none left may end the process


class DlmopenModel(OnAnotherThread):
    """A version on a :class:`DlmopenInterpreter`. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.InterpreterModel`.
    """

    def __init__(self, model: InlineModel, guest: NamespaceModel) -> None:
        self._model = model
        self._guest = guest

    @property
    def source(self) -> ModelSource:
        return self._model.source

    @property
    def pid(self) -> int:
        """The server's own process."""
        return self._model.pid

    @property
    def import_s(self) -> float | None:
        """Seconds that importing and unpickling took."""
        return self._guest.import_s

    @property
    def last_call_s(self) -> float | None:
        """Seconds that the last call took there; None before the first."""
        return self._guest.last_call_s

    def submit(self, task: InferenceTask) -> None:
        self._model.submit(task)

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        """Runs a signature on the calling thread; blocks behind other calls.

        The call bypasses the interpreter's thread and its queue.

        Raises:
            ServingError: The model failed or is unloaded.

        """
        if self._model.guest is None:
            raise unloaded(self.source.id)
        return self._guest.call(signature_name, inputs)

    def seed(self, seed: int | None) -> bool:
        """Sets the namespace's random numbers; see ``SeedableModel``."""
        return self._guest.seed(seed)

    def unload(self) -> None:
        self._model.unload()


class DlmopenInterpreter:
    """One private CPython and the thread that calls it. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.Interpreter` and, for the library,
    :class:`~tfs.runtime.library.interpreters.SessionChannel`. The CPython is made at the
    first load or session, which takes seconds, and kept for others after ``close``.

    Args:
        name: Names the thread.
        max_queued: Most tasks that may wait; one more is answered Unavailable.
        clock: The clock of deadlines.
        call_timeout_s: How long others wait for a call to end, which nobody can end, before
            they are refused. None waits for ever.

    """

    def __init__(
        self,
        name: str = "dlmopen-0",
        *,
        max_queued: int = 256,
        clock: Clock | None = None,
        call_timeout_s: float | None = None,
    ) -> None:
        self._name = name
        clock = clock or MonotonicClock()
        # Held while anything but a load runs in the namespace. Rank: after the
        # thread's locks; no callback runs under it.
        self._calling = CallTurn(name, call_timeout_s)
        # Queue, deadlines and unloading are those of a thread of this process. Only the
        # place where a call is computed differs.
        self._thread = InlineInterpreter(
            name,
            max_queued=max_queued,
            clock=clock,
            load_model=self._load_model,
            takes_several=False,
        )
        # Guards the fields below; held while a namespace opens. Rank: before
        # _calling.
        self._lock = threading.Lock()
        self._namespace: Namespace | None = None
        self._is_closed = False
        self._num_closings = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_unanswered(self) -> int:
        """1 while a call is running there, else 0."""
        return int(self._calling.is_taken)

    @property
    def generation(self) -> int:
        """Changes when what sessions left here is gone."""
        return self._num_closings

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run."""
        return self._thread.num_pending

    def start(self) -> None:
        self._thread.start()

    def load(
        self, source: ModelSource, files: VersionFiles | None = None
    ) -> DlmopenModel:
        """Loads a version, from ``files`` if they are there already; see the protocol."""
        if source.device != "cpu":
            raise FailedPrecondition(
                f"{source.id.slashed}: backend 'dlmopen' computes on the CPU only, not "
                f"on {source.device}; use inline or process"
            )
        model = self._thread.load(source, files)
        guest = model.guest
        assert isinstance(guest, NamespaceModel)
        return DlmopenModel(model, guest)

    @property
    def num_models(self) -> int:
        return self._thread.num_models

    def close(self, deadline_s: float | None = None) -> None:
        self._thread.close(deadline_s)
        with self._lock:
            self._is_closed = True
        patience_s = 0.0 if deadline_s is None else deadline_s - time.monotonic()
        self._end_sessions(patience_s)

    # -- sessions, on the callers' threads -----------------------------------------------

    def hold(self) -> None:
        """Makes the CPython. Blocks for seconds if none is idle."""
        self._ready()

    def _end_sessions(self, patience_s: float) -> None:
        """Drops what sessions left, and the CPython if nothing is loaded there."""
        with self._lock:
            namespace = self._namespace
            if namespace is None:
                return
            if not self._calling.take(patience_s):
                log.warning("event=interpreter_hangs interpreter=%s", self._name)
                return
            try:
                namespace.call(("end_sessions",))
            finally:
                self._calling.end()
            self._num_closings += 1
            if not self._thread.num_models:
                self._namespace = None
                dlmopen_namespace.give_back(namespace)

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        namespace = self._ready()
        with self._calling:
            reply: tuple[bytes, list[int]] = namespace.call(
                ("session", request, list(fds))
            )
        return reply

    def _load_model(self, source: ModelSource, files: VersionFiles) -> GuestModel:
        namespace = self._ready()
        model = NamespaceModel(namespace, self._calling, source, files)
        if namespace.num_free_keys() < _MIN_FREE_KEYS:
            log.warning("event=thread_local_keys_used_up interpreter=%s", self._name)
        return model

    def _ready(self) -> Namespace:
        with self._lock:
            if self._is_closed:
                raise closed(self._name)
            if self._namespace is None:
                self._namespace = dlmopen_namespace.take()
            return self._namespace
