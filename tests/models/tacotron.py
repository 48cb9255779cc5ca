"""A Tacotron-like decoder: frames of a spectrogram until it says that it is done."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Location-sensitive attention, as Tacotron 2's, in small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.memory = nn.Linear(width, width, bias=False)
        self.location = nn.Conv1d(1, width, 5, padding=2, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(
        self, query: torch.Tensor, memory: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        location = self.location(before[:, None]).transpose(1, 2)
        energy = self.score(
            torch.tanh(self.query(query)[:, None] + self.memory(memory) + location)
        )
        weights = energy.squeeze(-1).softmax(-1)
        return torch.bmm(weights[:, None], memory).squeeze(1), weights


class Tacotron(nn.Module):
    """Characters to a spectrogram, padded to ``max_frames``, and its length."""

    def __init__(
        self,
        vocabulary: int = 30,
        width: int = 16,
        num_mels: int = 8,
        max_frames: int = 20,
    ) -> None:
        super().__init__()
        self.num_mels, self.max_frames = num_mels, max_frames
        self.characters = nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.prenet = nn.Sequential(nn.Linear(num_mels, width), nn.ReLU())
        self.attention = Attention(width)
        self.decoder = nn.LSTMCell(2 * width, width)
        self.frame = nn.Linear(2 * width, num_mels)
        self.stop = nn.Linear(2 * width, 1)
        self.postnet = nn.Conv1d(num_mels, num_mels, 5, padding=2)

    def forward(self, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes int64 [batch, length]; gives mels [batch, frames, mels], lengths."""
        memory, _ = self.encoder(self.characters(text))
        num_rows, _, width = memory.shape
        state = (memory.new_zeros(num_rows, width), memory.new_zeros(num_rows, width))
        frame = memory.new_zeros(num_rows, self.num_mels)
        attended = memory.new_zeros(memory.shape[:2])
        context = memory.new_zeros(num_rows, width)
        lengths = torch.zeros(num_rows, dtype=torch.int64, device=text.device)
        running = torch.ones(num_rows, dtype=torch.bool, device=text.device)
        frames: list[torch.Tensor] = []
        # Ends when every row has stopped: how often depends on the data.
        while bool(running.any()) and len(frames) < self.max_frames:
            state = self.decoder(torch.cat([self.prenet(frame), context], 1), state)
            context, weights = self.attention(state[0], memory, attended)
            attended = attended + weights
            features = torch.cat([state[0], context], 1)
            frame = self.frame(features) * running[:, None]
            frames.append(frame)
            lengths = lengths + running
            threshold = 0.5 + 0.02 * (self.max_frames - len(frames))
            running = running & (self.stop(features).sigmoid().squeeze(1) < threshold)
        mels = torch.stack(frames, 1)
        mels = F.pad(mels, (0, 0, 0, self.max_frames - len(frames)))
        smoothed = self.postnet(mels.transpose(1, 2)).transpose(1, 2)
        return mels + smoothed, lengths


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two rows for it."""
    return Tacotron(), {"text": torch.randint(0, 30, (2, 7))}
