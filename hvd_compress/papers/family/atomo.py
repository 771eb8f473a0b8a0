"""Spectral ATOMO: send a few singular vectors of each matrix, drawn so that the result is right on average."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import MAX_SEED, check_number, check_whole
from hvd_compress.compressors.base import Input, Round, SingleRound
from hvd_compress.compressors.draws import mixed
from hvd_compress.compressors.finite import all_finite, nan_unless
from hvd_compress.compressors.matrices import Matrix, between, matrices_of
from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload


@dataclass(frozen=True)
class ATOMO(SingleRound):
    """Unbiased low-rank sampling, without error feedback (Wang et al. 2018, Algorithm 1 and Section 4).

    A matrix is the sum of s_i u_i v_i^T, its singular value decomposition. Triplet i is sent with probability p_i, as
    (s_i / p_i) u_i and v_i. p minimises the variance, the sum of s_i^2 / p_i, where p_i <= 1 and the p_i add up to the
    rank: see probabilities().

    The paper draws each triplet by itself, so that their number varies. Here one draw takes exactly `rank` of them
    (systematic sampling: those in whose stretch of the cumulated probabilities u, u + 1, ... lie). Each is taken with
    the same p_i, and triplets are orthogonal, so mean and variance are the paper's; payloads have one size.

    Draws are keyed by seed, step, bucket, rank and the parameter's name. Results have the same bits on all ranks whose
    processors and numbers of threads are the same, as matrix products are those of torch. The decomposition makes it
    slow: it is a reference for what unbiased low-rank compression attains, not a way to train fast.

    Bytes of a payload: 4 ((rows + cols) * rank + dense elements), summed over the matrices. Vectors, and matrices that
    would not shrink enough, travel dense.

    Attributes:
        rank: triplets that are sent of a matrix, 1 or more; less for a matrix that is smaller. The paper's budget.
        seed: of the random numbers, the same on all ranks.
        min_compression_rate: as PowerSGD's.
    """

    rank: int = 4
    seed: int = 0
    min_compression_rate: float = 2.0
    kind = "low rank"
    source = "Wang et al. 2018"

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 1)
        check_whole("seed", self.seed, 0, MAX_SEED)
        check_number("min_compression_rate", self.min_compression_rate, 0)

    def matrices(self, layout: Layout) -> tuple[Matrix, ...]:
        """Return the parameters that are approximated."""
        return matrices_of(layout, self.rank, self.min_compression_rate)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        return (Round(4 * sum(self._lengths(layout))),)

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Draw as rank 0 does in step 0 of bucket 0."""
        return self.encode(Input(corrected, layout, 0, 0, 1.0))

    def encode(self, work: Input) -> Payload:
        finite = all_finite(work.gradient)
        x = torch.where(finite, work.gradient.float(), 0.0)  # the decomposition of what is not finite is an error
        parts = [part for m in self.matrices(work.layout) for part in self._sampled(m.of(x), self._draw(work, m))]
        dense = [x[part] for part in between(self.matrices(work.layout), work.layout.numel)]
        return Payload({"values": nan_unless(finite, torch.cat([*parts, *dense]))}, work.layout.numel)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        lengths = self._lengths(layout)
        if payload["values"].numel() != sum(lengths):
            raise PayloadError(f"{payload['values'].numel()} values instead of {sum(lengths)}")
        parts = iter(torch.split(payload["values"], lengths))
        for m in self.matrices(layout):
            left, right = next(parts).view(m.rank, m.rows), next(parts).view(m.rank, m.cols)
            m.of(out).add_(left.T @ right, alpha=scale)
        for part, values in zip(between(self.matrices(layout), layout.numel), parts, strict=True):
            out[part].add_(values, alpha=scale)

    def _sampled(self, matrix: torch.Tensor, draw: float) -> Iterator[torch.Tensor]:
        """Yield (s / p) u and v of the triplets that are taken, flat, one after the other."""
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        rank = min(self.rank, s.numel())
        s = s.double()  # of p cumulated in fp32 the last would be rounded away
        p = probabilities(s, rank)
        points = draw + torch.arange(rank, dtype=s.dtype, device=s.device)
        taken = torch.searchsorted(p.cumsum(0), points, right=True).clamp(max=s.numel() - 1)
        weights = torch.where(s > 0, s / p, 0.0)[taken]
        yield (u[:, taken] * weights.float()).T.reshape(-1)
        yield vh[taken].reshape(-1)

    def _draw(self, work: Input, matrix: Matrix) -> float:
        """Return a random number from 0 on, below 1."""
        name = int.from_bytes(hashlib.blake2b(matrix.name.encode(), digest_size=8).digest(), "little")
        return (mixed(self.seed, work.step, work.bucket, work.rank, name) >> 11) / 2**53

    def _lengths(self, layout: Layout) -> list[int]:
        matrices = self.matrices(layout)
        dense = [part.stop - part.start for part in between(matrices, layout.numel)]
        return [*(m.rank * side for m in matrices for side in (m.rows, m.cols)), *dense]


def probabilities(s: torch.Tensor, budget: int) -> torch.Tensor:
    """Return with which probability each of the singular values s (n,), descending, is sent (Algorithm 1).

    The largest are sent always; the rest in proportion to its size, so that all probabilities add up to the budget, of
    at most n. Where fewer than `budget` are above zero, those are sent, and the first of the others.
    """
    p = torch.zeros_like(s)
    for always in range(budget):
        rest = s[always:]
        total = rest.sum()
        if total == 0:
            p[always:budget] = 1.0
            break
        p[always:] = (budget - always) * rest / total
        if p[always] <= 1:
            break
        p[always] = 1.0
    return p
