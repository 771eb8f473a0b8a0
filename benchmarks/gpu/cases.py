"""What is timed, those that training needs most first, and what it may take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu.case import FP32, Case, Cases, Data
from benchmarks.gpu.cases_of_indices import at_indices, codes, scatters
from benchmarks.gpu.cases_of_rounding import blocks, numbers, signs
from benchmarks.gpu.cases_of_selection import selections, thresholds
from benchmarks.gpu.cub import CubTopk
from benchmarks.gpu.scales import Scale
from hvd_compress import native
from hvd_compress.bench import peers

BOUNDS_MS = {
    "topk_accumulate, ratio 0.01": 0.45,
    "sign_accumulate_kept": 0.36,
    "scatter_lists of 8 onto zeros": 0.16,
    "gain_curve": 0.20,
}
"""What kernels may take on an H200 for 100 M elements."""
TIMES_TORCH = {"topk_accumulate, ratio 0.01": 15.0}
"""The least speed of a kernel in units of that of torch's operations, on any GPU."""


def cases(scale: Scale, device: torch.device, cub: CubTopk | None) -> Cases:
    """Return what makes each case, by its name."""
    large, bucket = Data(scale.numel, device, cub), Data(scale.bucket, device, cub)
    made: Cases = {
        **selections(large, bucket),
        **signs(large),
        **scatters(large),
        **_whole_passes(large),
        **blocks(large),
        **numbers(large),
        **thresholds(large),
        **at_indices(large),
        **codes(large),
    }

    def renewed(make: Callable[[], Case]) -> Case:
        large.renew()
        bucket.renew()
        return make()

    return {name: partial(renewed, make) for name, make in made.items()}


def _whole_passes(data: Data) -> Cases:
    n = data.numel
    return {
        "gain_curve": lambda: Case(
            n, FP32 * n, lambda i: native.gain_curve(data.grads[i]), lambda i: peers.gain_curve(data.grads[i])
        ),
        "accumulate": lambda: Case(
            n,
            12 * n,
            lambda i: native.accumulate(data.grads[i], data.residuals[i]),
            lambda i: peers.accumulate(data.grads[i], data.residuals[i]),
        ),
        "accumulate, out apart": lambda: Case(
            n,
            12 * n,
            lambda i: native.accumulate(data.grads[i], data.residuals[i], out=data.outs[i]),
            lambda i: torch.add(data.residuals[i], data.grads[i], out=data.outs[i]),
        ),
        "scale": lambda: Case(
            n, 8 * n, lambda i: native.scale(data.outs[i], 1.0), lambda i: peers.scale(data.outs[i], 1.0)
        ),
    }
