"""MSTopk: the threshold of the k largest by bisection, as a GPU without a good sort would do it."""

from __future__ import annotations

import torch

from hvd_compress.native.checks import check_tensor, checked_int, checked_k, outputs
from hvd_compress.native.module import CODES, memory, on, prepare
from hvd_compress.native.scatter import gather
from hvd_compress.native.selection import threshold_select, topk

MAX_ROUNDS = 48
"""So many leave the middle of the middles exact in fp64."""


def mstopk(x: torch.Tensor, k: int, rounds: int = 25) -> tuple[torch.Tensor, torch.Tensor]:
    """Select k elements of x by bisection: all that reach a threshold which at most k reach, and the rest from those
    that reach the next lower threshold that was tried.

    MSTopk (Shi et al. 2021, "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
    Algorithm 1). The paper counts all elements once a round. On CUDA seven rounds are counted in one pass, for all
    thresholds that they may come to; on the CPU those elements that can reach any threshold that matters are collected
    once and sorted, and all rounds are counted on them. The paper takes the rest from a random place; here it is taken
    in the order of indices. Both devices select the same.

    Args:
        x: (n,) fp32, fp16 or bf16. If it is not finite, the selection is that of topk().
        k: 0 <= k <= n.
        rounds: of bisection between the mean and the maximum of |x|, 1 to 48.

    Returns:
        indices (k,) int32, ascending, and values (k,) of x's dtype.
    """
    check_tensor("x", x)
    k, rounds = checked_k(k, x.numel()), checked_int("rounds", rounds, 1, MAX_ROUNDS)
    if hasattr(on(x), "mstopk"):
        return _by_one_kernel(x, k, rounds)
    if not 0 < k < x.numel():
        return topk(x, k)  # all or nothing
    candidates, values = topk(x, min(x.numel(), k + k // 4 + 64))
    magnitudes = values.float().abs().double().sort().values
    if not bool(magnitudes[-1].isfinite()):
        return topk(x, k)
    workspace = prepare(on(x).mstopk_workspace_bytes(x.numel()), x)
    total = float(on(x).magnitude_sum(x.data_ptr(), CODES[x.dtype], x.numel(), *memory(workspace)))
    upper, lower = _bisect(magnitudes, k, total / x.numel(), rounds)
    chosen = values.float().abs().double() >= upper
    sure = candidates[chosen]
    if lower < magnitudes[0]:  # beyond the candidates
        candidates, values = threshold_select(x, lower)
        chosen = values.float().abs().double() >= upper
    rest = candidates[~chosen & (values.float().abs().double() >= lower)][: k - sure.numel()]
    indices = torch.cat([sure, rest]).sort().values
    return indices, gather(x, indices)


def _by_one_kernel(x: torch.Tensor, k: int, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
    indices, values = outputs(None, (x,), indices=(k, torch.int32), values=(k, x.dtype))
    workspace = prepare(on(x).mstopk_workspace_bytes(x.numel()), x)
    on(x).mstopk(
        x.data_ptr(),
        CODES[x.dtype],
        x.numel(),
        k,
        rounds,
        indices.data_ptr(),
        values.data_ptr(),
        *memory(workspace),
    )
    return indices, values


def _bisect(magnitudes: torch.Tensor, k: int, mean: float, rounds: int) -> tuple[float, float]:
    """Return the lowest threshold tried that at most k reach (inf if none), and the highest that more than k reach."""
    top = float(magnitudes[-1])
    mean = min(mean, top)  # rounded, it may be above
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
