"""Finds the environment variables that a model's own code reads when it is served.

A server has another environment than the program that saves, and what a model takes
from the environment is not saved with it. Variables that libraries read are not
reported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

log = logging.getLogger(__name__)

_OWN_CODE: Final = ("<torch_package_", "tfs_servable_")
"""Prefixes of the names of modules that were loaded from a version."""

_ON_THE_WAY: Final = frozenset({"os", "collections.abc", "_collections_abc", __name__})


class ReadVariables:
    """Counts who watches; the first one changes ``os.environ``, the last one undoes it."""

    def __init__(self) -> None:
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._names: dict[int, set[str]] = {}  # the names read, by thread
        self._theirs: Callable[..., Any] | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[set[str]]:
        """Records the names that a version's code reads on this thread in the block."""
        thread, names = threading.get_ident(), set[str]()
        kind: Any = type(os.environ)
        with self._lock:
            if not self._names:
                self._theirs = theirs = kind.__getitem__

                def read(environment: object, name: Any) -> Any:
                    self._note(name)
                    return theirs(environment, name)

                kind.__getitem__ = read
            before = self._names.get(thread)
            self._names[thread] = names
        try:
            yield names
        finally:
            with self._lock:
                del self._names[thread]
                if before is not None:
                    self._names[thread] = before
                if not self._names:
                    kind.__getitem__ = self._theirs

    def _note(self, name: object) -> None:
        names = self._names.get(threading.get_ident())
        if names is None or not isinstance(name, str):
            return
        frame = sys._getframe(2)
        while frame.f_back is not None and _name_of(frame) in _ON_THE_WAY:
            frame = frame.f_back
        if _name_of(frame).startswith(_OWN_CODE):
            names.add(name)


_reads: Final = ReadVariables()


@contextlib.contextmanager
def warned_of_variables() -> Iterator[None]:
    """Logs at the end which variables a version's code read on this thread, if any."""
    with _reads.watched() as names:
        yield
    if names:
        log.warning(
            "event=environment_variables_read names=%s are read by the model; a server "
            "has an environment of its own: set them where it is started, or keep the "
            "values in the model",
            ",".join(sorted(names)),
        )


def _name_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))
