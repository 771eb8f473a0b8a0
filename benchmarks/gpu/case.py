"""A kernel that is timed, and its inputs: two sets that take turns, so that none is in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from benchmarks.gpu.cub import CubTopk
from hvd_compress import native

Run = Callable[[int], object]
"""Takes 0 or 1: which set of inputs."""
FP32 = 4


@dataclass(frozen=True)
class Case:
    """A kernel on inputs that take turns.

    Attributes:
        numel: elements of the gradient.
        nbytes: what it must read and write at least, all results included.
        run, torch, cub: the kernel, and its peers; None where there is none.
    """

    numel: int
    nbytes: float
    run: Run
    torch: Run
    cub: Run | None = None


class Data:
    """Inputs of one size, made when a case asks for them."""

    def __init__(self, numel: int, device: torch.device, cub: CubTopk | None) -> None:
        self.numel, self.device, self.cub = numel, device, cub

    @cached_property
    def grads(self) -> list[torch.Tensor]:
        return [torch.randn(self.numel, device=self.device) for _ in range(2)]

    @cached_property
    def residuals(self) -> list[torch.Tensor]:
        return [torch.randn(self.numel, device=self.device) for _ in range(2)]

    def renew(self) -> None:
        """Forget what cases have left in residuals: it grows with each, to NaN at last."""
        vars(self).pop("residuals", None)

    @cached_property
    def outs(self) -> list[torch.Tensor]:
        return [torch.zeros(self.numel, device=self.device) for _ in range(2)]

    def k(self, ratio: float) -> int:
        return max(1, int(ratio * self.numel))

    def lists(self, count: int, ratio: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return entries of several ranks: ascending indices, and values."""
        return [native.topk(self.grads[0].roll(101 * rank), self.k(ratio)) for rank in range(count)]

    def sources(self, count: int, form: native.BlockFormat) -> list[native.BlockCodes]:
        """Return codes of several ranks."""
        return [native.block_quantize(self.grads[0].roll(101 * rank), None, form) for rank in range(count)]


Cases = dict[str, Callable[[], Case]]
"""By name, what makes a case."""
