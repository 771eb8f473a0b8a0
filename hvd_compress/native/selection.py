"""The elements of largest magnitude: k of them, or all from some magnitude on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.native.checks import (
    check_apart,
    check_tensor,
    checked_float,
    checked_int,
    checked_k,
    feedback_out,
    outputs,
    written,
)
from hvd_compress.native.faults import is_capturing
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
    thresholds that they may come to; on the CPU every round is decided by the element of rank k + 1, which is found as
    in topk(), in the pass that takes the mean. The paper takes the rest from a random place; here it is taken in the
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


def mstopk_accumulate(
    grad: torch.Tensor, residual: torch.Tensor, k: int, rounds: int = 25, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select in corrected = residual + grad as mstopk() does; `out` is corrected with those entries 0.

    values and out together are corrected, exactly and in every dtype.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        k: 0 <= k <= n.
        rounds: as in mstopk().
        out: (n,) of the residual's dtype; the residual itself if None.

    Returns:
        indices (k,) int32, ascending, and values (k,) fp32.
    """
    out = feedback_out(grad, residual, out)
    k, rounds = checked_k(k, out.numel()), checked_int("rounds", rounds, 1, MSTOPK_ROUNDS)
    indices, values = outputs(None, (out,), indices=(k, torch.int32), values=(k, torch.float32))
    workspace = prepare(on(out).mstopk_workspace_bytes(out.numel(), k), out)
    on(out).mstopk_accumulate(
        *fed(grad, residual, out),
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
    arguments = (x.data_ptr(), CODES[x.dtype], x.numel(), _checked_tau("threshold_select", tau, x))
    with _own_workspace(x) as workspace:
        k = int(on(x).threshold_count(*arguments, *memory(workspace)))
        indices, values = outputs(None, (x,), indices=(k, torch.int32), values=(k, x.dtype))
        on(x).threshold_select(*arguments, k, indices.data_ptr(), values.data_ptr(), *memory(workspace))
    return indices, values


class Momentum(NamedTuple):
    """A velocity that follows gradients: out = factor * velocity + gradient, as in SGD with momentum.

    Attributes:
        factor: rounded to fp32.
        velocity: (n,) fp32; as it is.
        out: (n,) fp32, receives its successor.
    """

    factor: float
    velocity: torch.Tensor
    out: torch.Tensor


def threshold_accumulate(
    grad: torch.Tensor, residual: torch.Tensor, tau: float, out: torch.Tensor, momentum: Momentum | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select in corrected = residual + grad as threshold_select() does; `out` is corrected with those elements 0.

    With momentum, corrected = residual + momentum.out, and that is 0 at the same elements: DGC's step (Lin et al. 2018,
    Algorithm 4) in one pass over memory. Each product and sum is rounded to fp32.

    The host waits for a GPU, as in threshold_select().

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32.
        tau: compared in fp32; inf is allowed, NaN is not.
        out: (n,) fp32; overlaps neither an input nor momentum.out, which may not do so either.

    Returns:
        indices (k,) int32, ascending, and values (k,) fp32.
    """
    inputs = _accumulated(grad, residual, out, momentum)
    tau = _checked_tau("threshold_accumulate", tau, grad)
    n, velocity_out = grad.numel(), 0 if momentum is None else momentum.out.data_ptr()
    factor, velocity = (0.0, 0) if momentum is None else (momentum.factor, momentum.velocity.data_ptr())
    with _own_workspace(out) as workspace:
        fed_in = (grad.data_ptr(), CODES[grad.dtype], residual.data_ptr(), factor, velocity, velocity_out)
        k = int(on(out).threshold_accumulate(*fed_in, out.data_ptr(), n, tau, *memory(workspace)))
        indices, values = outputs(None, inputs, indices=(k, torch.int32), values=(k, torch.float32))
        found = (k, indices.data_ptr(), values.data_ptr())
        on(out).threshold_take(out.data_ptr(), velocity_out, n, tau, *found, *memory(workspace))
    return indices, values


def _accumulated(
    grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, momentum: Momentum | None
) -> tuple[torch.Tensor, ...]:
    """Check what threshold_accumulate() reads and writes; return what it reads."""
    check_tensor("grad", grad)
    inputs, written_to = {"grad": grad, "residual": residual}, {"out": out}
    if momentum is not None:
        checked_float("momentum.factor", momentum.factor)
        inputs["momentum.velocity"], written_to["momentum.out"] = momentum.velocity, momentum.out
    for name, tensor in (*list(inputs.items())[1:], *written_to.items()):
        check_tensor(name, tensor, (torch.float32,))
        if tensor.numel() != grad.numel():
            raise ConfigError(f"{name} has {tensor.numel()} elements, grad has {grad.numel()}")
    for name, tensor in written_to.items():
        for other_name, other in (*inputs.items(), *written_to.items()):
            if other_name != name:
                check_apart(other_name, other, name, tensor)
    for name, tensor in written_to.items():
        written(name, tensor)
    return tuple(inputs.values())


def _checked_tau(name: str, tau: float, x: torch.Tensor) -> float:
    if x.is_cuda and is_capturing(x.device):
        raise UnsupportedError(f"no CUDA graph can hold {name}: the size of its result is not known before")
    tau = checked_float("tau", tau)
    if math.isnan(tau):
        raise ConfigError("tau is NaN, to which nothing compares")
    return tau


@contextmanager
def _own_workspace(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Scratch memory of threshold kernels where x lies, for two calls, and not for others who may run in between."""
    workspace = prepare(on(x).threshold_workspace_bytes(x.numel()), x)
    on_cpu = workspace.device.type == "cpu"
    if on_cpu:
        scratch.workspace = torch.empty(0, dtype=torch.uint8, device="cpu")
    yield workspace
    if on_cpu:
        scratch.workspace = workspace
