"""Several processes for one version: the paper's one interpreter per core."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfs.core.servable import InferenceTask, Tensors
from tfs.runtime.interpreter import InterpreterStats, LoadMemory
from tfs.runtime.model_source import ModelSource
from tfs.runtime.process_interpreter import ProcessInterpreter
from tfs.runtime.process_model import ProcessModel, VersionHealth
from tfs.runtime.process_options import ProcessOptions


class PooledModel:
    """A version on every interpreter of a pool. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.InterpreterModel`, but for the order of
    tasks, which holds per interpreter only.
    """

    def __init__(
        self, members: Sequence[tuple[ProcessInterpreter, ProcessModel]]
    ) -> None:
        self._members = tuple(members)

    @property
    def source(self) -> ModelSource:
        return self._members[0][1].source

    @property
    def pid(self) -> int:
        """The first interpreter's process; they are alike."""
        return self._members[0][1].pid

    @property
    def import_s(self) -> float | None:
        """Processor seconds the first interpreter took to import and unpickle it."""
        return self._members[0][1].import_s

    @property
    def load_memory(self) -> LoadMemory:
        """What the first interpreter's load took."""
        return self._members[0][1].load_memory

    @property
    def last_call_s(self) -> float | None:
        """Seconds of the first interpreter's last call; an idle pool uses that one."""
        return self._members[0][1].last_call_s

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Has the first interpreter measure it; see ``MeasurableModel``."""
        return self._members[0][1].two_thread_scaling(
            signature_name, inputs, duration_s
        )

    def submit(self, task: InferenceTask) -> None:
        """Hands the task to the interpreter with the fewest calls before it."""
        _, model = min(self._members, key=_num_pending)
        model.submit(task)

    def unload(self) -> None:
        for _, model in self._members:
            model.unload()


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

    def load(self, source: ModelSource) -> PooledModel:
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
        return PooledModel([(first, model), *rest])

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
        each = [interpreter.stats() for interpreter in self._interpreters]
        return InterpreterStats(
            num_models=each[0].num_models,
            num_queued=sum(stats.num_queued for stats in each),
            num_calls=sum(stats.num_calls for stats in each),
            num_dropped=sum(stats.num_dropped for stats in each),
            num_failed=sum(stats.num_failed for stats in each),
            num_restarts=sum(stats.num_restarts for stats in each),
            busy_s=sum(stats.busy_s for stats in each),
        )

    def close(self, deadline_s: float | None = None) -> None:
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)


def _num_pending(member: tuple[ProcessInterpreter, ProcessModel]) -> int:
    return member[0].num_pending
