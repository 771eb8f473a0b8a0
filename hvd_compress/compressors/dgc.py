"""Deep Gradient Compression: sampled thresholds, and momentum that is summed before it is sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Input, Round, spans
from hvd_compress.compressors.checks import check_flag, check_number, check_ratio, check_whole
from hvd_compress.compressors.sparsifier import Selected, Sparsifier, kept_of
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.states import GRADIENT_UNITS, Key
from hvd_compress.payload import Payload

KIND = f"{GRADIENT_UNITS}dgc.velocity"
SAMPLED = 0.01
FEWEST_SAMPLED = 4096
"""Elements of which the threshold is taken: this share, but no fewer."""
LEAST, MOST, LOWERED, ROUNDS = 0.8, 1.3, 0.8, 10
"""Where fewer than LEAST * k reach a threshold it is lowered to LOWERED times it, at most so often; where more than
MOST * k do, the k largest of them are sent."""
TINY = torch.finfo(torch.float32).tiny
FIRST_RATIO = 0.25
"""Of the warm-up."""


@dataclass(frozen=True)
class DGC(Sparsifier):
    """Deep Gradient Compression (Lin et al. 2018, Algorithms 1 and 4, Sections 3.1 to 3.3).

    Each rank keeps a velocity u and a residual v: u = momentum * u + gradient, v = v + u. Elements of v above a limit
    are sent, and set to 0 in v and in u (momentum factor masking). The limit is the k-th largest magnitude of a
    sample. The optimizer is to be SGD without momentum, as the momentum is here.

    Bytes of a payload: 8 an element, or fewer (SparseCoding); from 0.8 k to 1.3 k elements, or fewer where most are 0.

    Attributes:
        ratio: k / numel, in (0, 1].
        momentum: from 0 on, below 1. With 0 there is no velocity.
        warmup_steps: over which the ratio falls exponentially from 0.25 to `ratio`; the paper takes 4 epochs.
        clip: the largest Euclidean norm of a bucket's gradient on one rank; a longer one is made so long. The paper
            divides that of all ranks by the square root of their number. None clips nothing.
        layerwise: a threshold for each parameter, as in the paper, instead of one for the bucket.
    """

    ratio: float = 0.01
    momentum: float = 0.9
    warmup_steps: int = 0
    clip: float | None = None
    layerwise: bool = False
    source = "Lin et al. 2018"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.ratio)
        check_number("momentum", self.momentum, 0)
        if self.momentum >= 1:
            raise ConfigError(f"momentum = {self.momentum!r} is not below 1")
        check_whole("warmup_steps", self.warmup_steps, 0)
        if self.clip is not None:
            check_number("clip", self.clip, 0, above=True)
        check_flag("layerwise", self.layerwise)

    @property
    def sent_ratio(self) -> float:
        return float(self.ratio)

    def ratio_in(self, step: int) -> float:
        """Return the ratio of a step, which falls during the warm-up."""
        if step >= self.warmup_steps or self.ratio >= FIRST_RATIO:
            return self.ratio
        return float(FIRST_RATIO * (self.ratio / FIRST_RATIO) ** (step / self.warmup_steps))

    def spans(self, layout: Layout) -> Iterator[tuple[int, int]]:
        return spans(layout, self.layerwise)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """The most that can be sent, in the first step of the warm-up, or else 1.3 k elements."""
        ratio = self.ratio_in(0)
        most = sum(_most(kept_of(ratio, stop - start)) for start, stop in self.spans(layout))
        return (Round(self.coding.most_bytes(layout.numel, min(most, layout.numel)), fixed=False),)

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        """The velocity of each parameter, (numel,) fp32, in units of the gradient."""
        if self.momentum == 0:
            return {}
        named = zip(layout.names, layout.segments, strict=True)
        return {(KIND, name): torch.zeros(numel, dtype=torch.float32, device=device) for name, numel in named}

    def select(self, x: torch.Tensor) -> Selected:
        return _sampled(x, kept_of(self.ratio, x.numel()))

    def encode(self, work: Input) -> Payload:
        residual, pending = work.residual, work.pending
        assert residual is not None
        assert pending is not None
        gradient = self._clipped(work.gradient)
        velocity = self._velocity(work, gradient) if self.momentum else None
        native.accumulate(gradient if velocity is None else velocity, residual, out=pending)
        ratio, parts = self.ratio_in(work.step), []
        for start, stop in self.spans(work.layout):
            corrected = pending[start:stop]
            indices, _ = _sampled(corrected, kept_of(ratio, stop - start))
            parts.append((start, (indices, native.take(corrected, indices))))
            if velocity is not None:
                velocity[start:stop].index_fill_(0, indices.long(), 0.0)
        if velocity is not None:
            named = zip(work.layout.names, torch.split(velocity, list(work.layout.segments)), strict=True)
            work.state.pending.update({(KIND, name): own for name, own in named})
        return self.payload_of(parts, work.layout, pending)

    def _clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.clip is None:
            return gradient
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        shorter: torch.Tensor = gradient * (self.clip / norm).clamp(max=1.0).to(gradient.dtype)
        return shorter

    def _velocity(self, work: Input, gradient: torch.Tensor) -> torch.Tensor:
        """Return momentum * velocity + gradient, (numel,) fp32."""
        velocity = torch.empty_like(gradient, dtype=torch.float32)
        parts = zip(work.layout.names, torch.split(velocity, list(work.layout.segments)), strict=True)
        for name, own in parts:
            torch.mul(work.state.current[KIND, name], self.momentum, out=own)
        native.accumulate(gradient, velocity)
        return velocity


def _most(k: int) -> int:
    return int(MOST * k)


def _sampled(x: torch.Tensor, k: int) -> Selected:
    """Select about k elements of x by the k-th largest magnitude of a sample, scaled to its size."""
    numel = x.numel()
    stride = max(1, numel // max(FEWEST_SAMPLED, int(SAMPLED * numel))) | 1
    sample = x[::stride].contiguous()
    tau = float(native.topk(sample, kept_of(k / max(1, numel), sample.numel()))[1].abs().min()) if numel else 0.0
    if not math.isfinite(tau):
        return native.topk(x, k)
    tau = max(tau, TINY)  # zeros are not sent
    for _ in range(ROUNDS):
        indices, values = native.threshold_select(x, tau)
        if indices.numel() >= LEAST * k:
            break
        tau *= LOWERED
    if indices.numel() <= _most(k):
        return indices, values
    largest, values = native.topk(values, k)
    return indices[largest.long()], values
