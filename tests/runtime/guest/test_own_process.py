from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tfs.runtime.guest.own_process import seed_random


@pytest.mark.filterwarnings("ignore")
def test_a_seed_is_for_torch_python_and_numpy() -> None:
    """A model may draw from any of them; afterwards each goes on by itself."""

    def drawn() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    seed_random(2**40 + 3)
    first = drawn()
    seed_random(2**40 + 3)
    assert drawn() == first
    seed_random()
    other = drawn()
    assert all(a != b for a, b in zip(first, other, strict=True))
