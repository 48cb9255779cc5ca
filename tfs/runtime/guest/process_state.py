"""What a model's code can change of the whole process, for all that runs there."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

import torch

from tfs.runtime.guest.torch_surface import WatchedSurface

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGCHLD)


class ProcessState:
    """As it is when this is made. Immutable.

    Threads' own settings are left out (gradients, numbers of threads), and what code
    adds, as every import does.

    Args:
        surface: What of torch can be replaced, as last looked at.

    """

    def __init__(self, surface: WatchedSurface | None = None) -> None:
        self._settings = _settings()
        self._watched = surface or WatchedSurface()
        self._surface = self._watched.look()

    def changes(self) -> str:
        """Returns what differs now, as a list for people; empty if nothing."""
        now = _settings()
        found = [name for name, value in self._settings.items() if now[name] != value]
        return ", ".join(found + self._watched.look().changes(self._surface))


def _settings() -> dict[str, object]:
    folder = ""
    with contextlib.suppress(OSError):  # it was removed
        folder = os.getcwd()
    return {
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of matmul": torch.get_float32_matmul_precision(),
        "the working directory": folder,
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
    }
