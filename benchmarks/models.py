"""The models whose steps are compared, by name."""

from __future__ import annotations

import torch
from images.model import SmallConvNet
from torch import nn

from benchmarks.time_to_accuracy.text import CONTEXT, ByteTransformer

WIDTH, DEPTH = 2000, 6


def mlp() -> nn.Module:
    """25.6 million parameters."""
    hidden = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 10))


class ReadImages(nn.Module):
    """The byte-level transformer of time to accuracy, which reads the first pixels of an image and names its class."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = ByteTransformer()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)[:, :CONTEXT].clamp(-1, 1)
        scores: torch.Tensor = self.reads((127.5 * (pixels + 1)).long())
        return scores[:, -1, :10]


MODELS = {"convnet, 1.2 M": (SmallConvNet, 20), "MLP, 25.6 M": (mlp, 2), "transformer, 1.9 M": (ReadImages, 5)}
"""By name: what makes it, and the steps of a window. All take images of 28 x 28 pixels in one channel."""
