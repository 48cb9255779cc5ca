"""What a fork of the zygote does before it is a worker."""

from __future__ import annotations

import platform
import random

import pytest
import torch

from tfs.runtime.guest.own_process import seed_random
from tfs.runtime.guest.zygote.process_tree import clone_parent


def test_a_machine_whose_system_call_is_not_known_forks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another machine's number would be another call; who asks is told the machine."""
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(OSError, match="s390x"):
        clone_parent()


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
