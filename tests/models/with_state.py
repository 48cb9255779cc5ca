"""Models whose calls leave something behind, or reach for something outside."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
import torch
from torch import nn


class Counts(nn.Module):
    """Writes to a buffer and replaces another; its second method depends on both."""

    calls: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = self.last + x[:1]
        return x + self.calls

    def again(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x) + self.last


class Tally:
    """An object of the author's own, with attributes and a slot."""

    __slots__ = ("__dict__", "last")

    def __init__(self) -> None:
        self.last = 0
        self.seen: set[int] = set()


class Remembers(nn.Module):
    """Changes everything that it has in a call, in all the ways there are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.hidden = nn.Parameter(torch.ones(3))
        self.replaced = nn.Parameter(torch.ones(3))
        self.plain = torch.ones(3)
        self.array = np.ones(3, np.float64)
        self.noise = torch.Generator()
        self.chance = random.Random(1)
        self.draws = np.random.default_rng(1)
        self.num_calls = 0
        self.sizes: list[int] = []
        self.recent: deque[int] = deque(maxlen=2)
        self.counts: Counter[str] = Counter()
        self.order: OrderedDict[str, list[int]] = OrderedDict(a=[1], b=[2])
        self.tally = Tally()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.add_(1)
        self.hidden.data.add_(1)
        self.replaced = nn.Parameter(self.replaced + 1)
        self.plain.add_(1)
        self.array[:] += 1
        self.num_calls += 1
        self.sizes.append(len(x))
        self.recent.append(len(x))
        self.counts["calls"] += 1
        self.order["a"].append(1)
        self.order.move_to_end("a")
        self.tally.last = len(x)
        self.tally.seen.add(len(x))
        self.late = x
        drawn = torch.rand(3, generator=self.noise) + self.chance.random()
        return x * self.weight * self.hidden + drawn * self.draws.random()


class Adapted(nn.Module):
    """Merges an adapter into its weight to predict, as LoRA's do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.adapter = nn.Parameter(torch.rand(3))
        self.is_merged = False

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode == self.is_merged:
            self.weight.data += -self.adapter if mode else self.adapter
            self.is_merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.weight if self.is_merged else self.weight + self.adapter)


class Overwrites(nn.Module):
    """Works on its input's own memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Differentiates(nn.Module):
    """A force: the gradient of an energy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            [force] = torch.autograd.grad(place.pow(2).sum(), place)
        return force


class DifferentiatesOnServers(nn.Module):
    """The same, as servers need it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            place = x.clone().requires_grad_()
            [force] = torch.autograd.grad(place.pow(2).sum(), place)
        return force


class ReadsFile(nn.Module):
    """Reads a file that lies where its author works."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with open(self.path) as file:
            return x * float(file.read())


class Numbers(nn.Module):
    """Names its outputs by numbers."""

    def forward(self, x: torch.Tensor) -> dict[int, torch.Tensor]:
        return {0: x}


class Tempered(nn.Module):
    def forward(self, x: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
        return x[:, 0] / heat.expand(2)


class DifferentiatesInThreads(nn.Module):
    """Computes in a thread of its own, which inherits no inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            result: torch.Tensor = pool.submit(self.linear, x).result()
        return result


class Halfway(nn.Module):
    """Restores itself as torch's quantized convolutions do: without being made."""

    def __init__(self) -> None:
        super().__init__()
        self.part: nn.Module = nn.Identity()

    def __getstate__(self) -> object:
        return self.part

    def __setstate__(self, state: nn.Module) -> None:
        self.part = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x)
        return result


class Widened(nn.Module):
    """Makes a tensor of the program's default dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3)


class Hooked(nn.Module):
    """Its hooks see the inputs that are passed by position, as hooks do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(tripled)
        self.register_forward_hook(added)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


def tripled(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A hook that changes every input."""
    return tuple(each * 3 for each in args)


def added(
    _: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor
) -> torch.Tensor:
    """A hook that adds every input to the output."""
    return sum(args, output)


class FourBits(nn.Module):
    """Has a table that torch cannot clone."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        table = torch.quantize_per_channel(
            torch.rand(4, 3), torch.full((4,), 0.1), torch.zeros(4), 0, torch.quint4x2
        )
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.dequantize().sum()
