"""Outer optimizers: what is done with the mean of what all ranks have learned in a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Outer:
    """A step of SGD on the anchors, whose gradient is the mean pseudo-gradient: what parameters have moved, negated.

    Attributes:
        lr: 1 without momentum is plain averaging (McMahan et al. 2017, Algorithm 1).
        momentum: of Nesterov.
    """

    lr: float = 1.0
    momentum: float = 0.0

    def __call__(self, anchors: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters."""
        return torch.optim.SGD(anchors, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0)


averaging = Outer()
"""The mean of all ranks' parameters."""
diloco = Outer(lr=0.7, momentum=0.9)
"""DiLoCo (Douillard et al. 2023, section 3.1): for hundreds of rounds."""
muloco = Outer(lr=0.8, momentum=0.9)
"""MuLoCo (Thérien et al. 2025): with Muon as the local optimizer."""
