"""PowerSGD: send a low-rank approximation of each matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Compressor, Input, Round, Rounds
from hvd_compress.compressors.checks import check_number, check_whole
from hvd_compress.compressors.summed import sum_of
from hvd_compress.feedback.states import Key
from hvd_compress.payload import Payload

KIND = "powersgd.q"
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


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Rank-r approximation with a warm start and error feedback (Vogels et al. 2019, Algorithms 1 and 2).

    A parameter of two or more dimensions is a matrix M of its first dimension by the others. P = sum of M Q over ranks
    is orthogonalised, Q = sum of M^T P, and the result is P Q^T; Q is kept for the next step. What this rank
    contributed is P P^T M, so the residual is exact as its Algorithm 2 has it. Vectors, and matrices that would not
    shrink enough, travel dense, in fp32, beside the factors of the first round.

    Bytes of a payload: 4 (rows * r + dense elements), then 4 * cols * r; summed over the matrices. In steps before
    start_step: 4 * numel, then nothing.

    Results have the same bits on all ranks whose processors and numbers of threads are the same, as its matrix
    products are those of torch.

    Attributes:
        rank: r, the columns of the factors, 1 or more; less for a matrix that is smaller.
        start_step: the first step that is compressed, counted from 0; all elements are sent before.
        min_compression_rate: a matrix is approximated where rows * cols is more than this many times the elements of
            its factors.
    """

    rank: int = 4
    start_step: int = 0
    min_compression_rate: float = 2.0
    error_feedback = True
    kind = "low rank"
    source = "Vogels et al. 2019"

    def __post_init__(self) -> None:
        for name, low in (("rank", 1), ("start_step", 0)):
            check_whole(name, getattr(self, name), low)
        check_number("min_compression_rate", self.min_compression_rate, 0)

    def matrices(self, layout: Layout) -> tuple[Matrix, ...]:
        """Return the parameters that are approximated."""
        return _matrices(self, layout)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        matrices = self.matrices(layout)
        dense = layout.numel - sum(m.rows * m.cols for m in matrices)
        first = Round(4 * (dense + sum(m.rows * m.rank for m in matrices)), torch.float32)
        return (first, Round(4 * sum(m.cols * m.rank for m in matrices), torch.float32)) if matrices else (first,)

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        """Q of each matrix, (cols, rank) fp32: normal numbers, the same on every rank."""
        return {
            (KIND, m.name): torch.randn(m.cols, m.rank, generator=_generator(m.name), device="cpu").to(device)
            for m in self.matrices(layout)
        }

    def rounds(self, work: Input) -> Rounds:
        """Two rounds, of P with all that travels dense, and of Q; one where there is no matrix."""
        assert work.residual is not None
        assert work.pending is not None
        corrected, layout = work.pending, work.layout
        matrices = self.matrices(layout)
        native.accumulate(work.gradient, work.residual, out=corrected)
        if work.step < self.start_step:
            yield from self._dense_rounds(work, corrected, bool(matrices))
            return None
        dense = list(_between(matrices, layout.numel))
        factors = [m.of(corrected) @ work.state.current[KIND, m.name] for m in matrices]
        sent = [*(factor.reshape(-1) for factor in factors), *(corrected[part] for part in dense)]
        values = torch.cat(sent) if sent else corrected.new_empty(0)
        payloads = yield Payload({"p": values}, layout.numel, summable=True)
        total = sum_of(payloads, "p", values.numel()).mul_(work.scale)
        parts = iter(torch.split(total, [part.numel() for part in sent]))
        bases = _batched(_orthogonal, [next(parts).view(m.rows, m.rank) for m in matrices])
        for part, result in zip(dense, parts, strict=True):
            work.gradient[part] = result.to(work.gradient.dtype)
            corrected[part] = 0.0
        if not matrices:
            return None
        own = [m.of(corrected).T @ basis for m, basis in zip(matrices, bases, strict=True)]
        for m, basis, q in zip(matrices, bases, own, strict=True):
            m.of(corrected).addmm_(basis, q.T, alpha=-1.0)  # corrected - transmitted
        values = torch.cat([q.reshape(-1) for q in own])
        payloads = yield Payload({"q": values}, layout.numel, summable=True)
        total = sum_of(payloads, "q", values.numel()).mul_(work.scale)
        parts = iter(torch.split(total, [q.numel() for q in own]))
        factors = [next(parts).view(m.cols, m.rank) for m in matrices]
        for m, basis, q in zip(matrices, bases, factors, strict=True):
            _product(basis, q.T, m.of(work.gradient))
        before = [work.state.current[KIND, m.name] for m in matrices]
        warm = _batched(_warm, factors, before)
        work.state.pending.update({(KIND, m.name): q for m, q in zip(matrices, warm, strict=True)})
        return None

    def _dense_rounds(self, work: Input, corrected: torch.Tensor, two: bool) -> Rounds:
        """Send every element, in the first of as many rounds as there are in later steps."""
        payloads = yield Payload({"p": corrected.clone()}, work.layout.numel, summable=True)
        work.gradient.copy_(sum_of(payloads, "p", work.layout.numel).mul_(work.scale))
        corrected.zero_()
        if two:
            yield Payload({}, work.layout.numel, summable=True)
        return None


@lru_cache(maxsize=4096)
def _matrices(settings: PowerSGD, layout: Layout) -> tuple[Matrix, ...]:
    found, start = [], 0
    for name, shape, numel in zip(layout.names, layout.shapes, layout.segments, strict=True):
        if len(shape) >= 2 and numel:
            rows, cols = shape[0], numel // shape[0]
            rank = min(settings.rank, rows, cols)
            if (rows + cols) * rank * settings.min_compression_rate < numel:
                found.append(Matrix(name, start, rows, cols, rank))
        start += numel
    return tuple(found)


def _between(matrices: Sequence[Matrix], numel: int) -> Iterator[slice]:
    """Yield what lies between the matrices of a bucket."""
    start = 0
    for matrix in matrices:
        if matrix.start > start:
            yield slice(start, matrix.start)
        start = matrix.stop
    if numel > start:
        yield slice(start, numel)


def _batched(call: Callable[..., torch.Tensor], *operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return `call` of each row of operands, calling it once for all whose first operand has the same shape."""
    groups: dict[torch.Size, list[int]] = {}
    for number, first in enumerate(operands[0]):
        groups.setdefault(first.shape, []).append(number)
    found: dict[int, torch.Tensor] = {}
    for numbers in groups.values():
        results = call(*(torch.stack([operand[number] for number in numbers]) for operand in operands))
        found.update(zip(numbers, results.unbind(), strict=True))
    return [found[number] for number in range(len(operands[0]))]


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    if out.dtype == left.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(left @ right)


def _orthogonal(p: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns of p (..., rows, rank), by the modified Gram-Schmidt process.

    A column that is zero, or depends on those before it, becomes zero. Nothing here waits for a GPU.
    """
    basis = _scaled(p.mT.clone(memory_format=torch.contiguous_format))  # a column of p is a contiguous row
    columns = basis.unbind(-2)
    for number, column in enumerate(columns):
        before = torch.linalg.vector_norm(column, dim=-1, keepdim=True)
        for earlier in columns[:number]:
            column.sub_(earlier * (earlier * column).sum(-1, keepdim=True))
        norm = torch.linalg.vector_norm(column, dim=-1, keepdim=True)
        # A NaN compares as False, so it stays one and reaches all ranks.
        column.copy_(torch.where(norm <= DEPENDENT * before, torch.zeros_like(column), column / norm))
    return basis.mT


def _scaled(rows: torch.Tensor) -> torch.Tensor:
    """Return each row (..., numel) divided by its largest magnitude, so that its squares neither overflow nor vanish.

    Zero stays zero; what is not finite becomes NaN, and NaN stays.
    """
    top = rows.abs().amax(dim=-1, keepdim=True)
    return torch.where(top == 0, rows, rows / top)


def _warm(q: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
    """Return what to begin the next step with: q (..., cols, rank), of which only the directions count, and where a
    column of it is zero that of the step before.

    Else a parameter without a gradient would never have one again.
    """
    return torch.where((q != 0).any(dim=-2, keepdim=True), _scaled(q.mT).mT, earlier).contiguous()


def _generator(name: str) -> torch.Generator:
    """Return one that is seeded by a parameter's name."""
    return torch.Generator().manual_seed(int.from_bytes(name.encode(), "little") % (2**63 - 25))
