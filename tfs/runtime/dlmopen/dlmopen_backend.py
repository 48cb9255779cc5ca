"""The dlmopen backend of a server: a fixed number of private CPythons.

Versions share them, because a CPython cannot be given back. Each version is loaded on
as many as it asks for, beginning with those that have the fewest models.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfs.core.clock import Clock
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.dlmopen.dlmopen_interpreter import DlmopenInterpreter, DlmopenModel
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.pooled_model import PooledModel


class DlmopenBackend:
    """Owns the interpreters. Thread-safe.

    Args:
        num_interpreters: Most interpreters; each is made when something is loaded on
            it.
        max_queued: Most calls that may wait for one.
        clock: The clock of deadlines.
        call_timeout_s: How long loads and unloads wait for a call that does not end.

    """

    def __init__(
        self,
        num_interpreters: int,
        *,
        max_queued: int = 256,
        clock: Clock | None = None,
        call_timeout_s: float | None = None,
    ) -> None:
        self._interpreters = tuple(
            DlmopenInterpreter(
                f"dlmopen-{index}",
                max_queued=max_queued,
                clock=clock,
                call_timeout_s=call_timeout_s,
            )
            for index in range(num_interpreters)
        )

    def group(self, num_interpreters: int = 0) -> DlmopenGroup:
        """Returns ``num_interpreters`` interpreters for one version; all of them if 0."""
        by_load = sorted(self._interpreters, key=lambda each: each.stats().num_models)
        num = min(num_interpreters, len(by_load)) or len(by_load)
        return DlmopenGroup(by_load[:num], len(self._interpreters))

    def close(self, deadline_s: float | None = None) -> None:
        """Ends the use of all interpreters; the process keeps their memory. Blocks."""
        for interpreter in self._interpreters:
            interpreter.close(deadline_s)


class DlmopenGroup:
    """Interpreters that load the same versions, from one copy of their bytes.

    Thread-safe. Implements :class:`~tfs.runtime.interpreter.Interpreter`, except that
    the order of tasks holds only per interpreter. ``close`` leaves the interpreters to
    their backend.
    """

    def __init__(
        self, interpreters: Sequence[DlmopenInterpreter], num_in_process: int
    ) -> None:
        self._interpreters = tuple(interpreters)
        self._num_in_process = num_in_process
        # Guards the list; leaf.
        self._lock = threading.Lock()
        self._models: list[PooledModel[DlmopenInterpreter, DlmopenModel]] = []

    @property
    def name(self) -> str:
        return "dlmopen"

    def start(self) -> None:
        for interpreter in self._interpreters:
            interpreter.start()

    def load(
        self, source: ModelSource
    ) -> PooledModel[DlmopenInterpreter, DlmopenModel]:
        """Loads a version on every interpreter. Blocks, the first time for seconds.

        Raises:
            FailedPrecondition: The host cannot run this backend; the message says why.
            ServingError: The version does not load; nothing is left of it.

        """
        dlmopen_probe.require(self._num_in_process)
        loaded: list[tuple[DlmopenInterpreter, DlmopenModel]] = []
        files = VersionFiles.stage(source)
        try:
            loaded.extend(
                (interpreter, interpreter.load(source, files))
                for interpreter in self._interpreters
            )
        except BaseException:
            for _, model in loaded:
                model.unload()
            raise
        finally:
            files.close()
        spread = PooledModel(loaded)
        with self._lock:
            self._models.append(spread)
        return spread

    def stats(self) -> InterpreterStats:
        """Returns the sums; the number of models is that of one interpreter."""
        return InterpreterStats.summed(
            interpreter.stats() for interpreter in self._interpreters
        )

    def close(self, deadline_s: float | None = None) -> None:
        """Unloads everything that was loaded here."""
        with self._lock:
            models, self._models = self._models, []
        for model in models:
            model.unload()
