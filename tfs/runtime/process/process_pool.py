"""Several processes for one version: the paper's one interpreter per core."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from tfs.core.errors import ServingError
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.spread_model import SpreadModel, summed

log = logging.getLogger(__name__)


class ProcessPool:
    """Interpreters that each load every version, from one copy of its bytes.

    Thread-safe. Implements :class:`~tfs.runtime.interpreter.Interpreter`, except for
    the order of tasks. The server makes a pool for each version, so that each has
    processes of its own: loading it disturbs no other version, unloading ends the
    processes, and a crash harms no other.

    Args:
        name: The pool's name in logs.
        interpreters: The interpreters of the pool.
        options: The options of these interpreters.
        may_grow: If given, a version is first loaded on one interpreter. It is loaded
            on the others when a call has to wait and this returns True. If many
            versions are loaded at once, not all will be called, or stay here.

    """

    def __init__(
        self,
        name: str,
        interpreters: Sequence[ProcessInterpreter],
        options: ProcessOptions,
        may_grow: Callable[[], bool] | None = None,
    ) -> None:
        if not interpreters:
            raise ValueError("a pool needs an interpreter")
        self._name = name
        self._interpreters = tuple(interpreters)
        for each in self._interpreters:
            each.share_calls(self._interpreters)
        self._options = options
        self._may_grow = may_grow
        self._was_used = False

    @property
    def is_spent(self) -> bool:
        """Whether it was used and holds nothing any more."""
        return self._was_used and all(each.is_idle for each in self._interpreters)

    @property
    def name(self) -> str:
        return self._name

    @property
    def interpreters(self) -> Sequence[ProcessInterpreter]:
        """The interpreters of the pool."""
        return self._interpreters

    def start(self) -> None:
        for interpreter in self._interpreters:
            interpreter.start()

    def load(
        self, source: ModelSource
    ) -> SpreadModel[ProcessInterpreter, ProcessModel]:
        """Loads on one interpreter, then from the same bytes on all others at once.

        So a version that crashes while it is loaded does so only once. But a version
        that imports for seconds should not take twice as long, so the others begin when
        the first has taken ``slow_load_s``. Blocks until the version is loaded on all
        interpreters, or on none.
        """
        health = VersionHealth(self._options.crashes)
        first, *others = self._interpreters
        if source.concurrency > 1:
            others = []  # its requests must all be in one interpreter
        try:
            if not others:
                return SpreadModel([(first, first.load(source, None, health))])
            first.hold(source.platform)
            try:
                files = first.stage(source)
                try:
                    if self._may_grow is None:
                        return self._load_on_all(source, files, health)
                    model = SpreadModel([(first, first.load(source, files, health))])
                    later = _LaterLoads(model, files, health, others, self._may_grow)
                    model.grow_by(later.want, later.end)
                    return model
                finally:
                    files.close()
            finally:
                first.let_go()
        finally:
            self._was_used = True

    def _load_on_all(
        self, source: ModelSource, files: VersionFiles, health: VersionHealth
    ) -> SpreadModel[ProcessInterpreter, ProcessModel]:
        first, *others = self._interpreters
        num = len(self._interpreters)
        with ThreadPoolExecutor(num, f"load-{self._name}") as threads:
            loads = [threads.submit(first.load, source, files, health)]
            wait(loads, self._options.slow_load_s)
            # If the first has failed already, the others need not try.
            if not loads[0].done() or loads[0].exception() is None:
                known = _known(source)
                loads += [
                    threads.submit(each.load, known, files, health) for each in others
                ]
        errors = [error for load in loads if (error := load.exception()) is not None]
        if errors:
            for load in loads:
                if load.exception() is None:
                    load.result().unload()
            raise errors[0]
        models = [load.result() for load in loads]
        return SpreadModel(list(zip(self._interpreters, models, strict=True)))

    def stats(self) -> InterpreterStats:
        """Returns the sums; the number of models is that of one interpreter."""
        return summed(interpreter.stats() for interpreter in self._interpreters)

    def close(self, deadline_s: float | None = None) -> None:
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)


def _known(source: ModelSource) -> ModelSource:
    """Returns a version of which the first interpreter tells what it changes."""
    return replace(source, was_measured=True)


class _LaterLoads:
    """Loads a version on the other interpreters of its pool, once its calls wait.

    Thread-safe.

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
        source = _known(self._model.source)
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
