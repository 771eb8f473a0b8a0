"""MSTopk: send k elements above thresholds that bisection finds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.checks import check_whole
from hvd_compress.compressors.sparsifier import FixedRatio, Selected, kept_of


@dataclass(frozen=True)
class MSTopK(FixedRatio):
    """Approximate top-k with error feedback (Shi et al. 2021, "Towards Scalable Distributed Training of Deep Learning
    on Public Cloud Clusters", Algorithm 1).

    All elements are sent whose magnitude reaches a threshold that at most k reach, and of those that reach the next
    lower threshold that was tried as many, in the order of indices, as it takes to make it k.

    Attributes:
        bisections: between the mean and the largest magnitude, 1 to 48; 25 in the paper.
    """

    bisections: int = 25
    source = "Shi et al. 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("bisections", self.bisections, 1, native.MSTOPK_ROUNDS)

    def select(self, x: torch.Tensor) -> Selected:
        return native.mstopk(x, kept_of(self.ratio, x.numel()), self.bisections)

    def select_feedback(self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> Selected:
        k = kept_of(self.ratio, gradient.numel())
        return native.mstopk_accumulate(gradient, residual, k, self.bisections, out=pending)
