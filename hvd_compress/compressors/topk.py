"""Top-k: send the k elements of largest magnitude, with their indices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.compressors.sparsifier import FixedRatio, Selected, kept_of


@dataclass(frozen=True)
class TopK(FixedRatio):
    """Exact top-k with error feedback (Aji and Heafield 2017; Lin et al. 2018); LWTopk where it is layerwise."""

    source = "Aji and Heafield 2017"

    def select(self, x: torch.Tensor) -> Selected:
        return native.topk(x, kept_of(self.ratio, x.numel()))

    def select_feedback(self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor) -> Selected:
        return native.topk_accumulate(gradient, residual, kept_of(self.ratio, gradient.numel()), out=pending)
