"""Models that batch a part of themselves, and the same models without that.

The first prepares each request in Python for a few milliseconds and computes a core
whose weights take longer to read than to multiply; the second decodes sentences of
different lengths step by step, where requests join and leave at every step.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tests.benchmarks.harness import Sample
from tfs.runtime.batched import BatchedPart, batched

NUM_CALLERS = 16
_WIDTH = 2048
_STATE = 512
_WORDS = 8000

Answer = Callable[[int], Tensor]


class Prepared:
    """Counts the words of a text, which takes about 2 ms, then scores the counts."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
        self.core = nn.Sequential(*layers).eval()
        self.part = batched(self.core, max_batch_size=NUM_CALLERS)

    def counts(self, seed: int) -> Tensor:
        counts = [0.0] * _WIDTH
        place = seed + 1
        for _ in range(10_000):
            place = place * 48271 % 2147483647
            counts[place % _WIDTH] += 1
        return torch.tensor([counts]) / 5

    def alone(self, seed: int) -> Tensor:
        x: Tensor = self.core(self.counts(seed))
        return x

    def joined(self, seed: int) -> Tensor:
        x: Tensor = self.part(self.counts(seed))
        return x


class Decoder:
    """A recurrent cell and a vocabulary; says as many words as the request asks for."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.embedding = nn.Embedding(_WORDS, _STATE)
        self.cell = nn.GRUCell(_STATE, _STATE)
        self.head = nn.Linear(_STATE, _WORDS)
        # Generous, for every loop comes by soon.
        self.part: BatchedPart = batched(
            self.step, max_batch_size=NUM_CALLERS, timeout_s=0.05
        )

    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(self.embedding(token), state)
        return self.head(state).argmax(1), state

    def decode(self, step: Callable[..., tuple[Tensor, Tensor]], seed: int) -> Tensor:
        token, state = torch.tensor([seed % _WORDS]), torch.zeros(1, _STATE)
        tokens = []
        for _ in range(random.Random(seed).randint(5, 25)):
            token, state = step(token, state)
            tokens.append(token)
        return torch.cat(tokens)

    def alone(self, seed: int) -> Tensor:
        return self.decode(self.step, seed)

    def joined(self, seed: int) -> Tensor:
        with self.part.session():
            return self.decode(self.part, seed)


def run_callers(answer: Answer, num_requests: int) -> Sample:
    """Returns the CPU time per request with callers that each wait for their answer.

    Raises:
        RuntimeError: A caller failed.

    """
    seeds = iter(range(num_requests))
    failures: list[BaseException] = []

    def call() -> None:
        try:
            with torch.inference_mode():
                for seed in seeds:  # next() on a range's iterator is atomic
                    answer(seed)
        except BaseException as error:
            failures.append(error)

    begun_s = time.process_time()
    threads = [threading.Thread(target=call) for _ in range(NUM_CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"{len(failures)} callers failed: {failures[0]!r}")
    return {"cpu_ms": (time.process_time() - begun_s) / num_requests * 1e3}


def check_answers(alone: Answer, joined: Answer, seeds: Sequence[int]) -> None:
    """Compares both ways to compute, callers at once against one by one.

    Raises:
        RuntimeError: They differ.

    """
    found: dict[int, Tensor] = {}

    def call(seed: int) -> None:
        with torch.inference_mode():
            found[seed] = joined(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.inference_mode():
        for seed in seeds:
            if not torch.allclose(alone(seed), found[seed], 1e-4, 1e-5):
                raise RuntimeError(f"request {seed} was answered otherwise in a batch")
