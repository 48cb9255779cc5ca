"""Several processes for one version: the paper's one interpreter per core."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.model_source import ModelSource
from tfs.runtime.process_interpreter import ProcessInterpreter
from tfs.runtime.process_model import ProcessModel, VersionHealth
from tfs.runtime.process_options import ProcessOptions
from tfs.runtime.spread_model import SpreadModel, summed


class ProcessPool:
    """Interpreters that each load every version, from one copy of its bytes.

    Thread-safe. Implements :class:`~tfs.runtime.interpreter.Interpreter`, but for the
    order of tasks. Made per version, as the server does, a version has its processes
    for itself: loading disturbs nobody, unloading ends them, a crash is its own.
    """

    def __init__(
        self,
        name: str,
        interpreters: Sequence[ProcessInterpreter],
        options: ProcessOptions,
    ) -> None:
        if not interpreters:
            raise ValueError("a pool needs an interpreter")
        self._name = name
        self._interpreters = tuple(interpreters)
        self._options = options
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
        """Its members."""
        return self._interpreters

    def start(self) -> None:
        for interpreter in self._interpreters:
            interpreter.start()

    def load(
        self, source: ModelSource
    ) -> SpreadModel[ProcessInterpreter, ProcessModel]:
        """Loads on one interpreter, then from its bytes on all others at once.

        What crashes while it is loaded does so once. Blocks.
        """
        health = VersionHealth(self._options.crashes)
        first, *others = self._interpreters
        if source.concurrency > 1:
            others = []  # its requests are to meet in one interpreter
        try:
            model = first.load(source, None, health)
            rest = self._load_others(others, model, health)
        finally:
            self._was_used = True
        return SpreadModel([(first, model), *rest])

    def _load_others(
        self,
        others: Sequence[ProcessInterpreter],
        first: ProcessModel,
        health: VersionHealth,
    ) -> list[tuple[ProcessInterpreter, ProcessModel]]:
        """Loads on each by a thread that waits for it; on all, or on none."""
        loaded: dict[ProcessInterpreter, ProcessModel | Exception] = {}

        def load(interpreter: ProcessInterpreter) -> None:
            try:
                loaded[interpreter] = interpreter.load(
                    first.source, first.files, health
                )
            except Exception as error:
                loaded[interpreter] = error

        threads = [
            threading.Thread(target=load, args=(each,), name=f"load-{each.name}")
            for each in others
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        models = {i: m for i, m in loaded.items() if isinstance(m, ProcessModel)}
        for error in loaded.values():
            if isinstance(error, Exception):
                for model in (first, *models.values()):
                    model.unload()
                raise error
        return [(each, models[each]) for each in others]

    def stats(self) -> InterpreterStats:
        """Returns the sums; of the models, one interpreter's number."""
        return summed(interpreter.stats() for interpreter in self._interpreters)

    def close(self, deadline_s: float | None = None) -> None:
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)
