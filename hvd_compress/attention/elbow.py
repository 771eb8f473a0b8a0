"""How many clusters a layer has: the error against their number, and where it has come to rest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_compress.attention.kmeans import k_means, squared_distances

PLATEAU = 0.05
"""The share of the error of one cluster that may be left at the elbow."""
ROUNDING = 1e-12
"""Errors below this share of the sum of all squared scores are rounding."""


def error_curve(products: torch.Tensor) -> tuple[float, ...]:
    """Return E(1) .. E(H): of k clusters, the sum of squared distances of heads to their centres (CHAI, Figure 6.5).

    E is that of k-means, and of fewer clusters where that is smaller: splitting one of them costs nothing.

    Args:
        products: inner products of the heads' scores, float64 (heads, heads).
    """
    distances = squared_distances(products).unsqueeze(0)
    floor = ROUNDING * float(products.diagonal().sum())
    errors: list[float] = []
    for k in range(1, products.shape[0] + 1):
        error = float(k_means(distances, k).error)
        errors.append(min([0.0 if error <= floor else error, *errors[-1:]]))
    return tuple(errors)


def elbow(errors: Sequence[float], plateau: float = PLATEAU) -> int:
    """Return the number of clusters from which on the error is flat: min{k : E(k) <= plateau * E(1)}.

    All clusters beyond it together take away at most the share `plateau` of the error. With plateau = 0 there are as
    many clusters as different heads.

    Args:
        errors: E(1) .. E(H), which does not increase and ends with 0.
    """
    return next(k for k, error in enumerate(errors, 1) if error <= plateau * errors[0])
