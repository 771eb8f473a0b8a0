"""Fields of Criteo's lines, for many lines at once: positions of separators, then digits by columns, in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from hvd_compress.errors import ConfigError

NUMERICAL, CATEGORICAL, HEX_DIGITS = 13, 26, 8
LONGEST_INTEGER = 11  # with its sign: more than any in the data sets
TAB, NEWLINE, MINUS = b"\t\n-"
INVALID = 255

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


def _digits(alphabet: bytes) -> Bytes:
    values = np.full(256, INVALID, np.uint8)
    values[np.frombuffer(alphabet, np.uint8)] = np.arange(len(alphabet), dtype=np.uint8)
    return values


DECIMAL = _digits(b"0123456789")
HEXADECIMAL = _digits(b"0123456789abcdef")
HEXADECIMAL[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16, dtype=np.uint8)


class Fields(NamedTuple):
    """Fields of lines in a text.

    Attributes:
        text: bytes.
        starts, ends: of each field (lines, columns).
        numbers: of the lines in their file, from 1 (lines,).
        path: of the file.
    """

    text: Bytes
    starts: Integers
    ends: Integers
    numbers: Integers
    path: Path

    def take(self, lines: slice | Integers, columns: slice) -> Fields:
        place = (lines, columns)
        return self._replace(starts=self.starts[place], ends=self.ends[place], numbers=self.numbers[lines])

    def check(self, wrong: npt.NDArray[np.bool_], what: str, first_column: int) -> None:
        """Raise ConfigError for the first field that is wrong (lines, columns); `what` says what it should be."""
        if wrong.any():
            line, column = np.argwhere(wrong)[0]
            found = self.text[self.starts[line, column] : self.ends[line, column]].tobytes()
            place = f"{self.path}, line {self.numbers[line]}, column {first_column + column + 1}"
            raise ConfigError(f"{place}: {found[:40]!r} is not {what}")


def split_fields(text: Bytes, first_number: int, columns: int, path: Path) -> Fields:
    """Split whole lines, each with a newline at its end, the first of which has the number `first_number`.

    Raises:
        ConfigError: a line has other than `columns` columns.
    """
    separators = np.flatnonzero((text == TAB) | (text == NEWLINE))
    is_newline = text[separators] == NEWLINE
    lines = int(is_newline.sum())
    numbers = np.arange(first_number, first_number + lines)
    if len(separators) != lines * columns or not is_newline[columns - 1 :: columns].all():
        counts = np.diff(np.flatnonzero(is_newline), prepend=-1)
        wrong = int(np.flatnonzero(counts != columns)[0])
        # The column where the line ends too early, or the first that is too much.
        raise ConfigError(
            f"{path}, line {numbers[wrong]}, column {min(int(counts[wrong]), columns) + 1}: the line has "
            f"{counts[wrong]} columns separated by tabs, not {columns}"
        )
    ends = separators.reshape(lines, columns)
    starts = np.concatenate([[0], separators[:-1] + 1]).reshape(lines, columns) if lines else ends
    return Fields(text, starts, ends, numbers, path)


def parse_integers(fields: Fields, first_column: int) -> npt.NDArray[np.float32]:
    """Return log(x + 1) of decimal integers, and 0 for empty fields and negative ones, as DLRM does."""
    text, starts, ends = fields.text, fields.starts, fields.ends
    negative = text[starts] == MINUS
    first = starts + negative
    lengths = ends - first
    what = f"an integer of at most {LONGEST_INTEGER} characters"
    fields.check((ends - starts > LONGEST_INTEGER) | (negative & (lengths == 0)), what, first_column)
    values = np.zeros(starts.shape, np.float64)
    wrong = np.zeros(starts.shape, np.bool_)
    for place in range(int(lengths.max(initial=0))):
        there = lengths > place
        digits = DECIMAL[text[np.where(there, ends - 1 - place, 0)]]
        wrong |= there & (digits == INVALID)
        values += np.where(there, digits, 0) * 10.0**place
    fields.check(wrong, what, first_column)
    values[negative] = 0
    return np.log1p(values).astype(np.float32)


def parse_categories(fields: Fields, first_column: int) -> Integers:
    """Return the values of hexadecimal categories of 8 digits, and -1 for empty fields."""
    lengths = fields.ends - fields.starts
    empty = lengths == 0
    what = f"a hexadecimal number of {HEX_DIGITS} digits"
    fields.check(~empty & (lengths != HEX_DIGITS), what, first_column)
    if empty.all():
        return np.full(empty.shape, -1, np.int64)
    starts = np.where(empty, fields.starts[~empty][0], fields.starts)  # any that has 8 digits
    digits = HEXADECIMAL[sliding_window_view(fields.text, HEX_DIGITS)[starts]]
    fields.check((digits == INVALID).any(axis=-1) & ~empty, what, first_column)
    values = ((digits[..., 0::2] << 4) | digits[..., 1::2]).view(">u4")[..., 0].astype(np.int64)
    values[empty] = -1
    return values
