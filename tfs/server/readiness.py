"""Whether the models of a server answer: all of its start, one of them, any."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from tfs.server.config.config_waiters import ConfigWaiters
from tfs.server.served_models import ServedModels


class Readiness:
    """Answers whether requests should come. Thread-safe, except what says otherwise.

    A server starts until the first models that it has have all settled, that is, are
    available or have failed; what comes later does not send anybody away.

    Args:
        names: Returns the models that are configured.
        waiters: Knows which have settled, and how.
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
        # What is lent to the first loads, until those have ended.
        self._lent = contextlib.ExitStack()
        self._is_lending = False

    def begin_start(self, lent: contextlib.AbstractContextManager[object]) -> None:
        """Notes that the first models are about to load, before any can have settled.

        Args:
            lent: What makes that quick; entered now, left when they have settled.

        """
        self._lent.enter_context(lent)
        self._is_lending = True

    def end_start(self) -> None:
        """Notes that the start is over, if it is. On the loop, whenever states change."""
        # A repository that is still empty has not had its first loads.
        if self._is_lending and self._names() and self.has_settled():
            self._is_lending = False
            self._lent.close()

    def is_ready(self) -> bool:
        """Whether one model at least can answer, and all of the start have settled.

        What is added later loads beside what serves, and sends nobody away.
        """
        if self.is_starting():
            return False
        failures = self._waiters.failures(self._names())
        return any(
            not why and self._served.primary(name) is not None
            for name, why in failures.items()
            if why is not None
        )

    def is_starting(self) -> bool:
        """Whether models of the start are neither available nor have failed."""
        return self._is_lending and not self.has_settled()

    def has_settled(self) -> bool:
        """Whether every configured model is available or has failed."""
        return self._waiters.have_settled(self._names())

    def is_model_available(self, name: str) -> bool | None:
        """Whether requests that name no version are answered; None if not configured."""
        if name not in self._names():
            return None
        is_any = self._waiters.failures((name,))[name] == ""
        return is_any and self._served.primary(name) is not None
