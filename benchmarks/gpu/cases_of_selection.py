"""What is timed of kernels that select: top-k in its ways, MSTopk, and thresholds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu.calls import forced
from benchmarks.gpu.case import FP32, Case, Cases, Data
from hvd_compress import native
from hvd_compress.bench import peers


def selections(large: Data, bucket: Data) -> Cases:
    sizes = {"": large, ", 64 MiB": bucket}
    fed = {
        f"topk_accumulate, ratio {ratio:g}{label}": partial(_topk_accumulate, data, ratio, "auto")
        for label, data in sizes.items()
        for ratio in (0.01, 0.001)
    }
    ways = {
        f"topk_accumulate, {way}, ratio 0.01": partial(_topk_accumulate, large, 0.01, way)
        for way in ("bracket", "radix")
    }
    plain = {f"topk, ratio {ratio:g}": partial(_topk, large, ratio) for ratio in (0.01, 0.001)}
    k = large.k(0.01)
    rounds = {
        "mstopk, ratio 0.01": lambda: Case(
            large.numel,
            FP32 * large.numel + 8 * k,
            lambda i: native.mstopk(large.grads[i], k),
            lambda i: peers.topk(large.grads[i], k),
        ),
        "mstopk_accumulate, ratio 0.01": lambda: Case(
            large.numel,
            12 * large.numel + 8 * k,
            lambda i: native.mstopk_accumulate(large.grads[i], large.residuals[i], k),
            lambda i: peers.topk_accumulate(large.grads[i], large.residuals[i], k),
        ),
    }
    return {**fed, **ways, **plain, **rounds}


def _topk_accumulate(data: Data, ratio: float, way: str) -> Case:
    k, selects = data.k(ratio), _cub_selects(data, data.residuals, ratio)

    def run(i: int) -> None:
        with forced(data.device, way):
            native.topk_accumulate(data.grads[i], data.residuals[i], k)

    def cub(i: int) -> None:
        """What it selects stays: the least that its user would do."""
        data.residuals[i] += data.grads[i]
        selects[i]()

    torch_topk = lambda i: peers.topk_accumulate(data.grads[i], data.residuals[i], k)  # noqa: E731
    return Case(data.numel, 12 * data.numel + 8 * k, run, torch_topk, cub if selects else None)


def _topk(data: Data, ratio: float) -> Case:
    k, selects = data.k(ratio), _cub_selects(data, data.grads, ratio)
    return Case(
        data.numel,
        FP32 * data.numel + 8 * k,
        lambda i: native.topk(data.grads[i], k),
        lambda i: peers.topk(data.grads[i], k),
        (lambda i: selects[i]()) if selects else None,
    )


def _cub_selects(data: Data, inputs: list[torch.Tensor], ratio: float) -> list[Callable[[], None]]:
    return [] if data.cub is None else [data.cub.on(x, data.k(ratio)) for x in inputs]


def thresholds(data: Data) -> Cases:
    """The host waits within them, and its time counts."""
    k = data.k(0.01)

    def select() -> Case:
        tau = _kth_magnitude(data.grads[0], k)
        return Case(
            data.numel,
            FP32 * data.numel + 8 * k,
            lambda i: native.threshold_select(data.grads[i], tau),
            lambda i: peers.threshold_select(data.grads[i], tau),
        )

    def accumulate(with_momentum: bool) -> Case:
        momenta: list[native.Momentum | None] = [None, None]
        added = data.grads[0]
        if with_momentum:
            velocities = [grad.roll(1) for grad in data.grads]
            momenta = [native.Momentum(0.9, velocity, torch.empty_like(velocity)) for velocity in velocities]
            added = added + 0.9 * velocities[0]
        tau = _kth_magnitude(data.residuals[0] + added, k)
        arguments = [(data.grads[i], data.residuals[i], tau, data.outs[i], momenta[i]) for i in range(2)]
        return Case(
            data.numel,
            (20 if with_momentum else 12) * data.numel + 8 * k,
            lambda i: native.threshold_accumulate(*arguments[i]),
            lambda i: peers.threshold_accumulate(*arguments[i]),
        )

    return {
        "threshold_select, ratio 0.01": select,
        "threshold_accumulate, ratio 0.01": partial(accumulate, False),
        "threshold_accumulate with momentum, ratio 0.01": partial(accumulate, True),
    }


def _kth_magnitude(x: torch.Tensor, k: int) -> float:
    return float(native.topk(x, k)[1].abs().min())
