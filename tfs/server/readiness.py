"""Whether a server is ready: the first models have settled, and at least one answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from tfs.server.config.waiting import ConfigWaiters
from tfs.server.served_models import ServedModels


class Readiness:
    """Tells whether the server wants requests. Thread-safe, unless a method says otherwise.

    A server is starting until all models of its first config have settled: they are
    available or have failed. Models that are added later do not make it unready again.

    Args:
        names: Returns the models that are configured.
        waiters: Knows which have settled.
        served: Knows which versions answer.

    """

    def __init__(
        self,
        names: Callable[[], Collection[str]],
        waiters: ConfigWaiters,
        served: ServedModels,
    ) -> None:
        self._names = names
        self._waiters = waiters
        self._served = served
        # The context that speeds up the first loads, until they have ended.
        self._lent = contextlib.ExitStack()
        self._is_lending = False
        self._is_starting = False
        self._last_answering = ""

    def begin_start(self, lent: contextlib.AbstractContextManager[object]) -> None:
        """Notes that the first models are about to load, before any can have settled.

        Args:
            lent: A context that speeds up loading; entered now, left when they have
                settled.

        """
        self._lent.enter_context(lent)
        self._is_lending = self._is_starting = True

    def end_start(self) -> None:
        """Ends the start once it is over. Called on one thread when states change."""
        # A repository that is still empty has not had its first loads.
        if self._is_lending and self._names() and not self.is_starting():
            self._is_lending = False
            self._lent.close()

    def is_ready(self) -> bool:
        """Whether any model can answer, and all models of the start have settled.

        Models that are added later load beside those that serve, and do not change
        this.
        """
        if self.is_starting():
            return False
        # Health checks call this on the serving loop. With tens of thousands of models
        # it is quick, because it asks first the one that answered the last time.
        names = self._names()
        last = self._last_answering
        if last in names and self._served.is_well(last):
            return True
        for name in names:
            if self._served.is_well(name):
                self._last_answering = name
                return True
        return False

    def is_starting(self) -> bool:
        """Whether any model of the start has neither become available nor failed yet."""
        if not self._is_starting:
            return False
        names = self._names()
        if not self._waiters.have_settled(names):
            return True
        # Kept, because it took a look at each model.
        self._is_starting = not names
        return False

    def is_model_available(self, name: str) -> bool | None:
        """Whether requests that name no version are answered, as far as the server has seen.

        None if the model is not configured.
        """
        return self._served.is_well(name) if name in self._names() else None
