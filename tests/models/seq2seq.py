"""A sequence-to-sequence transformer that decodes greedily, token by token."""

from __future__ import annotations

import torch
from torch import nn


class Translator(nn.Module):
    """Source tokens to target tokens, as many as it takes to end every row."""

    def __init__(
        self, vocabulary: int = 40, width: int = 32, max_length: int = 10
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.begin, self.end = 1, 2
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(64, width) * 0.1)
        self.transformer = nn.Transformer(
            d_model=width,
            nhead=4,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dim_feedforward=64,
            batch_first=True,
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor) -> dict[str, torch.Tensor]:
        """Takes int64 [batch, length]; gives tokens int64 and lengths int64."""
        memory = self.transformer.encoder(self._embedded(source))
        num_rows = source.shape[0]
        target = source.new_full((num_rows, 1), self.begin)
        ended = torch.zeros(num_rows, dtype=torch.bool, device=source.device)
        lengths = torch.full_like(target[:, 0], self.max_length)
        for step in range(self.max_length):
            mask = self.transformer.generate_square_subsequent_mask(target.shape[1])
            hidden = self.transformer.decoder(self._embedded(target), memory, mask)
            following = self.head(hidden[:, -1]).argmax(-1)
            following = torch.where(
                ended, torch.full_like(following, self.end), following
            )
            target = torch.cat([target, following[:, None]], 1)
            lengths = torch.where(
                ~ended & (following == self.end),
                torch.full_like(lengths, step),
                lengths,
            )
            ended = ended | (following == self.end)
        return {"tokens": target[:, 1:], "lengths": lengths}

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embedding(tokens)
        return embedded + self.positions[: tokens.shape[1]]


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two rows for it."""
    return Translator(), {"source": torch.randint(3, 40, (2, 9))}
