"""MSTopk: the threshold of the k largest by bisection, as a GPU without a good sort would do it."""

from __future__ import annotations

import numpy as np
import torch

from hvd_compress import native
from hvd_compress.errors import ConfigError


def mstopk(x: torch.Tensor, k: int, rounds: int = 25) -> tuple[torch.Tensor, torch.Tensor]:
    """Select k elements of x by bisection: all that reach a threshold which at most k reach, and the rest from those
    that reach the next lower threshold that was tried.

    MSTopk (Shi et al. 2021, "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
    Algorithm 1). The paper counts all elements once a round. Here those that can reach any threshold that matters are
    collected once and sorted, and all rounds are counted on them. The paper takes the rest from a random place; here it
    is taken in the order of indices.

    Args:
        x: (n,) fp32, fp16 or bf16. If it is not finite, the selection is that of native.topk.
        k: 0 <= k <= n.
        rounds: of bisection between the mean and the maximum of |x|.

    Returns:
        indices (k,) int32, ascending, and values (k,) of x's dtype.

    Raises:
        ConfigError: rounds is not positive, or as native.topk.
    """
    if rounds < 1:
        raise ConfigError(f"rounds = {rounds} must be 1 or more")
    if not 0 < k < x.numel():
        return native.topk(x, k)  # all, nothing, or refused
    candidates, values = native.topk(x, min(x.numel(), k + k // 4 + 64))
    magnitudes = values.float().abs().double().sort().values
    if not bool(magnitudes[-1].isfinite()):
        return native.topk(x, k)
    mean = float(np.abs(x.float().numpy()).mean(dtype=np.float64))  # not by torch, whose sums depend on its threads
    upper, lower = _bisect(magnitudes, k, mean, rounds)
    chosen = values.float().abs().double() >= upper
    sure = candidates[chosen]
    if lower < magnitudes[0]:  # beyond the candidates
        candidates, values = native.threshold_select(x, lower)
        chosen = values.float().abs().double() >= upper
    rest = candidates[~chosen & (values.float().abs().double() >= lower)][: k - sure.numel()]
    indices = torch.cat([sure, rest]).sort().values
    return indices, native.gather(x, indices)


def _bisect(magnitudes: torch.Tensor, k: int, mean: float, rounds: int) -> tuple[float, float]:
    """Return the lowest threshold tried that at most k reach (inf if none), and the highest that more than k reach."""
    top = float(magnitudes[-1])
    low, high = 0.0, 1.0
    upper, lower = float("inf"), 0.0
    for _ in range(rounds):
        middle = low + (high - low) / 2
        threshold = mean + middle * (top - mean)
        reached = magnitudes.numel() - int(torch.searchsorted(magnitudes, threshold))
        if reached <= k:
            high, upper = middle, threshold
        else:
            low, lower = middle, threshold
    return upper, lower
