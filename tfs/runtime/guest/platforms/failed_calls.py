"""Logs where in a model's code calls failed. Callers are told only what failed.

Callers decide how often a model fails, so each place is logged only once, and only a
few places in all. A worker has no log of its own: what it writes goes to the server's
standard error.

While a version is measured, its callers are ours, and the inputs often made up. That
some of these fail is no news to an operator, so it is told apart, as information.
"""

from __future__ import annotations

import logging
import os
from typing import Final

import torch

from tfs.runtime.guest.fault_text import one_line
from tfs.runtime.guest.random_numbers import random_repeats

log = logging.getLogger(__name__)

_MAX_TOLD: Final = 8
_MAX_FRAMES: Final = 8  # the innermost frames; a recursion has thousands
# Other frames say little about the model: torch's own on the way to a forward, and ours.
_OTHERS: Final = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep,
)


class FailedCalls:
    """The failures of one signature that were logged. Thread-safe.

    Args:
        servable: Name and version, as the log has them.
        signature: Which one.

    """

    __slots__ = ("_servable", "_signature", "_told")

    def __init__(self, servable: str, signature: str) -> None:
        self._servable = servable
        self._signature = signature
        self._told: set[tuple[type[BaseException], str]] = set()

    def note(self, error: BaseException) -> None:
        """Logs a failure, unless one of its kind was logged for the same place before."""
        if random_repeats():
            log.info(
                "event=probe_call_failed servable=%s signature=%s error=%r at=%r",
                self._servable,
                self._signature,
                one_line(error),
                places_of(error),
            )
            return
        if len(self._told) >= _MAX_TOLD:
            return
        place = places_of(error)
        if (type(error), place) in self._told:
            return
        self._told.add((type(error), place))
        log.warning(
            "event=call_failed servable=%s signature=%s error=%r at=%r",
            self._servable,
            self._signature,
            one_line(error),
            place,
        )


def places_of(error: BaseException) -> str:
    """Returns where in a model's own code an error was raised, the outermost call first."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        if file.startswith("<torch_package_"):
            file = file.partition(">.")[2]
        if not file.startswith(_OTHERS):
            places.append(f"{file}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return " > ".join(places[-_MAX_FRAMES:])
