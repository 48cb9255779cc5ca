"""What failures of a model mean and how they are told: to callers, and in the log.

Callers are told only what failed; where in the model's code is logged. Callers decide how
often a model fails, so each place is logged only once, and only a few places in all. A
worker has no log of its own: what it writes goes to the server's standard error.

While a version is measured, its callers are ours, and the inputs often made up. That
some of these fail is no news to an operator, so it is told apart, as information.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from typing import Final

import torch

from tfs.core.errors import chain_of, text_of
from tfs.runtime.guest.own_process import random_repeats

_MISSING_OPERATOR: Final = re.compile(
    r"deserializing node Node\(target='torch\.ops\.(\w+)\.(\w+)"
    r"|Unknown builtin op: (\w+)::(\w+)"
)


def one_line(error: BaseException) -> str:
    """Returns the exception's type and the start of its text, for a message."""
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def what_is_missing(error: BaseException) -> str:
    """Returns the start of a message if torch lacks an operator that a graph calls."""
    found = _MISSING_OPERATOR.search(text_of(error))
    if found is None:
        return ""
    name = "::".join(part for part in found.groups() if part)
    return (
        f"no operator {name} here; what an author's program registers is not in a "
        "graph: save the model as torch_package, which brings its code. "
    )


_TORCH_SAYS: Final = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",  # of a device
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is that there was no memory."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (
            isinstance(each, RuntimeError)
            and any(text in text_of(each) for text in _TORCH_SAYS)
        )
        for each in chain_of(error)
    )


log = logging.getLogger(__name__)

_MAX_TOLD: Final = 8
_MAX_FRAMES: Final = 8  # the innermost frames; a recursion has thousands
# Other frames say little about the model: torch's own on the way to a forward, and ours.
_OTHERS: Final = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
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
