"""SIDCo: send what lies above a threshold that a fitted distribution of magnitudes gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_choice, check_ratio
from hvd_compress.compressors.base import Input, Round
from hvd_compress.compressors.finite import nan_unless
from hvd_compress.compressors.sparsifier import Selected, Sparsifier, kept_of
from hvd_compress.feedback.states import Key
from hvd_compress.papers.family.tails import Magnitudes, Moments, exponential, gamma, pareto
from hvd_compress.payload import Payload

KIND = "sidco.stages"
FIRST_RATIO = 0.25
"""That the first of several stages keeps."""
EVERY, TOLERANCE = 5, 0.2
"""After so many steps, and where the achieved ratio is off by more, another number of stages is tried."""
BEGIN = 2
"""Stages."""
LARGEST_SHARE = 0.5
"""A later stage keeps no larger share of what the one before kept: so many stages there may be."""
MOST = 2
"""Of more than MOST * k elements that reach the threshold the largest are sent."""
TINY = torch.finfo(torch.float32).tiny

Fit = Callable[[Moments, float], float]
FITS: dict[str, tuple[Fit, Fit]] = {
    "exponential": (exponential, exponential),
    "gamma": (gamma, pareto),
    "pareto": (pareto, pareto),
}
"""Of all magnitudes, and of those beyond a threshold (Section 2 of the paper: SIDCo-E, SIDCo-GP, SIDCo-P)."""


@dataclass(frozen=True)
class Stages:
    """How many stages there are, and how well that does.

    Attributes:
        count: of stages.
        direction: 1 or -1, in which the next change goes.
        steps: since the last look.
        achieved: sum over these of the number of elements that reached the threshold / k.
        error: |ln(achieved / steps)| at the look that led to this count; a large number before any.
    """

    count: int
    direction: int = 1
    steps: int = 0
    achieved: float = 0.0
    error: float = 1e9

    @classmethod
    def read(cls, kept: torch.Tensor, most: int) -> Stages:
        """Return what a tensor of tensor() holds, with 1 to `most` stages: it may be of a run with another ratio."""
        count, direction, steps, achieved, error = kept.tolist()
        return cls(round(min(max(1, count), most)), 1 if direction > 0 else -1, round(steps), achieved, error)

    def tensor(self, device: torch.device) -> torch.Tensor:
        """Return it as (5,) fp64."""
        return torch.tensor(astuple(self), dtype=torch.float64, device=device)

    def after(self, achieved: float, most: int) -> Stages:
        """Return what follows from another step, with up to `most` stages.

        One more stage follows the tail more closely, whether it is heavier or lighter than what is fitted; where that
        made it worse the next change goes the other way.
        """
        seen = replace(self, steps=self.steps + 1, achieved=self.achieved + achieved)
        if seen.steps < EVERY:
            return seen
        mean = seen.achieved / seen.steps
        if abs(mean - 1) <= TOLERANCE:
            return Stages(self.count, self.direction)
        error = abs(math.log(max(mean, TINY)))
        direction = -self.direction if error > self.error else self.direction
        if not 1 <= self.count + direction <= most:
            direction = -direction
        return Stages(min(max(1, self.count + direction), most), direction, error=error)


@dataclass(frozen=True)
class SIDCo(Sparsifier):
    """Threshold from a fit of the magnitudes, in stages, with error feedback (Abdelmoniem et al. 2021, "An Efficient
    Statistical-based Gradient Compression Technique for Distributed Training Systems", Algorithm 1).

    A distribution is fitted to the magnitudes by their moments, and gives the threshold that a quarter of them should
    reach. To what those are beyond it the next distribution is fitted (peaks over a threshold), and so on; the later
    stages share the rest of the ratio equally. Every 5 steps the number of stages changes by one where the elements
    that reached the last threshold were on average more than 20 % more or fewer than k. The paper passes over all
    elements for the moments of each stage; here magnitudes are counted in fine bins once. On a GPU the host waits.

    Elements that are 0 are not fitted and not sent. Bytes of a payload: 8 an element, or fewer (SparseCoding); about k
    elements, of more than 2 k the largest 2 k; the largest of all where none reaches a threshold.

    Attributes:
        ratio: k / numel, in (0, 1].
        distribution: "exponential" in all stages; "gamma" in the first and generalised Pareto in the others; "pareto",
            generalised, in all.
    """

    ratio: float = 0.01
    distribution: str = "exponential"
    source = "Abdelmoniem et al. 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.ratio)
        check_choice("distribution", self.distribution, tuple(FITS))

    @property
    def sent_ratio(self) -> float:
        return float(self.ratio)

    @property
    def most_stages(self) -> int:
        """How many stages there may be."""
        if self.ratio >= FIRST_RATIO:
            return 1
        return 1 + max(1, math.floor(math.log(self.ratio / FIRST_RATIO) / math.log(LARGEST_SHARE)))

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """The most that can be sent: 2 k elements."""
        most = min(MOST * kept_of(self.ratio, layout.numel), layout.numel)
        return (Round(self.coding.most_bytes(layout.numel, most), fixed=False),)

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        """The Stages of the bucket, (5,) fp64, with each of its parameters; that of the first counts."""
        begin = Stages(min(BEGIN, self.most_stages)).tensor(device)
        return {(KIND, name): begin for name in layout.names}

    def select(self, x: torch.Tensor) -> Selected:
        return self._selected(x, min(BEGIN, self.most_stages))[0]

    def encode(self, work: Input) -> Payload:
        pending, layout = work.pending, work.layout
        assert work.residual is not None
        assert pending is not None
        finite = native.accumulate(work.gradient, work.residual, out=pending)
        stages = Stages.read(work.state.current[KIND, layout.names[0]], self.most_stages)
        (indices, _), reached = self._selected(pending, stages.count)
        values = nan_unless(finite, native.take(pending, indices))
        if reached is not None:
            achieved = reached / kept_of(self.ratio, layout.numel)
            kept = stages.after(achieved, self.most_stages).tensor(pending.device)
            work.state.pending.update({(KIND, name): kept for name in layout.names})
        return self.payload_of([(0, (indices, values))], layout, pending)

    def _selected(self, x: torch.Tensor, stages: int) -> tuple[Selected, int | None]:
        """Select in x (numel,); return how many reached the threshold, too, or None where there was none to find."""
        k, magnitudes = kept_of(self.ratio, x.numel()), Magnitudes.of(x)
        if not magnitudes.finite:
            return native.topk(x, k), None
        all_of_them, above = magnitudes.beyond(0.0), 0.0
        if all_of_them.count == 0:
            return native.topk(x, 0), None
        for fit, share in self._stages(min(1.0, k / all_of_them.count), stages):
            beyond = magnitudes.beyond(above)
            if beyond.count == 0:
                break
            above += fit(beyond, share)
        indices, values = native.threshold_select(x, max(above, TINY))
        reached = values.numel()
        if reached == 0:  # what is large enough to mislead a fit must be sent some time
            return native.topk(x, min(k, round(all_of_them.count))), 0
        if reached > MOST * k:
            places, values = native.topk(values, MOST * k)
            indices = indices[places.long()]
        return (indices, values), reached

    def _stages(self, ratio: float, stages: int) -> Iterator[tuple[Fit, float]]:
        """Yield the fit of each stage and what it keeps of what the one before kept; multiplied, the ratio."""
        first, later = FITS[self.distribution]
        if stages == 1 or ratio >= FIRST_RATIO:
            yield first, ratio
            return
        yield first, FIRST_RATIO
        for _ in range(stages - 1):
            yield later, (ratio / FIRST_RATIO) ** (1 / (stages - 1))
