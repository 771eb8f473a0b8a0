"""What share of the squared norm the k largest magnitudes hold, for every k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.native.checks import check_tensor
from hvd_compress.native.module import CODES, compiled, memory, on, prepare


@dataclass(frozen=True)
class GainCurve:
    """How much of ||x||^2 the k elements of largest magnitude hold, for every k. Nothing here waits for a GPU.

    Attributes:
        counts: (m + 1,) int64, ascending from 0: how many elements the largest bins of magnitudes hold together; of
            more than 2^20 elements an estimate, but for the largest.
        shares: (m + 1,) float64, ascending from 0 to 1: their share of ||x||^2; NaN from the first element that is not
            finite on.
    """

    counts: torch.Tensor
    shares: torch.Tensor

    def gain(self, k: torch.Tensor | Sequence[int] | int) -> torch.Tensor:
        """Return the share of ||x||^2 that the k largest magnitudes hold, float64, in the shape of k.

        Within 1 % of the exact value: 256 bins lie between a magnitude and its double, and within one the share grows
        in proportion to the number of elements. 1 where all of x is zero.

        Args:
            k: whole numbers; what lies outside 0..n counts as the nearer end. Raises ConfigError for a ratio.

        Returns:
            A tensor where the curve lies.
        """
        if torch.as_tensor(k).is_floating_point():
            raise ConfigError(f"k = {k} is not a number of elements; for a ratio pass int(ratio * numel)")
        at = _indices(k, self.counts.device)
        at = at.clamp(min=0).minimum(self.counts[-1])
        above = torch.searchsorted(self.counts, at).clamp(min=1)
        low, high = self.counts[above - 1], self.counts[above]
        part = (at - low).double() / (high - low).clamp(min=1)
        return torch.lerp(self.shares[above - 1], self.shares[above], part)


def gain_curve(x: torch.Tensor) -> GainCurve:
    """Count magnitudes in one pass; what the k largest of them hold can then be asked for every k.

    Of more than 2^20 elements all the largest are counted, and a quarter of the others.

    Args:
        x: (n,) fp32, fp16 or bf16.
    """
    check_tensor("x", x)
    workspace = prepare(on(x).curve_workspace_bytes(x.numel()), x)
    bins = compiled.CURVE_BINS
    counts = torch.empty(bins + 1, dtype=torch.int64, device=x.device)
    shares = torch.empty(bins + 1, dtype=torch.float64, device=x.device)
    on(x).magnitude_curve(
        x.data_ptr(), CODES[x.dtype], x.numel(), counts.data_ptr(), shares.data_ptr(), *memory(workspace)
    )
    return GainCurve(counts, shares)


def _indices(k: torch.Tensor | Sequence[int] | int, device: torch.device) -> torch.Tensor:
    """Return k as int64 on a device: numbers by launches that fill, as the host would wait for a copy to a GPU."""
    if device.type == "cpu" or isinstance(k, torch.Tensor):
        return torch.as_tensor(k, dtype=torch.int64).to(device, non_blocking=True)
    return _filled(k, device)


def _filled(k: Sequence[int] | int, device: torch.device) -> torch.Tensor:
    if isinstance(k, Sequence):
        whole = torch.empty(len(k), dtype=torch.int64, device=device)
        return torch.stack([_filled(one, device) for one in k]) if k else whole
    return torch.full((), k, dtype=torch.int64, device=device)
