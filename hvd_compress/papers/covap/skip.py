"""Skip: a bucket that is not sent in this step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine

SKIP = Path("skip")
"""A label: no list has the collective."""


@dataclass(frozen=True)
class Skip(Collective):
    """No collective: the result is zero, and the whole gradient joins the residual, whatever the compressor.

    A gradient that is not finite is dropped, and the residual stays: other ranks cannot know, so the step counts as
    finite. Bytes: none.

    Attributes:
        holds: whether its parameters have no gradient after the step, and not one of zeros.
    """

    compressor: Compressor
    holds: bool = False
    path: Path = SKIP
    names = ()

    @property
    def error_feedback(self) -> bool:
        return True

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return ()

    def unsent(self, layout: Layout) -> Sequence[str]:
        return layout.names if self.holds else ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        return ()

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _SkipExchange(work)


def keep(work: Work, part: slice) -> None:
    """Send nothing of a part of the bucket: corrected joins the residual, or nothing where that is not finite."""
    assert work.state.residual is not None
    assert work.residual is not None
    assert work.pending is not None
    pending, before = work.pending[part], work.state.residual.kept.read(part)
    finite = native.accumulate(work.gradient[part], work.residual[part], out=pending)
    if finite is not True:  # of a GPU it is a tensor, into which the host does not look
        kept = torch.as_tensor(finite, dtype=torch.bool, device=pending.device)
        torch.where(kept, pending, before, out=pending)


LIGHT = 2**15
"""Elements of which the host's memory takes as long to be read and written as another thread to wake up."""


class _SkipExchange(Exchange):
    sends = False

    def __init__(self, work: Work) -> None:
        self._work = work
        self.is_light = work.layout.numel <= LIGHT

    def encode(self) -> None:
        keep(self._work, slice(None))

    def communicate(self, engine: Engine) -> None: ...

    def decode(self) -> torch.Tensor:
        self._work.gradient.zero_()
        return torch.ones((), dtype=torch.bool, device=self._work.gradient.device)
