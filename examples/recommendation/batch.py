"""What all sources of click data give."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Batch(NamedTuple):
    """Examples.

    Attributes:
        labels: float32 (batch,), 1 for a click; NaN where the data has none.
        dense: numerical features, float32 (batch, numerical).
        ids: of categorical features, int64 (batch, features): a row in the table of each.
    """

    labels: torch.Tensor
    dense: torch.Tensor
    ids: torch.Tensor
