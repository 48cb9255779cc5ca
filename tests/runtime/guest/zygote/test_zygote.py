"""What a fork of the zygote does before it is a worker."""

from __future__ import annotations

import random

import torch

from tfs.runtime.guest.own_process import seed_random


def test_each_fork_has_random_numbers_of_its_own() -> None:
    """Python's and torch's: two forks start from the same state of both."""
    ours, torchs = random.getstate(), torch.get_rng_state()
    try:
        seen = []
        for _ in range(2):
            random.setstate(ours)
            torch.set_rng_state(torchs)
            seed_random()
            seen.append((random.random(), float(torch.rand(()))))
        (first, first_of_torch), (second, second_of_torch) = seen
        assert first != second
        assert first_of_torch != second_of_torch
    finally:
        random.setstate(ours)
        torch.set_rng_state(torchs)
