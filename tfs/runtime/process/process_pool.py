"""Several processes for one version: the paper's one interpreter per core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial

from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.pooled_model import Growth, PooledModel
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker_state import WorkerState


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
    ) -> PooledModel[ProcessInterpreter, ProcessModel]:
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
                return PooledModel([(first, first.load(source, None, health))])
            first.hold(source)
            try:
                files = first.stage(source)
                try:
                    if self._may_grow is None:
                        return self._load_on_all(source, files, health)
                    model = first.load(source, files, health)
                    growth = self._growth(source, files, health, self._may_grow)
                    return PooledModel([(first, model)], growth)
                finally:
                    files.close()
            finally:
                first.let_go()
        finally:
            self._was_used = True

    def _growth(
        self,
        source: ModelSource,
        files: VersionFiles,
        health: VersionHealth,
        may_begin: Callable[[], bool],
    ) -> Growth[ProcessInterpreter, ProcessModel]:
        """Returns how a version that is on the first interpreter gets onto the others."""
        own, known = files.duplicate(), _known(source)
        others = self._interpreters[1:]
        return Growth(
            f"load-{self._name}",
            [(each, partial(each.load, known, own, health)) for each in others],
            may_begin,
            lambda: (
                health.quarantine is not None
                or any(each.state is WorkerState.CLOSED for each in others)
            ),
            own.close,
        )

    def _load_on_all(
        self, source: ModelSource, files: VersionFiles, health: VersionHealth
    ) -> PooledModel[ProcessInterpreter, ProcessModel]:
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
        return PooledModel(list(zip(self._interpreters, models, strict=True)))

    def stats(self) -> InterpreterStats:
        """Returns the sums; the number of models is that of one interpreter."""
        return InterpreterStats.summed(each.stats() for each in self._interpreters)

    def close(self, deadline_s: float | None = None) -> None:
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)


def _known(source: ModelSource) -> ModelSource:
    """Returns a version of which the first interpreter tells what it changes."""
    return replace(source, was_measured=True)
