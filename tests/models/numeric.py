"""Models that compute otherwise than by layers of float32: complex, short, by solvers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Spectral(nn.Module):
    """Mixes places by their spectrum, with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        spectrum = torch.fft.rfft(x, dim=1)
        mixed = torch.einsum("bti,iot->bto", spectrum, self.weight)
        conjugate = spectrum.conj()
        return {
            "y": torch.fft.irfft(mixed, n=x.shape[1], dim=1),
            "conjugate": conjugate,
            "negative": conjugate.imag,
        }


class Short(nn.Module):
    """Weights of eight bits, computed with in sixteen."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(8, 4).to(torch.float8_e4m3fn))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x.to(torch.bfloat16) @ self.weight.to(torch.bfloat16)
        return {"half": y.half(), "brain": y, "eight": y.to(torch.float8_e5m2)}


class Quantized(nn.Module):
    """What torch.ao makes integers of, but for the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(self.words(tokens))[0][:, -1])
        return result


class Ensemble(nn.Module):
    """Calls its members at once, by vmap over their stacked parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        state = torch.func.stack_module_state(list(self.members))

        def call(parameters: object, buffers: object, rows: Tensor) -> Tensor:
            result: Tensor = torch.func.functional_call(
                self.members[0],
                (parameters, buffers),  # type: ignore[arg-type]
                (rows,),
            )
            return result

        each = torch.func.vmap(call, in_dims=(0, 0, None))(*state, x)
        return {"mean": each.mean(0), "each": each.transpose(0, 1)}


class Slope(nn.Module):
    """A field's slope, by torch.func.grad."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, place: Tensor) -> Tensor:
        slope = torch.func.grad(lambda each: self.field(each).sum())
        result: Tensor = torch.func.vmap(slope)(place)
        return result


class Flow(nn.Module):
    """Follows a field in time, by a Runge-Kutta step that is a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, y: Tensor, until: Tensor) -> Tensor:
        def step(field: Callable[[Tensor], Tensor], at: Tensor, h: Tensor) -> Tensor:
            first = field(at)
            second = field(at + h / 2 * first)
            return at + h / 2 * (first + second)

        for _ in range(4):
            y = step(self.field, y, until[:, None] / 4)
        return y


class Denoiser(nn.Module):
    """A U-Net's level with an embedding of the time step and attention to a context."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.attention = nn.MultiheadAttention(
            width, 4, kdim=12, vdim=12, batch_first=True
        )
        self.last = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, sample: Tensor, step: Tensor, context: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(1e4) * torch.arange(half) / half)
        angles = step[:, None].float() * rates
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        wide = self.first(sample) + time[:, :, None, None]
        deep = F.avg_pool2d(F.silu(self.norm(wide)), 2)
        flat = deep.flatten(2).transpose(1, 2)
        found, _ = self.attention(flat, context, context, need_weights=False)
        deep = (flat + found).transpose(1, 2).reshape(deep.shape)
        result: Tensor = self.last(
            torch.cat([F.interpolate(deep, scale_factor=2.0), wide], 1)
        )
        return result


class Together(nn.Module):
    """Runs its parts as coroutines, and chains others by a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    async def call(self, part: nn.Module, x: Tensor) -> Tensor:
        """Returns what a part makes of ``x``, a little later."""
        await asyncio.sleep(0)
        result: Tensor = part(x)
        return result

    def chain(self, x: Tensor) -> Iterator[Tensor]:
        """Yields what each part makes of what the one before it made."""
        for part in self.parts:
            x = part(x).relu()
            yield x

    def forward(self, x: Tensor) -> Tensor:
        async def all_parts() -> list[Tensor]:
            return await asyncio.gather(*(self.call(part, x) for part in self.parts))

        *_, last = self.chain(x)
        return torch.stack(asyncio.run(all_parts())).sum(0) + last
