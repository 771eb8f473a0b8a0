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
    """How much of ||x||^2 the k elements of largest magnitude hold, for every k.

    Attributes:
        counts: (m + 1,) int64, ascending from 0: how many elements the largest bins of magnitudes hold together; of
            more than 2^20 elements an estimate, but for the largest.
        shares: (m + 1,) float64, ascending from 0 to 1: their share of ||x||^2; NaN where x is not finite.
    """

    counts: torch.Tensor
    shares: torch.Tensor

    def gain(self, k: torch.Tensor | Sequence[int] | int) -> torch.Tensor:
        """Return the share of ||x||^2 that the k largest magnitudes hold, float64, in the shape of k.

        Within 1 % of the exact value: 256 bins lie between a magnitude and its double, and within one the share grows
        in proportion to the number of elements. 1 where all of x is zero.

        Args:
            k: whole numbers; what lies outside 0..n counts as the nearer end. Raises ConfigError for a ratio.
        """
        if torch.as_tensor(k).is_floating_point():
            raise ConfigError(f"k = {k} is not a number of elements; for a ratio pass int(ratio * numel)")
        at = torch.as_tensor(k, dtype=torch.int64).clamp(0, int(self.counts[-1]))
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
    shift = compiled.CURVE_SHIFT
    counts = torch.empty(1 << (31 - shift), dtype=torch.int64, device=x.device)
    on(x).magnitude_counts(x.data_ptr(), CODES[x.dtype], x.numel(), counts.data_ptr(), *memory(workspace))
    used = counts.nonzero().flip(0).reshape(-1)
    # A bin holds the magnitudes from one edge to the next; if they are spread evenly, this is their mean square.
    edges = torch.stack([used << shift, (used + 1) << shift]).int().view(torch.float32).double()
    edges[1] = torch.where(edges[0].isfinite(), edges[1].clamp(max=torch.finfo(torch.float32).max), edges[1])
    squares = (edges[0].square() + edges[0] * edges[1] + edges[1].square()) / 3.0
    squares[used == 0] = 0.0
    mass = torch.cumsum(squares * counts[used], 0)
    zero = torch.zeros(1, dtype=torch.int64, device=x.device)
    if not used.numel() or mass[-1] == 0:  # of nothing, any one element holds all
        one = torch.ones(1, dtype=torch.int64, device=x.device)
        return GainCurve(torch.cat([zero, one]), torch.cat([zero, one]).double())
    return GainCurve(torch.cat([zero, torch.cumsum(counts[used], 0)]), torch.cat([zero.double(), mass / mass[-1]]))
