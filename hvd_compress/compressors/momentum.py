"""The two stages of 1-bit Adam: a momentum that is built from dense gradients, then compressed itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_number
from hvd_compress.compressors.base import Compressor, Input, Requantizer, Round, Rounds
from hvd_compress.compressors.finite import all_finite
from hvd_compress.compressors.onebit import OneBit
from hvd_compress.compressors.summed import sum_of
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.states import GRADIENT_UNITS, Key, by_parameter
from hvd_compress.payload import Payload

KIND = f"{GRADIENT_UNITS}momentum"
"""Of both stages, so that what the first one has built is what the second one begins with."""
INNER = OneBit(means=1)
"""What compresses a momentum by default."""


@dataclass(frozen=True)
class CompressedMomentum(Requantizer):
    """Momentum instead of gradients is compressed (1-bit Adam, Tang et al. 2021, Algorithm 1, lines 6 to 12).

    All ranks hold the same momentum m. A rank with gradient g compresses beta * m + (1 - beta) * g, with the error
    feedback of `inner` at both ends; the average over ranks, compressed again by the owners of shards, is the new m.
    The result is the gradient that leads from m to it: (m_new - beta * m) / (1 - beta). An optimizer that keeps its own
    momentum with the same beta arrives at m_new, though a step of it may have been skipped or begun later. One whose
    update is not linear in the momentum, such as Adam before its variance is frozen, is to see dense gradients instead:
    DenseMomentum, by the policy Warmup.

    Bytes: those of `inner`. Memory: 4 bytes an element for m, and 8 for the residual.

    Attributes:
        beta: from 0 on, below 1: that of the optimizer's momentum.
        inner: compresses the momentum.
    """

    beta: float = 0.9
    inner: Requantizer = INNER
    adds_up = False  # each rank makes a gradient of the momentum, and keeps it
    kind = "quantiser"
    alike = (KIND,)
    sends_momentum = True
    adds_up = False  # to a momentum, and the result is a gradient
    source = "Tang et al. 2021"

    def __post_init__(self) -> None:
        check_number("beta", self.beta, 0, below=1)
        if not isinstance(self.inner, Requantizer) or isinstance(self.inner, CompressedMomentum):
            raise ConfigError(
                f"inner = {self.inner!r} cannot compress a momentum: pass a compressor whose sums can be compressed "
                "again, such as OneBit() or BlockQuantizer(4)"
            )

    def refuses_momentum(self, momentum: float, adapts: bool) -> str:
        if adapts:  # its variance would follow what leads from one momentum to the next
            return "pass hvd_compress.optim.OneBitAdam(...), or SGD"
        return "" if momentum in (0, self.beta) else f"pass one with momentum={self.beta:g}, as the compression has it"

    @property
    def error_feedback(self) -> bool:  # type: ignore[override]
        return self.inner.error_feedback

    @property
    def granule(self) -> int:  # type: ignore[override]
        return self.inner.granule

    @property
    def message_bytes(self) -> int:  # type: ignore[override]
        return self.inner.message_bytes

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        return self.inner.wire(layout)

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        return {**self.inner.new_state(layout, device), **_zeros(layout, device)}

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Compress a momentum."""
        return self.inner.compress(corrected, layout)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        """Add a momentum."""
        self.inner.add_to(out, payload, scale, layout)

    def template(self, numel: int) -> Payload:
        return self.inner.template(numel)

    def rounds(self, work: Input) -> Rounds:
        """Where nobody owns a shard: the momentum of each rank, to all."""
        momentum = self._own_momentum(work, slice(0, work.gradient.numel()))
        yield from self.inner.rounds(momentum)
        return self._finish(work, momentum.gradient)

    def encode_shard(self, work: Input, shard: slice, owner: int) -> Payload:
        return self.inner.encode_shard(self._own_momentum(work, shard), shard, owner)

    def keep_shard(self, work: Input, shard: slice) -> None:
        self.inner.keep_shard(self._own_momentum(work, shard), shard)

    def sum_shard(self, work: Input, shard: slice, others: Sequence[Payload]) -> Payload:
        return self.inner.sum_shard(self._own_momentum(work, shard), shard, others)

    def write(self, work: Input, parts: Sequence[tuple[slice, Sequence[Payload]]]) -> torch.Tensor:
        momentum = replace(work, gradient=torch.empty_like(work.gradient, dtype=torch.float32))
        self.inner.write(momentum, parts)
        return self._finish(work, momentum.gradient)

    def _own_momentum(self, work: Input, part: slice) -> Input:
        """Return the same work on beta * m + (1 - beta) * gradient, in fp32; beside `part` it holds anything.

        The sum over ranks is multiplied by work.scale. Where that is not 1 / world_size, as with sums in the place of
        averages, m is divided by what is too much.
        """
        values = torch.empty_like(work.gradient, dtype=torch.float32)
        values[part].copy_(work.gradient[part]).mul_(1.0 - self.beta)
        share = self.beta / (work.scale * work.world_size)
        for place, kept in _pieces(work, part):
            values[place].add_(kept * share)
        return replace(work, gradient=values)

    def _finish(self, work: Input, momentum: torch.Tensor) -> torch.Tensor:
        """Write the gradient that leads to a momentum; return whether it is finite."""
        for place, kept in _pieces(work, slice(0, momentum.numel())):
            step = momentum[place] - kept * self.beta  # no fused operation: the same bits on every device
            work.gradient[place] = step.mul_(1.0 / (1.0 - self.beta)).to(work.gradient.dtype)
        work.state.pending.update(by_parameter(KIND, work.layout, momentum))
        return all_finite(work.gradient)


@dataclass(frozen=True)
class DenseMomentum(Compressor):
    """Gradients as they are, in fp32, while the momentum of CompressedMomentum is built (Tang et al. 2021, line 2).

    The result is the average, and m = beta * m + (1 - beta) * average. Bytes: 4 an element, summed.

    Attributes:
        beta: that of CompressedMomentum.
    """

    beta: float = 0.9
    sends_momentum = True
    kind = "cast"
    source = "Tang et al. 2021"
    alike = (KIND,)
    # Nothing is lost; but collectives for what only sends gradients would leave rounds() out.
    compresses = True

    def __post_init__(self) -> None:
        check_number("beta", self.beta, 0, below=1)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        return (Round(4 * layout.numel, torch.float32),)

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        return _zeros(layout, device)

    def rounds(self, work: Input) -> Rounds:
        numel = work.gradient.numel()
        payloads = yield Payload({"values": work.gradient.to(torch.float32)}, numel, summable=True)
        average = sum_of(payloads, "values", numel) * work.scale
        momentum = average * (1.0 - self.beta)
        for place, kept in _pieces(work, slice(0, numel)):
            momentum[place].add_(kept * self.beta)
        work.gradient.copy_(average)
        work.state.pending.update(by_parameter(KIND, work.layout, momentum))
        return all_finite(work.gradient)


def _zeros(layout: Layout, device: torch.device) -> dict[Key, torch.Tensor]:
    """The momentum of each parameter, (numel,) fp32, in units of the gradient, before the first step."""
    return by_parameter(KIND, layout, torch.zeros(layout.numel, dtype=torch.float32, device=device))


def _pieces(work: Input, part: slice) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield places within a part of the bucket, each with the momentum of the elements there."""
    start = 0
    for name, numel in zip(work.layout.names, work.layout.segments, strict=True):
        first, last = max(start, part.start), min(start + numel, part.stop)
        if first < last:
            yield slice(first, last), work.state.current[KIND, name][first - start : last - start]
        start += numel
