"""The network that the example trains: many parameters to communicate, few operations to compute."""

from __future__ import annotations

import torch
from torch import nn


class SmallConvNet(nn.Module):
    """Three convolutions and two linear layers for grey images of 28 x 28 pixels.

    Nearly all of its 1.2 million parameters sit in the first linear layer: a gradient of 5 MB for 2 million
    multiplications an image, so that communication is a visible part of a step also on a small machine. Strides
    instead of pooling layers: on a CPU, pooling would cost as much time as the convolutions.
    """

    def __init__(self, classes: int = 10, hidden: int = 360) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
        self.apply(_initialise)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores, batch x classes, of images given as batch x 1 x 28 x 28."""
        return self.classifier(self.features(images))


def _initialise(module: nn.Module) -> None:
    """He initialisation: without normalisation layers, PyTorch's default starts on a plateau."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)
