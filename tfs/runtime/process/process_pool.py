"""Several processes for one version: the paper's one interpreter per core."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.process.pool_growth import PoolGrowth
from tfs.runtime.process.pool_load import PoolLoad
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.process.process_options import ProcessOptions
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
                    if self._may_grow is not None:
                        model = SpreadModel(
                            [(first, first.load(source, files, health))]
                        )
                        growth = PoolGrowth(
                            model, files, health, others, self._may_grow
                        )
                        model.grow_by(growth)
                        return model
                    return PoolLoad(source, files, health).load(
                        first, others, self._options.slow_load_s
                    )
                finally:
                    files.close()
            finally:
                first.let_go()
        finally:
            self._was_used = True

    def stats(self) -> InterpreterStats:
        """Returns the sums; the number of models is that of one interpreter."""
        return summed(interpreter.stats() for interpreter in self._interpreters)

    def close(self, deadline_s: float | None = None) -> None:
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)
