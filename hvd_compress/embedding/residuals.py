"""Error feedback by row: what compression loses of a rank's gradients of a row is added to its next one of that row.

(Seide et al. 2014; Karimireddy et al. 2019.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.embedding.layout import Layout
from hvd_compress.embedding.means import sums_of_rows
from hvd_compress.embedding.precision import Precision
from hvd_compress.embedding.shard import Shard
from hvd_compress.engines.base import Engine


class Residuals:
    """This rank's residuals, by slot of its cache.

    A rank has a residual of a row only while it is among the next users of that row. Until then the row keeps its slot
    (finish() in csrc/embedding/lookahead.cpp), and so does the residual. All other residuals are zero.
    """

    def __init__(self, precision: Precision, dim: int, cache_rows: int) -> None:
        self.precision = precision
        self._values = torch.zeros(cache_rows, dim)
        self._rows = torch.zeros(cache_rows, dtype=torch.int64)

    def take(self, gradients: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return gradients (n, dim) of a batch's rows (n,) with their residuals in slots (n,), which are zero then."""
        self._rows[slots] = rows
        total = self._values.index_select(0, slots).add_(gradients)
        self._values.index_fill_(0, slots, 0.0)
        return total

    def encode(self, gradients: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Encode gradients (n, dim) of the rows in slots (n,), and keep what is lost of them.

        Nothing is kept of elements that are not finite, or that arrive as such.
        """
        words = self.precision.encode(gradients)
        lost = gradients - self.precision.decode(words, gradients.shape[1])
        self._values.index_copy_(0, slots, torch.where(lost.isfinite(), lost, 0.0))
        return words

    def collect(self, engine: Engine, owners: Sequence[int], trainers: int) -> HeldBack:
        """Send all residuals to the owners of their rows, and return what this one gets. Collective; no residual
        changes."""
        slots = self._values.any(dim=1).nonzero().flatten()
        rows, values = self._rows[slots], self._values[slots]
        ids, parts = [rows[:0]] * engine.world_size, [values[:0].reshape(-1)] * engine.world_size
        for number, owner in enumerate(owners):
            places = (rows % len(owners) == number).nonzero().flatten()
            ids[owner], parts[owner] = rows[places] // len(owners), values[places].reshape(-1)
        dim = self._values.shape[1]
        of_each = engine.alltoall(ids)
        blocks = engine.alltoall(parts, [each.numel() * dim for each in of_each])
        distinct, sums = sums_of_rows(of_each, [block.view(-1, dim) for block in blocks])
        return HeldBack(distinct, sums.div_(trainers))


@dataclass(frozen=True)
class HeldBack:
    """What an owner's rows lack of the gradients of all steps so far.

    Attributes:
        rows: of the owner's shard, distinct, ascending, int64 (n,).
        gradients: means over ranks, float32 (n, dim).
    """

    rows: torch.Tensor
    gradients: torch.Tensor

    def apply(self, shard: Shard, steps: int) -> None:
        """Update the shard, behind `steps` steps."""
        if self.rows.numel():
            layout, records = shard.layout, shard.read(self.rows)
            layout.optimizer.correct(layout.row(records), layout.state(records), self.gradients, steps)
            shard.write(self.rows, records)

    def apply_to_state(self, state: dict[str, Any], layout: Layout) -> None:
        """Update what state_of() gave, and not the shard."""
        places = torch.searchsorted(state["rows"], self.rows * state["owners"] + state["number"])
        values, states = state["values"][places], state["states"][places]
        layout.optimizer.correct(values, states, self.gradients, state["steps"])
        state["values"][places], state["states"][places] = values, states
