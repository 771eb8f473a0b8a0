"""The discrete cosine transform of chunks of parameters, as products with a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from hvd_compress.buckets.layout import Layout


@dataclass(frozen=True)
class Tiling:
    """How a parameter is cut: a matrix into chunks (height, width), a vector, which has one row, into pieces of it.

    Attributes:
        start: where the parameter begins in the bucket.
        rows, cols: of it; what has more than two dimensions is a matrix (shape[0], rest).
        height, width: of each of its chunks. What a last row or column of chunks lacks is taken as zeros.
    """

    start: int
    rows: int
    cols: int
    height: int
    width: int

    @property
    def chunks(self) -> int:
        return -(-self.rows // self.height) * -(-self.cols // self.width)

    def cut(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the chunks of the parameter within a bucket, (chunks, height, width)."""
        down, across = -(-self.rows // self.height), -(-self.cols // self.width)
        matrix = flat.new_zeros(down * self.height, across * self.width)
        matrix[: self.rows, : self.cols] = self._of(flat)
        tiles = matrix.view(down, self.height, across, self.width).transpose(1, 2)
        return tiles.reshape(-1, self.height, self.width)

    def put(self, chunks: torch.Tensor, flat: torch.Tensor) -> None:
        """Write what cut() would give to the parameter within a bucket."""
        down, across = -(-self.rows // self.height), -(-self.cols // self.width)
        tiles = chunks.view(down, across, self.height, self.width).transpose(1, 2)
        matrix = tiles.reshape(down * self.height, across * self.width)
        self._of(flat).copy_(matrix[: self.rows, : self.cols])

    def _of(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.start : self.start + self.rows * self.cols].view(self.rows, self.cols)


Group = tuple[Tiling, ...]
"""Parameters of a bucket whose chunks have the same height and width, so that they are transformed at once."""


@lru_cache(maxsize=4096)
def tilings(layout: Layout, chunk: int) -> tuple[Group, ...]:
    """Return how the parameters of a bucket are cut into chunks of at most `chunk` by `chunk` elements."""
    groups: dict[tuple[int, int], list[Tiling]] = {}
    start = 0
    for shape, length in zip(layout.shapes, layout.segments, strict=True):
        if length:
            rows = shape[0] if len(shape) > 1 else 1
            size = _side(rows, chunk), _side(length // rows, chunk)
            groups.setdefault(size, []).append(Tiling(start, rows, length // rows, *size))
        start += length
    return tuple(tuple(group) for group in groups.values())


def _side(length: int, chunk: int) -> int:
    """Return into pieces of which length a dimension is cut: as few as `chunk` allows, of one length."""
    return -(-length // -(-length // chunk))


def numel(group: Group) -> int:
    """Return how many elements a chunk of a group has."""
    return group[0].height * group[0].width


def cut(group: Group, flat: torch.Tensor) -> torch.Tensor:
    """Return the chunks of a group, (chunks, height, width)."""
    return torch.cat([tiling.cut(flat) for tiling in group])


def put(group: Group, chunks: torch.Tensor, flat: torch.Tensor) -> None:
    """Write chunks to where cut() has read them."""
    for tiling, own in zip(group, _parts(group, chunks), strict=True):
        tiling.put(own, flat)


def transform(chunks: torch.Tensor) -> torch.Tensor:
    """Return the coefficients of chunks (n, height, width): their orthonormal DCT-II over both dimensions."""
    down, across = (_basis(length, chunks.device) for length in chunks.shape[1:])
    return down @ (chunks @ across.T)


def inverse(coefficients: torch.Tensor) -> torch.Tensor:
    """Return the chunks that have these coefficients (n, height, width)."""
    down, across = (_basis(length, coefficients.device) for length in coefficients.shape[1:])
    return down.T @ (coefficients @ across)


def _parts(group: Group, chunks: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(chunks, [tiling.chunks for tiling in group])


@lru_cache(maxsize=512)
def _basis(length: int, device: torch.device) -> torch.Tensor:
    """Return (length, length) fp32: row k is sqrt(2 / length) * cos(pi * (2 j + 1) * k / (2 length)); row 0, which is
    constant, is divided by sqrt(2).
    """
    return torch.tensor([list(_row(k, length)) for k in range(length)], dtype=torch.float32, device=device)


def _row(k: int, length: int) -> Iterator[float]:
    norm = math.sqrt((2.0 if k else 1.0) / length)
    for j in range(length):
        yield norm * math.cos(math.pi * (2 * j + 1) * k / (2 * length))
