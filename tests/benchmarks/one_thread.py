"""Torch on one thread, for as long as a context lasts."""

from __future__ import annotations

import torch


class one_thread:  # used like a function
    """Gives torch one thread, as CPU time per thread is what is measured."""

    def __enter__(self) -> None:
        self._num_threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._num_threads)
