"""Where the rows of tables live: each owner has a shard of them, in memory or in a file that it maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hvd_compress.embedding.layout import Layout
from hvd_compress.errors import ConfigError


class Shard:
    """The rows r of all tables with r % owners == number, as records: a row, the state of its optimizer, and in debug
    mode the step that has changed it last.

    A row gets its initial value when it is used first: it depends on nothing but the seed and its id. So a file has
    memory and disk for those rows alone that were used.

    Attributes:
        records: float32 (rows, layout.record_width). Of rows that were never used they are zeros.
    """

    def __init__(self, layout: Layout, number: int, owners: int, folder: Path | None = None) -> None:
        """`folder`: where the shard's file is made, or found if there is one; None: memory.

        Raises:
            ConfigError: the file is of other tables, or cannot be made.
        """
        self.layout, self.number, self.owners = layout, number, owners
        self.rows = max(0, -(-(layout.rows - number) // owners))
        if folder is None:
            self.records = torch.zeros(self.rows, layout.record_width)
            self.used = torch.zeros(self.rows, dtype=torch.bool)
        else:
            name = f"{layout.name}.{number + 1}-of-{owners}"
            self.records = _mapped(folder / f"{name}.rows", (self.rows, layout.record_width), torch.float32)
            self.used = _mapped(folder / f"{name}.used", (self.rows,), torch.bool)

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of the records of these rows, by their numbers within the shard, int64 (n,)."""
        self._initialise(rows)
        return self.records.index_select(0, rows)

    def write(self, rows: torch.Tensor, records: torch.Tensor) -> None:
        """Take records (n, record_width) that another rank has updated."""
        if rows.numel():
            self.records.index_copy_(0, rows, records)
            self.used[rows] = True

    def update(self, rows: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        """Update distinct rows by gradients (n, dim) of a step."""
        if rows.numel():
            records = self.read(rows)
            self.layout.update(records, gradients, step)
            self.records.index_copy_(0, rows, records)

    def _initialise(self, rows: torch.Tensor) -> None:
        fresh = rows[~self.used[rows]]
        if fresh.numel():
            records = torch.zeros(fresh.numel(), self.layout.record_width)
            self.layout.initialise(records, fresh * self.owners + self.number)
            self.records.index_copy_(0, fresh, records)
            self.used[fresh] = True


def _mapped(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    numel = int(np.prod(shape))
    size_bytes = numel * dtype.itemsize
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size != size_bytes:
            raise ConfigError(
                f"{path} has {path.stat().st_size} bytes where this table's shard has {size_bytes}: it is of other "
                "tables, or of another number of owners; name another folder, or remove it"
            )
        if numel == 0:
            return torch.zeros(shape, dtype=dtype)
        return torch.from_file(str(path), shared=True, size=numel, dtype=dtype).view(shape)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"cannot map {path}, {size_bytes} bytes of a table: {error}") from error
