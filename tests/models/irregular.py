"""Models whose work depends on their data: graphs, experts, packed sequences, beams."""

from __future__ import annotations

import abc
import enum
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

M = TypeVar("M", bound=nn.Module)


class GraphConvolution(nn.Module):
    """Sums over the edges of a graph, given as two rows of node numbers."""

    def __init__(self, width: int = 8, out: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        ones = torch.ones_like(target, dtype=x.dtype)
        degree = torch.ones(x.size(0)).index_add_(0, target, ones)
        norm = degree.rsqrt()
        hidden: Tensor = self.linear(x)
        sent = hidden[source] * (norm[source] * norm[target]).unsqueeze(1)
        found = torch.zeros_like(hidden).index_add_(0, target, sent)
        loudest = torch.full((x.size(0),), -1e9).scatter_reduce(
            0, target, sent.sum(1), "amax"
        )
        return torch.cat([found, loudest.unsqueeze(1)], 1)


class SparseMixing(nn.Module):
    """Mixes nodes by a sparse buffer, in two layouts."""

    ring: Tensor
    rows: Tensor

    def __init__(self, num_nodes: int = 6) -> None:
        super().__init__()
        places = torch.stack([torch.arange(num_nodes), torch.arange(num_nodes).roll(1)])
        ring = torch.sparse_coo_tensor(places, torch.ones(num_nodes)).coalesce()
        self.register_buffer("ring", ring)
        self.register_buffer("rows", ring.to_dense().to_sparse_csr())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        flat = x.transpose(0, 1).reshape(x.shape[1], -1)
        mixed = torch.sparse.mm(self.ring, flat) + self.rows @ flat
        back = mixed.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)
        return {"mixed": back, "large": (back * (back > 1)).to_sparse()}


class Activation(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(nn.functional, self.value)(x)
        return result


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """What a mixture is made of."""

    width: int = 8
    num_experts: int = 4
    num_used: int = 2
    activation: Activation = Activation.GELU


class Router(nn.Module, abc.ABC):
    """Chooses experts; subclasses enter themselves."""

    known: ClassVar[dict[str, type[Router]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Router.known[cls.__name__] = cls

    def __init__(self, options: ExpertOptions) -> None:
        super().__init__()
        self.options = options
        self.gate = nn.Linear(options.width, options.num_experts)

    @abc.abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns weights and numbers of experts, for each row."""


class Best(Router):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self.gate(x).softmax(-1).topk(self.options.num_used)
        return chosen.values, chosen.indices


class Held(nn.Module, Generic[M]):
    """A part in a box of its type."""

    def __init__(self, part: M) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.part(x)
        return result


class Experts(nn.Module):
    """Each row goes to the experts that a router of the registry chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.options = ExpertOptions()
        width = self.options.width
        self.router = Router.known["Best"](self.options)
        self.experts = nn.ModuleList(
            Held[nn.Linear](nn.Linear(width, width))
            for _ in range(self.options.num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            if len(rows):
                share = weights[rows, places, None]
                result.index_add_(0, rows, expert(x[rows]) * share)
        return self.options.activation(result)


class PackedTagger(nn.Module):
    """A bidirectional LSTM over packed sequences of the lengths that are given."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 12, padding_idx=0)
        self.rnn = nn.LSTM(12, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(20, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.words(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.rnn(packed)
        result: Tensor = self.head(torch.cat([hidden[-2], hidden[-1]], -1))
        return result


class Hypothesis(NamedTuple):
    score: float
    tokens: list[int]
    state: Tensor


class BeamSearch(nn.Module):
    """Decodes with a heap of hypotheses, until all of them have ended."""

    def __init__(self, vocabulary: int = 20, width: int = 3) -> None:
        super().__init__()
        self.width = width
        self.words = nn.Embedding(vocabulary, 8)
        self.cell = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, vocabulary)

    def next_of(self, before: Hypothesis) -> Iterator[Hypothesis]:
        """Yields the likeliest words behind a hypothesis."""
        word = self.words(torch.tensor(before.tokens[-1:]))
        state = self.cell(word, before.state[None])
        best = self.head(state).log_softmax(-1)[0].topk(self.width)
        for score, token in zip(best.values, best.indices, strict=True):
            total = before.score + float(score)
            yield Hypothesis(total, [*before.tokens, int(token)], state[0])

    def forward(self, state: Tensor) -> dict[str, object]:
        tokens = torch.zeros(len(state), 8, dtype=torch.int64)
        scores = []
        for row, first in enumerate(state):
            beams, ended = [Hypothesis(0.0, [1], first)], []
            while beams and len(beams[0].tokens) < tokens.shape[1]:
                found = [each for beam in beams for each in self.next_of(beam)]
                best = heapq.nlargest(self.width, found, key=lambda each: each.score)
                ended += [each for each in best if each.tokens[-1] == 2]
                beams = [each for each in best if each.tokens[-1] != 2]
            winner = max(ended + beams, key=lambda each: each.score)
            tokens[row, : len(winner.tokens)] = torch.tensor(winner.tokens)
            scores.append(winner.score)
        return {"tokens": tokens, "score": scores}
