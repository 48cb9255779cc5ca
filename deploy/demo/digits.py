"""The handwritten digits that scikit-learn ships, and the training on them."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch
from digits_net import DigitsNet
from sklearn.datasets import load_digits
from torch import Tensor, nn

NUM_TRAIN = 1400


@dataclass(frozen=True)
class Digits:
    """The data set: float32 images [n, 64] in 0..1 and int64 labels [n]."""

    train_images: Tensor
    train_labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


def load_data() -> Digits:
    """Returns all 1,797 digits, shuffled with a fixed seed and split."""
    raw = load_digits()
    images = torch.tensor(raw.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(7))
    images, labels = images[order], labels[order]
    return Digits(
        images[:NUM_TRAIN], labels[:NUM_TRAIN], images[NUM_TRAIN:], labels[NUM_TRAIN:]
    )


def train(net: DigitsNet, data: Digits, num_epochs: int, title: str) -> None:
    """Trains ``net`` in place, drawing a progress bar."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(11)
    begun_s = time.perf_counter()
    net.train()
    for epoch in range(num_epochs):
        total_loss = 0.0
        batches = torch.split(torch.randperm(NUM_TRAIN, generator=generator), 64)
        for batch in batches:
            scores = net(data.train_images[batch])["scores"]
            loss = nn.functional.nll_loss(
                scores.clamp_min(1e-9).log(), data.train_labels[batch]
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total_loss += loss.item()
        elapsed_s = time.perf_counter() - begun_s
        _draw(title, epoch + 1, num_epochs, total_loss / len(batches), elapsed_s)
    net.eval()


def _draw(title: str, done: int, total: int, loss: float, elapsed_s: float) -> None:
    width = 28
    filled = width * done // total
    bar = "#" * filled + "." * (width - filled)
    line = f"  {title} [{bar}] {done}/{total}  loss {loss:.4f}  {elapsed_s:.1f} s"
    if sys.stdout.isatty():
        sys.stdout.write(f"\r{line}" + ("\n" if done == total else ""))
    elif done == total or done % max(1, total // 4) == 0:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
