"""Loads a version on the other interpreters of its pool, once its calls wait.

If many versions are loaded at once, not all will be called, or stay. So each is first
loaded on one interpreter, and the others follow in the background when a call has to wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from tfs.core.errors import ServingError
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.spread_model import SpreadModel

log = logging.getLogger(__name__)


class PoolGrowth:
    """The interpreters on which a version is loaded once its calls wait. Thread-safe.

    Args:
        model: The model to which interpreters are added.
        files: The version's bytes; descriptors are duplicated.
        health: Shared by all its interpreters.
        others: Interpreters that have not loaded it yet.
        may_begin: Called for each call that waits, on any thread.

    """

    def __init__(
        self,
        model: SpreadModel[ProcessInterpreter, ProcessModel],
        files: VersionFiles,
        health: VersionHealth,
        others: Sequence[ProcessInterpreter],
        may_begin: Callable[[], bool],
    ) -> None:
        self._model = model
        self._files = files.duplicate()
        self._health = health
        self._others = tuple(others)
        self._may_begin = may_begin
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    def want(self) -> None:
        """Begins, unless it has begun; called for each call that waits. Never blocks."""
        if self._thread is not None or not self._may_begin():
            return
        with self._lock:
            if self._thread is not None or self._ended:
                return
            thread = threading.Thread(
                target=self._run, name=f"load-{self._others[0].name}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no thread could start; the next call tries again
                return
            self._thread = thread

    def end(self) -> None:
        """Adds no more interpreters; waits for the one that is loading, if any."""
        with self._lock:
            self._ended = True
        if self._thread is not None:
            self._thread.join()
        self._files.close()

    def _run(self) -> None:
        source = self._model.source
        who = source.id.slashed
        interpreter = self._others[0]
        try:
            for interpreter in self._others:
                if self._ended or self._health.quarantine is not None:
                    return
                loaded = interpreter.load(source, self._files, self._health)
                if not self._model.add(interpreter, loaded):
                    loaded.unload()
                    return
                log.info(
                    "event=interpreter_added servable=%s interpreter=%s",
                    who,
                    interpreter.name,
                )
        except (ServingError, OSError) as error:
            if self._ended or interpreter.state is WorkerState.CLOSED:
                return  # it is not wanted any more
            log.warning("event=no_interpreter_added servable=%s error=%s", who, error)
        finally:
            self._files.close()
            self._model.grow_by(None)
