"""The matrices of a bucket, and what low-rank compressors do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from hvd_compress.buckets.layout import Layout

DEPENDENT = 1e-5
"""A column that Gram-Schmidt leaves so little of, relative to what it was, depends on those before it: in fp32 the rest
is rounding, and as a unit vector it would not be orthogonal to them."""


@dataclass(frozen=True)
class Matrix:
    """A parameter that is approximated: where it lies, and as which matrix of which rank."""

    name: str
    start: int
    rows: int
    cols: int
    rank: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.cols

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the view (rows, cols) of a bucket's tensor."""
        return flat[self.start : self.stop].view(self.rows, self.cols)


@lru_cache(maxsize=4096)
def matrices_of(layout: Layout, rank: int, min_compression_rate: float) -> tuple[Matrix, ...]:
    """Return the parameters that are approximated by factors of `rank` columns, or fewer where a matrix is smaller.

    A parameter of two or more dimensions is a matrix of its first dimension by the others. It is approximated where it
    has more than `min_compression_rate` times the elements of its factors.
    """
    found, start = [], 0
    for name, shape, numel in zip(layout.names, layout.shapes, layout.segments, strict=True):
        if len(shape) >= 2 and numel:
            rows, cols = shape[0], numel // shape[0]
            columns = min(rank, rows, cols)
            if (rows + cols) * columns * min_compression_rate < numel:
                found.append(Matrix(name, start, rows, cols, columns))
        start += numel
    return tuple(found)


def between(matrices: Sequence[Matrix], numel: int) -> Iterator[slice]:
    """Yield what lies between the matrices of a bucket; of one without, all of it, though it be empty."""
    start = 0
    for matrix in matrices:
        if matrix.start > start:
            yield slice(start, matrix.start)
        start = matrix.stop
    if numel > start or not matrices:
        yield slice(start, numel)


def batched(call: Callable[..., torch.Tensor], *operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return `call` of each row of operands, calling it once for all whose first operand has the same shape."""
    groups: dict[torch.Size, list[int]] = {}
    for number, first in enumerate(operands[0]):
        groups.setdefault(first.shape, []).append(number)
    found: dict[int, torch.Tensor] = {}
    for numbers in groups.values():
        results = call(*(torch.stack([operand[number] for number in numbers]) for operand in operands))
        found.update(zip(numbers, results.unbind(), strict=True))
    return [found[number] for number in range(len(operands[0]))]


def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Write left @ right to `out`, in its dtype."""
    if out.dtype == left.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(left @ right)


def orthogonal(p: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns of p (..., rows, rank), by the modified Gram-Schmidt process.

    A column that is zero, or depends on those before it, becomes zero. Nothing here waits for a GPU.
    """
    basis = scaled(p.mT.clone(memory_format=torch.contiguous_format))  # a column of p is a contiguous row
    columns = basis.unbind(-2)
    for number, column in enumerate(columns):
        before = torch.linalg.vector_norm(column, dim=-1, keepdim=True)
        for earlier in columns[:number]:
            column.sub_(earlier * (earlier * column).sum(-1, keepdim=True))
        norm = torch.linalg.vector_norm(column, dim=-1, keepdim=True)
        # A NaN compares as False, so it stays one and reaches all ranks.
        column.copy_(torch.where(norm <= DEPENDENT * before, torch.zeros_like(column), column / norm))
    return basis.mT


def scaled(rows: torch.Tensor) -> torch.Tensor:
    """Return each row (..., numel) divided by its largest magnitude, so that its squares neither overflow nor vanish.

    Zero stays zero; what is not finite becomes NaN, and NaN stays.
    """
    top = rows.abs().amax(dim=-1, keepdim=True)
    return torch.where(top == 0, rows, rows / top)
