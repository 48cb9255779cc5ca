"""What a process that runs models does about itself: copies, name, stacks, random numbers.

A model may fork while it computes. Its child that returns, or raises, would go on with
whatever called the model: it would answer the caller a second time, or run the server's
own loop on the server's own sockets. So a call is asked before and after whether it is
still in the process that it began in (:data:`FORKS`). ``os.getpid`` would tell as well,
but is a system call, and calls of small models take microseconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import random
import signal
import sys
from typing import Any, Final


class Forks:
    """How often the process that this is was forked since its first ancestor."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0

    def end_copy(self, depth: int) -> None:
        """Ends this process if it was forked since its depth was ``depth``."""
        if self.depth != depth:
            os._exit(0)

    def note(self) -> None:
        """Takes note that this process has just been forked."""
        self.depth += 1


FORKS = Forks()
"""Of this process."""

os.register_at_fork(after_in_child=FORKS.note)


_MAX_BYTES: Final = 15  # the kernel's limit


def name_process(name: str) -> None:
    """Gives this process the start of ``name`` as its name; does nothing if it cannot."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(os.fsencode(name)[:_MAX_BYTES])


SHOW_STACKS: Final = signal.SIGRTMAX - 1
"""Asks a worker for its stacks; a number that no library is known to use."""


def show_stacks() -> None:
    """Has this process, and those forked from it, show their stacks from now on.

    Without stderr nothing is shown, and the signal does nothing.
    """
    try:
        faulthandler.enable()
        faulthandler.register(SHOW_STACKS)
    except (RuntimeError, ValueError, OSError):
        signal.signal(SHOW_STACKS, signal.SIG_IGN)


_repeats = False  # whether the streams were last set by a seed that somebody chose


def random_repeats() -> bool:
    """Tells whether this process draws the same numbers each time.

    So it is while a version is measured, and never while it serves.
    """
    return _repeats


def seed_random(seed: int | None = None) -> None:
    """Sets the streams of torch, of Python and, where it is imported, of numpy.

    None gives this process numbers of its own; otherwise a fork repeats its parent's.
    Generators that a model holds belong to the model and stay as they are.
    """
    # The server imports this module for its constants, and opens its ports before torch.
    import torch

    global _repeats
    is_asked_for = _repeats = seed is not None
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little")
    random.seed(seed)
    if is_asked_for and "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # if imported later, it is unseeded
    numpys: Any = sys.modules.get("numpy.random")
    if numpys is not None:
        numpys.seed(seed % 2**32)
    if any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")):
        torch.manual_seed(seed)
    else:
        # This does the same for the processor alone. Looking for devices that do not
        # exist would write to 450 shared pages: 2 ms at each fork.
        torch.default_generator.manual_seed(seed)
