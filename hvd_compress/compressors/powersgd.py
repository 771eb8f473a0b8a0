"""PowerSGD: send a low-rank approximation of each matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_choice, check_number, check_whole
from hvd_compress.compressors.base import Compressor, Input, Round, Rounds
from hvd_compress.compressors.factors import FACTORS, FactorFormat
from hvd_compress.compressors.matrices import Matrix, batched, between, matrices_of, orthogonal, product, scaled
from hvd_compress.compressors.summed import sum_of
from hvd_compress.feedback.states import Key
from hvd_compress.payload import Payload

KIND = "powersgd.q"


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Rank-r approximation with a warm start and error feedback (Vogels et al. 2019, Algorithms 1 and 2).

    A parameter of two or more dimensions is a matrix M of its first dimension by the others. P = sum of M Q over ranks
    is orthogonalised, Q = sum of M^T P, and the result is P Q^T; Q is kept for the next step. What this rank
    contributed is P P^T M, so the residual is exact as its Algorithm 2 has it. Vectors, and matrices that would not
    shrink enough, travel dense, in fp32, beside the factors of the first round.

    Factors may travel rounded. All ranks decode and add the same payloads, so they orthogonalise the same P: what its
    rounding changes is the subspace alone, which is nothing that would have to be remembered. Of its own Q a rank takes
    what the others receive, and contributes P (rounded P^T M)^T: what rounding loses is in the residual. So the
    contributions of all ranks still add up to the result, to fp32's rounding of the products.

    Bytes of a payload, summed over the matrices: f (rows * r) + 4 * dense elements, then f (cols * r), where an element
    of a factor takes f = 4, 2 (bf16) or 1 + 2/64 bytes (int8, each factor padded to 64 elements). In steps before
    start_step: 4 * numel, then nothing.

    fp32 is summed: a ring of N ranks sends 2 (N-1)/N times the payload. Rounded factors can only be gathered, (N-1)
    times, dense elements and buckets of vectors included. bf16 sends fewer bytes up to 3 ranks, int8 up to 7, or up to
    5 where as much is dense as in ResNet-50 at rank 4: a payload of 1.54 MB in fp32, 0.88 in bf16, 0.56 in int8, 0.22
    of it dense.

    Results have the same bits on all ranks whose processors and numbers of threads are the same, as its matrix
    products are those of torch.

    Attributes:
        rank: r, the columns of the factors, 1 or more; less for a matrix that is smaller.
        start_step: the first step that is compressed, counted from 0; all elements are sent before.
        min_compression_rate: a matrix is approximated where rows * cols is more than this many times the elements of
            its factors.
        factors: "fp32", "bf16" or "int8": 8-bit blocks of 64 elements.
    """

    rank: int = 4
    start_step: int = 0
    min_compression_rate: float = 2.0
    factors: str = "fp32"
    error_feedback = True
    kind = "low rank"
    source = "Vogels et al. 2019"
    alike = (KIND,)

    def __post_init__(self) -> None:
        for name, low in (("rank", 1), ("start_step", 0)):
            check_whole(name, getattr(self, name), low)
        check_number("min_compression_rate", self.min_compression_rate, 0)
        check_choice("factors", self.factors, FACTORS)

    def matrices(self, layout: Layout) -> tuple[Matrix, ...]:
        """Return the parameters that are approximated."""
        return matrices_of(layout, self.rank, self.min_compression_rate)

    @property
    def _format(self) -> FactorFormat:
        return FACTORS[self.factors]

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """What steps from start_step on take; those before take more, so that sizes are not fixed."""
        matrices, fixed = self.matrices(layout), self.start_step == 0
        dense = layout.numel - sum(m.rows * m.cols for m in matrices)
        first = self._format.wire([(m.rows, m.rank) for m in matrices], dense, fixed)
        second = self._format.wire([(m.cols, m.rank) for m in matrices], 0, fixed)
        return (first, second) if matrices else (first,)

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        """Q of each matrix, (cols, rank) fp32: normal numbers, the same on every rank."""
        return {
            (KIND, m.name): torch.randn(
                m.cols, m.rank, generator=_generator(m.name), dtype=torch.float32, device="cpu"
            ).to(device)
            for m in self.matrices(layout)
        }

    def resized(self, kept: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return the columns that a Q of another rank has, and for further ones those of the beginning."""
        rank = min(kept.shape[1], new.shape[1])
        return torch.cat([kept[:, :rank].to(new.device, new.dtype), new[:, rank:]], dim=1)

    def rounds(self, work: Input) -> Rounds:
        """Two rounds, of P with all that travels dense, and of Q; one where there is no matrix."""
        assert work.residual is not None
        assert work.pending is not None
        corrected, layout, form = work.pending, work.layout, self._format
        matrices = self.matrices(layout)
        native.accumulate(work.gradient, work.residual, out=corrected)
        if work.step < self.start_step:
            yield from self._dense_rounds(work, corrected, bool(matrices))
            return None
        dense = list(between(matrices, layout.numel))
        factors = [m.of(corrected) @ work.state.current[KIND, m.name] for m in matrices]
        payloads = yield form.payload("p", factors, [corrected[part] for part in dense], layout.numel)
        shapes, lengths = [(m.rows, m.rank) for m in matrices], [part.stop - part.start for part in dense]
        factors, results = form.sums("p", payloads, shapes, lengths, work.scale)
        bases = batched(orthogonal, factors)
        for part, result in zip(dense, results, strict=True):
            work.gradient[part] = result.to(work.gradient.dtype)
            corrected[part] = 0.0
        if not matrices:
            return None
        own = [m.of(corrected).T @ basis for m, basis in zip(matrices, bases, strict=True)]
        payload, shapes = form.payload("q", own, [], layout.numel), [(m.cols, m.rank) for m in matrices]
        own, _ = form.sums("q", [payload], shapes, [], 1.0)  # as the other ranks receive it
        for m, basis, q in zip(matrices, bases, own, strict=True):
            m.of(corrected).addmm_(basis, q.T, alpha=-1.0)  # corrected - transmitted
        payloads = yield payload
        factors, _ = form.sums("q", payloads, shapes, [], work.scale)
        for m, basis, q in zip(matrices, bases, factors, strict=True):
            product(basis, q.T, m.of(work.gradient))
        before = [work.state.current[KIND, m.name] for m in matrices]
        warm = batched(_warm, factors, before)
        work.state.pending.update({(KIND, m.name): q for m, q in zip(matrices, warm, strict=True)})
        return None

    def _dense_rounds(self, work: Input, corrected: torch.Tensor, two: bool) -> Rounds:
        """Send every element, in the first of as many rounds as there are in later steps."""
        summable = self._format.summable
        payloads = yield Payload({"p": corrected.clone()}, work.layout.numel, summable)
        work.gradient.copy_(sum_of(payloads, "p", work.layout.numel).mul_(work.scale))
        corrected.zero_()
        if two:
            yield Payload({}, work.layout.numel, summable)
        return None


def _warm(q: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
    """Return what to begin the next step with: q (..., cols, rank), of which only the directions count, and where a
    column of it is zero that of the step before.

    Else a parameter without a gradient would never have one again.
    """
    return torch.where((q != 0).any(dim=-2, keepdim=True), scaled(q.mT).mT, earlier).contiguous()


def _generator(name: str) -> torch.Generator:
    """Return one that is seeded by a parameter's name."""
    return torch.Generator().manual_seed(int.from_bytes(name.encode(), "little") % (2**63 - 25))
