"""The ranks of a job, whatever launched it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import click
import torch


@dataclass(frozen=True)
class Ranks:
    """Which rank this is, of how many, in the job and on this machine.

    Attributes:
        sum: returns the sum of a tensor over the ranks; collective.
        launch: the command line before the script that starts four of them.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    sum: Callable[[torch.Tensor], torch.Tensor]
    launch: str

    def say(self, text: str) -> None:
        """Print on rank 0 only."""
        if self.rank == 0:
            click.echo(text)

    def mean(self, figures: dict[str, float]) -> dict[str, float]:
        """Average each figure over the ranks."""
        values = torch.tensor(list(figures.values()), dtype=torch.float64)
        return dict(zip(figures, (self.sum(values) / self.size).tolist(), strict=True))

    def share_cores(self) -> None:
        """Divide this machine's cores among its ranks, unless OMP_NUM_THREADS says how many threads each gets."""
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self.local_size))

    def device(self, choice: str) -> str:
        """Return where this rank trains: "auto" takes a GPU where there is one. Ranks of a machine take them in turn.

        Raises:
            click.UsageError: a GPU was asked for, and torch sees none.
        """
        if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
            return "cpu"
        if not torch.cuda.is_available():
            raise click.UsageError("--device cuda: torch sees no GPU here; use --device cpu")
        return f"cuda:{self.local_rank % torch.cuda.device_count()}"
