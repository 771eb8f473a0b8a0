"""Which head represents which: by k-means on the scores of a model, or at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_compress.attention.kmeans import k_means, squared_distances

BATCH = 8
"""Windows whose scores are in memory at a time."""


@torch.no_grad()
def score_products(model: Any, windows: torch.Tensor, first: int | None = None) -> torch.Tensor:
    """Return the inner products of the heads' scores over a window, float64 (windows, layers, heads, heads).

    Args:
        windows: int64 (windows, tokens).
        first: only the scores of so many first tokens of each; None: of all.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the one that returns scores
    try:
        return torch.cat([_products(model, part[:, :first]) for part in windows.split(BATCH)])
    finally:
        model.set_attn_implementation(before)


def _products(model: Any, windows: torch.Tensor) -> torch.Tensor:
    scores = model(windows, use_cache=False, output_attentions=True).attentions
    points = (each.flatten(2).double() for each in scores)
    return torch.stack([each @ each.mT for each in points], 1)


def nearest(products: torch.Tensor, clusters: Sequence[int]) -> torch.Tensor:
    """Return the representative of each head, int64 (windows, layers, heads), by k-means on (windows, layers, heads,
    heads), with `clusters` of each layer."""
    distances = squared_distances(products)
    return torch.stack([k_means(distances[:, layer], k).source for layer, k in enumerate(clusters)], 1)


def random_heads(heads: int, clusters: Sequence[int], seed: int) -> torch.Tensor:
    """Return the representative of each head, int64 (layers, heads): as many of each layer, drawn without looking."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for k in clusters:
        representatives = torch.randperm(heads, generator=draw)[:k]
        source = representatives[torch.randint(k, (heads,), generator=draw)]
        source[representatives] = representatives
        found.append(source)
    return torch.stack(found)
