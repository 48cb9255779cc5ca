"""The demo's model, in a module of its own, because packages contain whole modules."""

from __future__ import annotations

from torch import Tensor, nn


class DigitsNet(nn.Module):
    """Two convolutions and two linear layers over 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Returns ``scores`` [batch, 10], summing to 1, for ``images`` [batch, 64]."""
        logits = self.head(self.features(images.view(-1, 1, 8, 8)))
        return {"scores": logits.softmax(dim=1)}
