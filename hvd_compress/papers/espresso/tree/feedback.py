"""Error feedback along an option: what a compression adds of what was lost before, and who remembers what it loses."""

from __future__ import annotations

from dataclasses import replace

import torch

from hvd_compress.collectives.base import Work, add_residual, send_residual
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.draws import mixed
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.papers.espresso.tree.walk import Held, holders, parse
from hvd_compress.payload import Payload


class PartCompressor:
    """Compresses the parts of one bucket in one step, at any task of an option.

    Each rank adds its residual to its gradient: where a call comes first, before that; else the compression does
    so. What a compression loses is remembered by the rank that compresses; of several that compress the same sum, by
    the first. A rank that compresses a sum alone adds to it what it has lost of that part before in this step.
    """

    def __init__(self, compressor: Compressor, work: Work, rank: int, option: str) -> None:
        self._compressor, self._work, self._rank, self._option = compressor, work, rank, option

    def start(self) -> torch.Tensor:
        """Return what the first task works on, (numel,) fp32: the gradient itself where it is fp32."""
        work = self._work
        if not self._compressor.error_feedback:
            send_residual(self._compressor, work)
        values = work.gradient.float()
        if self._compressor.error_feedback and parse(self._option)[0].link:
            add_residual(work, values, slice(None))
        return values

    def compress(self, task: int, part: Held, values: torch.Tensor) -> Payload:
        """Return the payload of a part (numel of it,) at the task of this number, and remember what it loses."""
        work = self._work
        same = holders(self._option, work.layout.numel, work.hosts, task)[part]
        state = self._state(task, part, values, alone=len(same) == 1)
        inner = replace(
            work,
            gradient=values,
            layout=work.layout.part(part.part),
            bucket=self._key(task, part),
            rank=same[0],
            coefficient=1.0,  # it is in work.residual
            state=state,
        )
        payload = next(self._compressor.rounds(inner))
        if task > 0 and state.residual is not None:
            assert work.pending is not None
            kept, lost = work.pending[part.part], state.residual.pending
            if len(same) == 1:
                kept.copy_(lost)
            elif same[0] == self._rank:
                kept.add_(lost)
            # Sums near the end of fp32 may overflow here, in a step that is finite on all ranks: without this all later
            # ones would not be.
            kept.nan_to_num_(0.0, 0.0, 0.0)
        return payload

    def _key(self, task: int, part: Held) -> int:
        """Return what random numbers depend on in the bucket's place: ranks that have the same sum round it alike, and
        what is compressed again is rounded anew."""
        bucket = self._work.bucket
        return bucket if task == 0 and not part.start else mixed(bucket, task, part.start) >> 33

    def _state(self, task: int, part: Held, values: torch.Tensor, alone: bool) -> BucketState:
        """Return the residual that a compression adds, and where it writes what it loses."""
        if not self._compressor.error_feedback:
            return BucketState()
        assert self._work.residual is not None
        assert self._work.pending is not None
        kept = self._work.pending[part.part]
        if task == 0:
            return BucketState(Residual(self._work.residual[part.part], kept))
        return BucketState(Residual(kept if alone else torch.zeros_like(values), torch.empty_like(values)))
