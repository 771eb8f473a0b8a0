"""How many clusters a layer has: the error against their number, and where it has come to rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch

from hvd_compress.attention.kmeans import k_means, squared_distances
from hvd_compress.attention.shares import cache_share, require_share

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
    """Return the number of clusters from which on the error is flat: min{k : E(k) / E(1) <= plateau}.

    All clusters beyond it together take away at most the share `plateau` of the error. With plateau = 0 there are as
    many clusters as different heads, with plateau = 1 there is one.

    Args:
        errors: E(1) .. E(H), which does not increase and ends with 0.
    """
    return next(k for k, left in enumerate(errors_left(errors), 1) if left <= plateau)


def errors_left(errors: Sequence[float]) -> tuple[float, ...]:
    """Return E(k) / E(1), k = 1 .. H; 0 where all heads are equal."""
    return tuple(error / errors[0] if errors[0] else 0.0 for error in errors)


def plateau_of_share(curves: Sequence[Sequence[float]], key_heads: int, share: float) -> float:
    """Return the smallest plateau, the same in all layers, whose clusters leave at most a share of the cache.

    Args:
        curves: for each layer E(1) .. E(H).
        key_heads: heads of keys of a layer (G), which is H where heads share none.
        share: of the cache's bytes, as shares.cache_share has it.

    Raises:
        ConfigError: the share is out of reach, or none.
    """
    require_share(share, key_heads)
    candidates = sorted({0.0, *(left for errors in curves for left in errors_left(errors))})
    found = bisect_left(
        candidates, True, key=lambda plateau: cache_share([elbow(each, plateau) for each in curves], key_heads) <= share
    )
    return candidates[found]  # the last one leaves one cluster, and the least share
