"""Random-k: send the same random elements on all ranks, so that their values can be summed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import MAX_SEED, check_flag, check_ratio, check_whole
from hvd_compress.compressors.base import Compressor, Input, Round, Rounds
from hvd_compress.compressors.draws import mixed, words
from hvd_compress.compressors.finite import all_finite, nan_unless
from hvd_compress.compressors.sparsifier import kept_of
from hvd_compress.compressors.summed import sum_of
from hvd_compress.payload import Payload

VALUE_BYTES = 4


@dataclass(frozen=True)
class RandomK(Compressor):
    """One random element of each of k intervals of a bucket (Stich et al. 2018; Wangni et al. 2018).

    The intervals are as long as numel / k, rounded up or down, and each has one element sent: k of them without
    repetition, ascending, drawn by seed, step and bucket. Papers draw k of all elements, which costs a sort.

    With error feedback values travel as they are. Without it they are multiplied by the length of their interval,
    which makes the result right on average.

    Bytes of a payload: 4 * k; all ranks know the indices.

    Attributes:
        ratio: k / numel, in (0, 1]. At least one element is kept of a bucket that has one.
        error_feedback: whether what is not sent is remembered.
        seed: of the random numbers, the same on all ranks.
    """

    ratio: float = 0.01
    error_feedback: bool = True
    seed: int = 0
    kind = "sparsifier"
    source = "Stich et al. 2018"

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        check_flag("error_feedback", self.error_feedback)
        check_whole("seed", self.seed, 0, MAX_SEED)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """4 bytes a kept element: an fp32 value."""
        return (Round(VALUE_BYTES * kept_of(self.ratio, layout.numel), torch.float32),)

    def rounds(self, work: Input) -> Rounds:
        gradient, k = work.gradient, kept_of(self.ratio, work.layout.numel)
        indices, lengths = self._drawn(work, k)
        if self.error_feedback:
            assert work.residual is not None
            assert work.pending is not None
            finite = native.accumulate(gradient, work.residual, out=work.pending)
            values = native.take(work.pending, indices)
        else:
            finite = all_finite(gradient)
            values = native.gather(gradient, indices).float().mul_(lengths)
        payloads = yield Payload({"values": nan_unless(finite, values)}, gradient.numel(), summable=True)
        total = sum_of(payloads, "values", k)
        indices, _ = self._drawn(work, k)  # anew, as this may run on another stream, which nothing else keeps them for
        native.scatter_lists([(indices, total)], gradient, work.scale, clear=True)
        return all_finite(native.gather(gradient, indices))

    @property
    def sent_ratio(self) -> float:
        return float(self.ratio)

    def _drawn(self, work: Input, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return indices (k,) int32, and the lengths (k,) of the intervals that they were drawn from."""
        numel, device = work.gradient.numel(), work.gradient.device
        starts = torch.arange(k + 1, device=device) * numel // max(1, k)
        lengths = starts.diff()
        drawn = words(mixed(self.seed, work.step, work.bucket), k, device)  # 31 bits; lengths are below 2^31
        return (starts[:-1] + (drawn * lengths >> 31)).int(), lengths
