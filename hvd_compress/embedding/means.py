"""Means over ranks of gradients of rows: added in the order of ranks, from zero on."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def sums_of_rows(rows: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return distinct rows (n,), ascending, and the sums of their gradients (n, dim), added in rank order. Each rank
    gives its own rows and gradients."""
    distinct, places = torch.unique(torch.cat(list(rows)), return_inverse=True)
    sums = torch.zeros(distinct.numel(), gradients[0].shape[1])
    for at, block in zip(torch.split(places, [each.numel() for each in rows]), gradients, strict=True):
        sums.index_add_(0, at, block)
    return distinct, sums


def mean_of_one(gradients: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the means of gradients (n, dim) that one of the ranks alone has; -0 added to zero is 0."""
    return gradients.add(0.0).div_(ranks)
