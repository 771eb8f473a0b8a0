"""Optimizers of embedding rows: only rows that a step uses are touched, and each row has its state beside it.

All arithmetic is by element, or in a fixed order within a row, so that a row's bits depend on no other row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from hvd_compress.errors import ConfigError


@dataclass(frozen=True)
class RowOptimizer(ABC):
    """Updates rows in place.

    Attributes:
        lr: the learning rate, or a function that gives it by the step, from 0 on. It cannot be assigned: updates of a
            step run beside the next one, some of them on servers.
    """

    lr: float | Callable[[int], float]

    def __post_init__(self) -> None:
        if not self.rate(1) >= 0:
            raise ConfigError(f"lr = {self.rate(1)} of an embedding's optimizer is no learning rate, 0 or more")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, from 1 on."""
        return self.lr(step - 1) if callable(self.lr) else self.lr

    def described(self, steps: int) -> str:
        """Return what must be the same on all ranks behind `steps` steps."""
        return repr(replace(self, lr=self.rate(steps + 1)))

    @abstractmethod
    def state_width(self, dim: int) -> int:
        """Return how many numbers of state a row of `dim` elements has."""

    def initialise(self, state: torch.Tensor) -> None:
        """Set the states (n, state_width) of rows that no step has used yet."""
        state.zero_()

    @abstractmethod
    def update(self, rows: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        """Update rows (n, dim) and their states (n, state_width) in place by gradients (n, dim); steps count from 1."""

    def correct(self, rows: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        """Add to rows and states, in place, what an earlier update has lacked of its gradients (n, dim): the difference
        between an update by them and one by zeros, so that no moment is applied once more."""
        updated, unchanged = ((rows.clone(), state.clone()) for _ in range(2))
        self.update(*updated, gradients, step)
        self.update(*unchanged, torch.zeros_like(gradients), step)
        rows.add_(updated[0].sub_(unchanged[0]))
        state.add_(updated[1].sub_(unchanged[1]))


@dataclass(frozen=True)
class SGD(RowOptimizer):
    """row - lr * gradient."""

    def state_width(self, dim: int) -> int:
        return 0

    def update(self, rows: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        rows.sub_(gradients.mul(self.rate(step)))


@dataclass(frozen=True)
class Adagrad(RowOptimizer):
    """Adagrad (Duchi et al. 2011) with a sum of squares an element, as torch.optim.Adagrad without decay."""

    eps: float = 1e-10
    initial: float = 0.0

    def state_width(self, dim: int) -> int:
        return dim

    def initialise(self, state: torch.Tensor) -> None:
        state.fill_(self.initial)

    def update(self, rows: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        state.add_(gradients.mul(gradients))
        rows.sub_(gradients.mul(self.rate(step)).div_(state.sqrt().add_(self.eps)))


@dataclass(frozen=True)
class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one sum a row, of the means of squares (Mudigere et al. 2022): a row's state is one number."""

    eps: float = 1e-8
    initial: float = 0.0

    def state_width(self, dim: int) -> int:
        return 1

    def initialise(self, state: torch.Tensor) -> None:
        state.fill_(self.initial)

    def update(self, rows: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        state.add_(_sums(gradients.mul(gradients)).div_(gradients.shape[1]))
        rows.sub_(gradients.mul(self.rate(step)).div_(state.sqrt().add_(self.eps)))


@dataclass(frozen=True)
class Adam(RowOptimizer):
    """Adam (Kingma and Ba 2015) on rows that a step uses, as torch.optim.SparseAdam: other rows' moments stay as they
    are, and the correction of bias counts all steps."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas = {self.betas} of an embedding's Adam must be at least 0 and below 1")

    def state_width(self, dim: int) -> int:
        return 2 * dim

    def update(self, rows: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        first, second = state.chunk(2, dim=1)
        first.mul_(self.betas[0]).add_(gradients.mul(1 - self.betas[0]))
        second.mul_(self.betas[1]).add_(gradients.mul(gradients).mul_(1 - self.betas[1]))
        scale = self.rate(step) * (1 - self.betas[1] ** step) ** 0.5 / (1 - self.betas[0] ** step)
        rows.sub_(first.mul(scale).div_(second.sqrt().add_(self.eps)))


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row (n, 1): by halves, since the order in which torch adds depends on how many rows there
    are."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        folded = rows[:, :half] + rows[:, half : 2 * half]
        if rows.shape[1] % 2:
            folded[:, :1] += rows[:, -1:]
        rows = folded
    return rows
