"""The elements of largest magnitude: k of them, or all from some magnitude on."""

from __future__ import annotations

import math

import torch

from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.native.checks import check_tensor, checked_float, checked_int, checked_k, feedback_out, outputs
from hvd_compress.native.module import CODES, fed, memory, on, prepare, scratch


def topk(x: torch.Tensor, k: int, into: tuple[torch.Tensor, ...] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k elements of largest magnitude, exactly and deterministically: equal ones by the lower index.

    Inf is larger than every finite value, NaN is larger than Inf, and all NaN are equal; so k >= 1 shows whether x has
    an element that is not finite.

    Args:
        x: (n,) fp32, fp16 or bf16.
        k: 0 <= k <= n.
        into: what to return, where the caller keeps memory for it; else it is made anew.

    Returns:
        indices (k,) int32, ascending, and values (k,) of x's dtype.
    """
    check_tensor("x", x)
    k = checked_k(k, x.numel())
    indices, values = outputs(into, (x,), indices=(k, torch.int32), values=(k, x.dtype))
    workspace = prepare(on(x).topk_workspace_bytes(x.numel(), k), x)
    on(x).topk(
        x.data_ptr(),
        CODES[x.dtype],
        x.numel(),
        k,
        indices.data_ptr(),
        values.data_ptr(),
        *memory(workspace),
    )
    return indices, values


def topk_accumulate(
    grad: torch.Tensor,
    residual: torch.Tensor,
    k: int,
    out: torch.Tensor | None = None,
    into: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the k largest of corrected = residual + grad as topk() does; `out` is corrected with those entries 0.

    values and out together are corrected, exactly and in every dtype.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        k: 0 <= k <= n.
        out: (n,) of the residual's dtype; the residual itself if None.
        into: what to return, where the caller keeps memory for it; else it is made anew.

    Returns:
        indices (k,) int32, ascending, and values (k,) fp32.
    """
    out = feedback_out(grad, residual, out)
    k = checked_k(k, out.numel())
    indices, values = outputs(into, (out, grad, residual), indices=(k, torch.int32), values=(k, torch.float32))
    workspace = prepare(on(out).topk_workspace_bytes(out.numel(), k), out)
    on(out).topk_accumulate(
        *fed(grad, residual, out),
        k,
        indices.data_ptr(),
        values.data_ptr(),
        *memory(workspace),
    )
    return indices, values


MSTOPK_ROUNDS = 48
"""So many leave the middle of the middles exact in fp64."""


def mstopk(x: torch.Tensor, k: int, rounds: int = 25) -> tuple[torch.Tensor, torch.Tensor]:
    """Select k elements of x by bisection: all that reach a threshold which at most k reach, and the rest from those
    that reach the next lower threshold that was tried.

    MSTopk (Shi et al. 2021, "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
    Algorithm 1). The paper counts all elements once a round. On CUDA seven rounds are counted in one pass, for all
    thresholds that they may come to; on the CPU those elements that can reach any threshold that matters are collected
    once, and all rounds are counted on them. The paper takes the rest from a random place; here it is taken in the
    order of indices. Both devices select the same.

    Args:
        x: (n,) fp32, fp16 or bf16. If it is not finite, the selection is that of topk().
        k: 0 <= k <= n.
        rounds: of bisection between the mean and the maximum of |x|, 1 to 48.

    Returns:
        indices (k,) int32, ascending, and values (k,) of x's dtype.
    """
    check_tensor("x", x)
    k, rounds = checked_k(k, x.numel()), checked_int("rounds", rounds, 1, MSTOPK_ROUNDS)
    indices, values = outputs(None, (x,), indices=(k, torch.int32), values=(k, x.dtype))
    workspace = prepare(on(x).mstopk_workspace_bytes(x.numel(), k), x)
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


def threshold_select(x: torch.Tensor, tau: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all elements of magnitude tau or more; NaN are among them whatever tau is.

    How many there are is up to the data, so that the host waits for a GPU here, and no CUDA graph can hold it.

    Args:
        x: (n,) fp32, fp16 or bf16.
        tau: compared in fp32; inf is allowed, NaN is not.

    Returns:
        indices (k,) int32, ascending, and values (k,) of x's dtype.
    """
    check_tensor("x", x)
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError("no CUDA graph can hold threshold_select: the size of its result is not known before")
    tau = checked_float("tau", tau)
    if math.isnan(tau):
        raise ConfigError("tau is NaN, to which nothing compares")
    arguments = (x.data_ptr(), CODES[x.dtype], x.numel(), tau)
    workspace = prepare(on(x).threshold_workspace_bytes(x.numel()), x)
    on_cpu = workspace.device.type == "cpu"
    if on_cpu:  # not for others, who may run before the second call
        scratch.workspace = torch.empty(0, dtype=torch.uint8, device="cpu")
    k = int(on(x).threshold_count(*arguments, *memory(workspace)))
    indices, values = outputs(None, (x,), indices=(k, torch.int32), values=(k, x.dtype))
    on(x).threshold_select(*arguments, k, indices.data_ptr(), values.data_ptr(), *memory(workspace))
    if on_cpu:
        scratch.workspace = workspace
    return indices, values
