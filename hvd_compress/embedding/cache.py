"""The rows that a rank trains on: slots in one tensor, which the planner assigns."""

from __future__ import annotations

import torch

from hvd_compress.embedding.layout import Layout
from hvd_compress.errors import CommunicationError


class Cache:
    """Slots for records. It takes no lock, as the planner keeps threads on different slots: during a step the training
    thread reads those of its batch, and the threads of the two lanes write to those of the next one and of later ones.

    Attributes:
        records: float32 (cache_rows, layout.record_width). The states in slots of rows that owners update are unused.
    """

    def __init__(self, layout: Layout, cache_rows: int) -> None:
        self.layout = layout
        self.records = torch.zeros(cache_rows, layout.record_width)

    def rows(self, slots: torch.Tensor) -> torch.Tensor:
        """Return a copy of rows (n, dim)."""
        return self.layout.row(self.records).index_select(0, slots)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return a copy of records (n, record_width)."""
        return self.records.index_select(0, slots)

    def write(self, slots: torch.Tensor, records: torch.Tensor) -> None:
        self.records.index_copy_(0, slots, records)

    def write_rows(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Take rows (n, row_width) without states."""
        self.records[:, : self.layout.row_width].index_copy_(0, slots, rows)

    def update(self, slots: torch.Tensor, gradients: torch.Tensor, step: int) -> torch.Tensor:
        """Update rows that no other rank uses, and return their records."""
        records = self.read(slots)
        if slots.numel():
            self.layout.update(records, gradients, step)
            self.write(slots, records)
        return records


class Versions:
    """The debug mode's check: no row is read as it was before its last update.

    It remembers the last step that used each row, on any rank, as all ranks' batches say.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def check(self, layout: Layout, rows: torch.Tensor, versions: torch.Tensor, step: int) -> None:
        """Raise CommunicationError, an error of this package, unless these rows of a batch are as the last step that
        used each has left them."""
        for row, version in zip(rows.tolist(), versions.tolist(), strict=True):
            expected = self._last.get(row, 0)
            if int(version) != expected:
                raise CommunicationError(
                    f"step {step}: row {row} of {layout.name} is as step {int(version) - 1} has left it, and step "
                    f"{expected - 1} changed it: please report this as a defect of hvd_compress"
                )

    def forget(self) -> None:
        """Rows were loaded: they are as no step of this program has changed them."""
        self._last.clear()

    def used(self, rows: torch.Tensor, step: int) -> None:
        self._last.update(dict.fromkeys(rows.tolist(), step + 1))
