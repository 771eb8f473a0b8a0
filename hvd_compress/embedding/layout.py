"""What a row of an embedding consists of, and how the rows of several tables are numbered in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hvd_compress.checks import check_whole, is_whole
from hvd_compress.embedding.kernels import initial_values
from hvd_compress.embedding.optimizers import RowOptimizer
from hvd_compress.errors import ConfigError, HvdCompressError

MOST_ROWS = 2**47 - 1
"""Of all tables of an embedding; the planner divides them by a multiplication."""
Initial = Callable[[torch.Tensor], torch.Tensor]
"""From ids of rows, int64 (n,), to their values (n, dim). It must depend on the ids alone."""


@dataclass(frozen=True)
class Layout:
    """Several tables of one width as one: row i of table t has the id offsets[t] + i.

    A record is a row, the state of its optimizer, and in debug mode the step that has changed it last, plus one.

    Attributes:
        name: of the embedding, in messages and files.
        sizes: rows of each table.
        dim: elements of a row.
        padding: by table, the id of a row that is not trained, if there is one; empty where no table has one.
    """

    name: str
    sizes: tuple[int, ...]
    dim: int
    optimizer: RowOptimizer
    seed: int = 0
    initial: Initial | None = None
    debug: bool = False
    padding: tuple[int | None, ...] = ()
    offsets: torch.Tensor = field(init=False, compare=False)
    _bounds: torch.Tensor = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for table, size in enumerate(self.sizes):
            check_whole(f"rows of table {table} of {self.name}", size, 1)
        if sum(self.sizes) > MOST_ROWS:
            raise ConfigError(f"{self.name} has {sum(self.sizes)} rows: {MOST_ROWS} at most")
        if not self.sizes or not is_whole(self.dim, 1):
            raise ConfigError(f"{self.name} needs one table at least, and rows of 1 element or more, not {self.dim!r}")
        if not isinstance(self.optimizer, RowOptimizer):
            raise ConfigError(
                f"the optimizer of {self.name} is {self.optimizer!r}: one of hvd_compress.embedding, such as SGD(0.1)"
            )
        if not self.name or "/" in self.name:
            raise ConfigError(f"the name {self.name!r} of an embedding is none of a file")
        if self.initial is not None:
            self._initial_values(torch.zeros(1, dtype=torch.int64))
        starts = np.concatenate([[0], np.cumsum(self.sizes[:-1], dtype=np.int64)]).astype(np.int64)
        object.__setattr__(self, "offsets", torch.from_numpy(starts))
        bounds = torch.tensor(self.sizes, dtype=torch.float64).rsqrt().to(torch.float32)
        object.__setattr__(self, "_bounds", bounds)

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    @property
    def untrained(self) -> list[int]:
        """Ids of the rows that stay as they are."""
        return [row for row in self.padding if row is not None]

    @property
    def row_width(self) -> int:
        """Numbers of a row as it travels to those that only read it."""
        return self.dim + self.debug

    @property
    def record_width(self) -> int:
        return self.row_width + self.optimizer.state_width(self.dim)

    def row(self, records: torch.Tensor) -> torch.Tensor:
        return records[:, : self.dim]

    def state(self, records: torch.Tensor) -> torch.Tensor:
        return records[:, self.row_width :]

    def versions(self, records: torch.Tensor) -> torch.Tensor:
        assert self.debug
        return records[:, self.dim]

    def initialise(self, records: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the initial records of rows, by their ids: uniform between -1 / sqrt(n) and 1 / sqrt(n), n the rows of
        the table, as DLRM has them, or the user's."""
        if self.initial is not None:
            try:
                values = self._initial_values(rows)
            except ConfigError as error:  # other ranks wait for these rows, and know nothing of it
                raise HvdCompressError(str(error)) from error
            self.row(records).copy_(values)
        else:
            initial_values(rows, self.offsets, self._bounds, self.seed % 2**64, self.row(records))
            if self.untrained:
                self.row(records)[torch.isin(rows, torch.tensor(self.untrained))] = 0.0
        self.optimizer.initialise(self.state(records))
        if self.debug:
            self.versions(records).zero_()

    def _initial_values(self, rows: torch.Tensor) -> torch.Tensor:
        assert self.initial is not None
        values, shape = self.initial(rows), (rows.numel(), self.dim)
        if not isinstance(values, torch.Tensor) or values.shape != shape:
            found = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise ConfigError(f"initial values of {self.name} are {found}, not {shape}")
        return values

    def described(self, steps: int) -> list[Any]:
        """Return what must be the same on all ranks behind `steps` steps."""
        return [list(self.sizes), self.dim, self.optimizer.described(steps), self.seed, steps, list(self.padding)]

    @property
    def identity(self) -> str:
        """What saved rows must have in common with these tables."""
        return f"{self.name}: {list(self.sizes)} x {self.dim}, seed {self.seed}, {type(self.optimizer).__name__}"

    def update(self, records: torch.Tensor, gradients: torch.Tensor, step: int) -> None:
        """Update records in place by the gradients (n, dim) of a step, from 0 on."""
        self.optimizer.update(self.row(records), self.state(records), gradients, step + 1)
        if self.debug:
            self.versions(records).fill_(step + 1)


def as_sizes(sizes: int | Sequence[int]) -> tuple[int, ...]:
    """Return the rows of each table; whole numbers of NumPy as Python's."""
    several = sizes if isinstance(sizes, Sequence | np.ndarray) else [sizes]
    return tuple(int(size) if isinstance(size, np.integer) else size for size in several)


def as_padding(given: int | Sequence[int | None] | None, sizes: Sequence[int], name: str) -> tuple[int | None, ...]:
    """Return the ids of rows, by table, of ids in tables: one for all, or one a table; below zero they count from the
    end. Raises ConfigError where one is none of its table."""
    if given is None:
        return ()
    each = list(given) if isinstance(given, Sequence | np.ndarray) else [given] * len(sizes)
    if len(each) != len(sizes):
        raise ConfigError(f"padding_idx of {name} is for {len(each)} tables, and there are {len(sizes)}")
    found: list[int | None] = []
    start = 0
    for table, (index, size) in enumerate(zip(each, sizes, strict=True)):
        if index is not None and (
            isinstance(index, bool) or not hasattr(index, "__index__") or not -size <= index < size
        ):
            raise ConfigError(f"padding_idx {index!r} is none of table {table} of {name}, which has {size} rows")
        found.append(None if index is None else start + int(index) % size)
        start += size
    return tuple(found)
