"""Deep Gradient Compression: sampled thresholds, and momentum that is summed before it is sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_flag, check_number, check_ratio, check_whole
from hvd_compress.compressors.base import Input, Round, spans
from hvd_compress.compressors.sparsifier import Selected, Sparsifier, kept_of
from hvd_compress.feedback.states import GRADIENT_UNITS, Key, by_parameter
from hvd_compress.payload import Payload

KIND = f"{GRADIENT_UNITS}dgc.velocity"
SAMPLED = 0.01
FEWEST_SAMPLED = 4096
"""Elements of which the threshold is taken: this share, but no fewer."""
LINE = 16
"""Elements that are sampled together."""
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
        check_number("momentum", self.momentum, 0, below=1)
        check_whole("warmup_steps", self.warmup_steps, 0)
        if self.clip is not None:
            check_number("clip", self.clip, 0, above=True)
        check_flag("layerwise", self.layerwise)

    def refuses_momentum(self, momentum: float, adapts: bool) -> str:
        return "pass one without, as the compression has it; or dgc(momentum=0)" if momentum and self.momentum else ""

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
        return by_parameter(KIND, layout, torch.zeros(layout.numel, dtype=torch.float32, device=device))

    def select(self, x: torch.Tensor) -> Selected:
        return _sampled(x, kept_of(self.ratio, x.numel()))

    def encode(self, work: Input) -> Payload:
        residual, pending = work.residual, work.pending
        assert residual is not None
        assert pending is not None
        gradient = self._clipped(work.gradient)
        velocity = self._velocity(work) if self.momentum else None
        ratio, parts = self.ratio_in(work.step), []
        for start, stop in self.spans(work.layout):
            part = slice(start, stop)
            momentum = velocity and native.Momentum(self.momentum, velocity[0][part], velocity[1][part])
            fed = _Fed(gradient[part], residual[part], pending[part], momentum)
            parts.append((start, fed.select(kept_of(ratio, stop - start))))
        return self.payload_of(parts, work.layout, pending)

    def _clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.clip is None:
            return gradient
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        shorter: torch.Tensor = gradient * (self.clip / norm).clamp(max=1.0).to(gradient.dtype)
        return shorter

    def _velocity(self, work: Input) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the velocity (numel,), and memory for its successor, which is pending from now on."""
        layout, state = work.layout, work.state
        keys = [(KIND, name) for name in layout.names]
        current, spare = [state.current[key] for key in keys], [state.spare[key] for key in keys if key in state.spare]
        before = flat_view(current)
        if before is None:
            before = torch.cat(current)
        after = flat_view(spare) if len(spare) == len(keys) else None
        if after is None:
            after = torch.empty_like(before)
        state.pending.update(by_parameter(KIND, layout, after))
        return before, after


@dataclass(frozen=True)
class _Fed:
    """What is selected from: corrected = residual + gradient, or with momentum residual + velocity.

    `pending` and momentum.out receive the two, with zeros where elements are selected.
    """

    gradient: torch.Tensor
    residual: torch.Tensor
    pending: torch.Tensor
    momentum: native.Momentum | None

    def select(self, k: int) -> Selected:
        """Select about k elements; of what is not finite at least one."""
        tau = _limit(self._sample(), k, self.gradient.numel())
        finite = math.isfinite(tau)
        tau = tau if finite else math.inf
        indices, values = native.threshold_accumulate(self.gradient, self.residual, tau, self.pending, self.momentum)
        if finite and indices.numel() < LEAST * k:
            indices, values = self._lower(indices, values, tau, k)
        return (indices, values) if indices.numel() <= _most(k) else self._cut(indices, values, k)

    def _sample(self) -> torch.Tensor:
        """Return a sample of corrected, rounded as the kernel does."""
        added = _lines(self.gradient)
        if self.momentum is not None:
            added = (_lines(self.momentum.velocity) * self.momentum.factor).add_(added)
        return (_lines(self.residual) + added).view(-1)

    def _lower(self, indices: torch.Tensor, values: torch.Tensor, tau: float, k: int) -> Selected:
        """Lower the limit, and add what reaches it."""
        for _ in range(ROUNDS - 1):
            tau *= LOWERED
            more, _ = native.threshold_select(self.pending, tau)
            if indices.numel() + more.numel() >= LEAST * k:
                break
        added = native.take(self.pending, more)
        if self.momentum is not None:
            native.take(self.momentum.out, more)
        both, order = torch.cat([indices, more]).sort()
        return both, torch.cat([values, added])[order]

    def _cut(self, indices: torch.Tensor, values: torch.Tensor, k: int) -> Selected:
        """Keep the k largest; the others go back to where they came from."""
        largest, kept = native.topk(values, k)
        others = torch.ones_like(indices, dtype=torch.bool).index_fill_(0, largest.long(), False)
        back = indices[others]
        native.scatter_set(back, values[others], self.pending, 1.0)
        if self.momentum is not None:
            velocity = native.gather(self.momentum.velocity, back).mul_(self.momentum.factor)
            native.scatter_set(back, velocity.add_(native.gather(self.gradient, back)), self.momentum.out, 1.0)
        return indices[largest.long()], kept


def _most(k: int) -> int:
    return int(MOST * k)


def _lines(x: torch.Tensor) -> torch.Tensor:
    """Return a sample of x: LINE neighbours (lines, LINE) from each so many lines, or all of x where it is small.

    Single elements would each cost a cache line of memory: at 1 % half the time of a whole pass.
    """
    lines_apart = max(1, x.numel() // max(FEWEST_SAMPLED, int(SAMPLED * x.numel()))) | 1
    if lines_apart == 1:
        return x
    lines = x.numel() // (lines_apart * LINE)
    return x[: lines * lines_apart * LINE].view(lines, -1)[:, :LINE]


def _limit(sample: torch.Tensor, k: int, numel: int) -> float:
    """Return the magnitude that about k of numel elements reach, from a sample of them; zeros never do."""
    if not numel:
        return TINY
    return max(float(native.topk(sample, kept_of(k / numel, sample.numel()))[1].abs().min()), TINY)


def _sampled(x: torch.Tensor, k: int) -> Selected:
    """Select about k elements of x by the k-th largest magnitude of a sample, scaled to its size."""
    tau = _limit(_lines(x).reshape(-1), k, x.numel())
    if not math.isfinite(tau):
        return native.topk(x, k)
    for _ in range(ROUNDS):
        indices, values = native.threshold_select(x, tau)
        if indices.numel() >= LEAST * k:
            break
        tau *= LOWERED
    if indices.numel() <= _most(k):
        return indices, values
    largest, values = native.topk(values, k)
    return indices[largest.long()], values


def flat_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the tensor (numel,) that holds these flat tensors of one dtype one after the other; None where they do
    not lie so in one piece of memory.
    """
    place = 0
    for tensor in tensors:
        same = tensor.untyped_storage().data_ptr() == tensors[0].untyped_storage().data_ptr()
        if tensor.numel() and not (same and tensor.storage_offset() == tensors[0].storage_offset() + place):
            return None
        place += tensor.numel()
    return tensors[0].as_strided((place,), (1,)) if tensors else None
