"""The models whose steps are compared, by name."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from images.model import SmallConvNet

WIDTH, DEPTH = 2000, 6


def mlp() -> nn.Module:
    """25.6 million parameters."""
    hidden = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 10))


MODELS = {"convnet, 1.2 M": (SmallConvNet, 20), "MLP, 25.6 M": (mlp, 2)}
"""By name: what makes it, and the steps of a window. Both take images of 28 x 28 pixels in one channel."""
