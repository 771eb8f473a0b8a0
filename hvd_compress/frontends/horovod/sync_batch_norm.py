"""Batch normalisation by the mean and variance of what all ranks see."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvd_compress.frontends.horovod.runtime_selection import hvd


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d and 3d over all ranks, whose batches may differ in size (Ioffe and Szegedy 2015).

    On the CPU, too, where torch.nn.SyncBatchNorm is for GPUs alone. Two small allreduces a forward pass in training,
    of sums and of squared deviations (so that large means cost no precision), and two a backward pass.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes at least 2 dimensions, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise `input`, of shape (rows, channels, ...)."""
        self._check_input_dim(input)
        if hvd.size() == 1 or (self.track_running_stats and not self.training):
            alone: torch.Tensor = super().forward(input)
            return alone
        exact = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        others = [dimension for dimension in range(input.dim()) if dimension != 1]
        along = [-1 if dimension == 1 else 1 for dimension in range(input.dim())]
        count = exact.new_tensor([exact.numel() // exact.shape[1]])
        sums: torch.Tensor = hvd.allreduce(torch.cat([exact.sum(others), count]), op=hvd.Sum)
        total = sums[-1].detach()
        mean = sums[:-1] / total
        deviation = exact - mean.view(along)
        variance = hvd.allreduce(deviation.square().sum(others), op=hvd.Sum) / total
        if self.training and self.track_running_stats:
            self._remember(mean.detach(), variance.detach(), total)
        normal = deviation * torch.rsqrt(variance + self.eps).view(along)
        normal = normal if self.weight is None else normal * self.weight.view(along)
        normal = normal if self.bias is None else normal + self.bias.view(along)
        result: torch.Tensor = normal.to(input.dtype)
        return result

    @torch.no_grad()
    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, total: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * total / (total - 1).clamp(min=1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
