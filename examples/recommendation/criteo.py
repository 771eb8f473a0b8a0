"""Criteo's display advertising data, of Kaggle and Terabyte: files of text, read as a stream, plain or .gz.

A line has 40 columns separated by tabs: a label, 0 or 1; 13 integers, which may be empty or negative; 26 categories,
which are hexadecimal numbers of 8 digits or empty. The file test.txt of Kaggle has no labels, so 39 columns.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch

from hvd_compress.errors import ConfigError
from recommendation.batch import Batch
from recommendation.criteo_fields import (
    CATEGORICAL,
    NUMERICAL,
    Fields,
    parse_categories,
    parse_integers,
    split_fields,
)

READ_BYTES = 1 << 19
LONGEST_LINE_BYTES = 1 << 16


class Criteo:
    """This rank's batches of files, in a fixed order: of all lines those with the numbers rank, rank + world_size, ...

    All ranks read all bytes, and each parses its own lines. All have equally many batches, of equal sizes: up to
    world_size * batch_size - 1 lines at the end are left out. Each iteration begins with the first file.

    A category's id is 0 where it is missing, else 1 + value mod (rows - 1). With this hashing trick, several categories
    may share a row, but none has the row of the missing ones.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        tables: Sequence[int],
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        labelled: bool = True,
    ) -> None:
        """
        Args:
            paths: files that are read one behind the other, as the days of Terabyte.
            tables: rows of each of the 26 tables, 2 or more.
            batch_size: of one rank.
            labelled: the files have labels; else a batch's are NaN.

        Raises:
            ConfigError: a table has too few rows, or there are not 26.
        """
        if len(tables) != CATEGORICAL or min(tables) < 2:
            raise ConfigError(f"Criteo's data needs {CATEGORICAL} tables of 2 rows or more, not {list(tables)}")
        self.paths, self.tables = list(paths), np.array(tables, np.int64)
        self.batch_size, self.rank, self.world_size, self.labelled = batch_size, rank, world_size, labelled

    def __iter__(self) -> Iterator[Batch]:
        """Read the files.

        Raises:
            ConfigError: a file cannot be read; a line is malformed (the message names file, line and column); or there
                are fewer lines than a batch of all ranks has. A wrong number of columns is an error on all ranks, a
                wrong field on the rank that parses it.
        """
        lines, step_lines = 0, self.batch_size * self.world_size
        parts: list[Batch] = []
        for fields in self._fields():
            own = np.arange((self.rank - lines) % self.world_size, len(fields.numbers), self.world_size)
            if len(own):
                parts.append(self._parse(fields, own))
            before, lines = lines // step_lines, lines + len(fields.numbers)
            if (batches := lines // step_lines - before) == 0:
                continue
            batch = _concatenate(parts)
            for first in range(0, batches * self.batch_size, self.batch_size):
                yield Batch(*(part[first : first + self.batch_size] for part in batch))
            parts = [Batch(*(part[batches * self.batch_size :] for part in batch))]
        if lines < step_lines:
            raise ConfigError(
                f"{', '.join(map(str, self.paths))}: {lines} lines are fewer than {self.batch_size} for each of "
                f"{self.world_size} ranks"
            )

    def _fields(self) -> Iterator[Fields]:
        """Yield pieces of whole lines of all files."""
        for path in self.paths:
            number, rest = 1, b""
            for content in _read(path):
                end = content.rfind(b"\n") + 1
                if end == 0:
                    rest += content
                    if len(rest) > LONGEST_LINE_BYTES:
                        raise ConfigError(f"{path}, line {number}, column 1: no line of Criteo's is this long")
                    continue
                fields = self._split(rest + content[:end], number, path)
                rest, number = content[end:], number + len(fields.numbers)
                yield fields
            if rest:  # the last line without a newline
                yield self._split(rest + b"\n", number, path)

    def _split(self, text: bytes, number: int, path: Path) -> Fields:
        columns = self.labelled + NUMERICAL + CATEGORICAL
        return split_fields(np.frombuffer(text, np.uint8), number, columns, path)

    def _parse(self, fields: Fields, own: np.typing.NDArray[np.int64]) -> Batch:
        """Parse the lines `own` of a piece."""
        first = int(self.labelled)
        labels = np.full(len(own), np.nan, np.float32)
        if self.labelled:
            column = fields.take(own, slice(0, 1))
            digits = column.text[column.starts] - ord("0")
            column.check((column.ends - column.starts != 1) | (digits > 1), "a label, 0 or 1", 0)
            labels = digits[:, 0].astype(np.float32)
        dense = parse_integers(fields.take(own, slice(first, first + NUMERICAL)), first)
        values = parse_categories(fields.take(own, slice(first + NUMERICAL, None)), first + NUMERICAL)
        ids = np.where(values < 0, 0, 1 + values % (self.tables - 1))
        return Batch(*(torch.from_numpy(array) for array in (labels, dense, ids)))


def _concatenate(parts: Sequence[Batch]) -> Batch:
    return parts[0] if len(parts) == 1 else Batch(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _read(path: Path) -> Iterator[bytes]:
    try:
        with cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            while content := file.read(READ_BYTES):
                yield content
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
