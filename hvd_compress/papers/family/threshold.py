"""Threshold: send the elements whose magnitude reaches a given one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_number
from hvd_compress.compressors.base import Round
from hvd_compress.compressors.sparsifier import Selected, Sparsifier


@dataclass(frozen=True)
class Threshold(Sparsifier):
    """Hard threshold with error feedback (Strom 2015; Dutta et al. 2020, "On the Discrepancy between the Theoretical
    Analysis and Practical Implementations of Compressed Communication"; Sahu et al. 2021).

    How many elements that is, none or all, is up to the data, and differs from rank to rank. On a GPU the host waits
    for it.

    Attributes:
        tau: the least magnitude that is sent, in units of the gradient, more than 0.
    """

    tau: float
    source = "Strom 2015"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("tau", self.tau, 0, above=True)

    def select(self, x: torch.Tensor) -> Selected:
        return native.threshold_select(x, self.tau)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """8 bytes a kept element, or fewer (SparseCoding); all may be kept."""
        return (Round(self.coding.most_bytes(layout.numel, layout.numel), fixed=False),)
