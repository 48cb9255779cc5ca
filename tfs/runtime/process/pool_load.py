"""Loads one version on several interpreters at once, or on none."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_model import ProcessModel, VersionHealth
from tfs.runtime.spread_model import SpreadModel


class PoolLoad:
    """Loads one version on several interpreters. Confined to the loading thread.

    Args:
        source: The version.
        files: Its bytes in memory; they remain the caller's.
        health: Shared by all interpreters.

    """

    def __init__(
        self,
        source: ModelSource,
        files: VersionFiles,
        health: VersionHealth,
    ) -> None:
        self._source = source
        self._files = files
        self._health = health
        # Each value is written by its interpreter's thread, and read after that ended.
        self._loaded: dict[ProcessInterpreter, ProcessModel | Exception] = {}

    def load(
        self,
        first: ProcessInterpreter,
        others: Sequence[ProcessInterpreter],
        patience_s: float,
    ) -> SpreadModel[ProcessInterpreter, ProcessModel]:
        """Loads on all interpreters, each by a thread that waits for it, or on none."""
        threads = [self._begin(first)]
        threads[0].join(patience_s)
        # If the first has failed already, the others need not try.
        if not isinstance(self._loaded.get(first), Exception):
            threads += [self._begin(each) for each in others]
        for thread in threads:
            thread.join()
        outcomes = [(i, self._loaded[i]) for i in (first, *others) if i in self._loaded]
        models = [
            (i, model) for i, model in outcomes if isinstance(model, ProcessModel)
        ]
        errors = [error for _, error in outcomes if isinstance(error, Exception)]
        if errors:
            for _, model in models:
                model.unload()
            raise errors[0]
        return SpreadModel(models)

    def _begin(self, interpreter: ProcessInterpreter) -> threading.Thread:
        thread = threading.Thread(
            target=self._load_on, args=(interpreter,), name=f"load-{interpreter.name}"
        )
        thread.start()
        return thread

    def _load_on(self, interpreter: ProcessInterpreter) -> None:
        try:
            self._loaded[interpreter] = interpreter.load(
                self._source, self._files, self._health
            )
        except Exception as error:
            self._loaded[interpreter] = error
