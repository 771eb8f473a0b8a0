"""Ok-Topk: the largest elements by a threshold that is used for some steps, and regions in which they are summed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.checks import check_ratio, check_whole
from hvd_compress.compressors.base import Input, Round
from hvd_compress.compressors.finite import nan_unless
from hvd_compress.compressors.sparsifier import Selected, Sparsifier, kept_of
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.states import GRADIENT_UNITS, Key
from hvd_compress.payload import Payload

LOCAL, GLOBAL = f"{GRADIENT_UNITS}oktopk.local", f"{GRADIENT_UNITS}oktopk.global"
DENSITY = "oktopk.density"
BINS = 1024
"""Equal parts of a bucket in which selected elements are counted, to balance regions."""
LEAST, MOST, LOWERED = 2 / 3, 4 / 3, 0.8
"""A threshold is good while LEAST * k to MOST * k elements reach it. A global one that fewer reach is lowered to
LOWERED times it."""


@dataclass(frozen=True)
class OkTopk(Sparsifier):
    """Ok-Topk (Li and Hoefler 2022, Algorithms 1 and 2), without its exchange, which is the collective of this name.

    Each rank selects what reaches a local threshold: the k-th largest magnitude of corrected = gradient + residual,
    found every `threshold_steps` steps and used in those between. As residuals grow, elements that reach an old one
    become many. So, beyond the paper, it is found again where fewer than 2/3 k or more than 4/3 k do.

    Carried by an all-gather, everything selected counts. The collective sums it in regions and sends what reaches a
    global threshold.

    Kept beside the residual, for each bucket under its first parameter: both thresholds, and how selected elements are
    distributed. How many are selected is up to the data, so that the host waits for a GPU.

    Bytes of a payload: 8 an element, at most 4/3 k elements.

    Attributes:
        ratio: k / numel, in (0, 1].
        threshold_steps: steps between two evaluations of the thresholds; the paper takes 32 or 128.
        region_steps: steps between two evaluations of the regions; the paper takes 64.
    """

    ratio: float = 0.01
    threshold_steps: int = 32
    region_steps: int = 64
    source = "Li and Hoefler 2022"
    alike = (GLOBAL, DENSITY)
    own_collectives = ("oktopk",)

    def __post_init__(self) -> None:
        if (self.values, self.index_coding) != ("fp32", "none"):
            raise ConfigError("Ok-Topk adds values within its exchange: leave values at 'fp32', index_coding at 'none'")
        check_ratio(self.ratio)
        check_whole("threshold_steps", self.threshold_steps, 1)
        check_whole("region_steps", self.region_steps, 1)

    @property
    def sent_ratio(self) -> float:
        return float(self.ratio)

    def kept(self, layout: Layout) -> int:
        """Return k of a bucket."""
        return kept_of(self.ratio, layout.numel)

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """8 bytes an element that is selected, of which there are at most 4/3 k."""
        return (Round(self.coding.nbytes(layout.numel, _most(self.kept(layout))), fixed=False),)

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        """Both thresholds, () fp32, 0 where there is none yet; the density (BINS,) int64, the same everywhere."""
        return {
            (LOCAL, layout.names[0]): torch.zeros((), dtype=torch.float32, device=device),
            (GLOBAL, layout.names[0]): torch.zeros((), dtype=torch.float32, device=device),
            (DENSITY, layout.names[0]): torch.ones(BINS, dtype=torch.int64, device=device),
        }

    def select(self, x: torch.Tensor) -> Selected:
        return native.topk(x, kept_of(self.ratio, x.numel()))

    def encode(self, work: Input) -> Payload:
        indices, values = self.select_local(work)
        assert work.pending is not None
        native.take(work.pending, indices)
        return self.payload_of([(0, (indices, values))], work.layout)

    def select_local(self, work: Input) -> Selected:
        """Write corrected to work.pending, and return what of it reaches the local threshold; NaN if not all is finite.

        The threshold of the next step becomes part of work.state.pending.
        """
        assert work.residual is not None
        assert work.pending is not None
        x, k, key = work.pending, self.kept(work.layout), (LOCAL, work.layout.names[0])
        finite = native.accumulate(work.gradient, work.residual, out=x)
        tau = 0.0 if work.step % self.threshold_steps == 0 else float(work.state.current[key])
        found = native.threshold_select(x, tau) if tau > 0.0 else None
        if found is None or not LEAST * k <= found[0].numel() <= _most(k):
            found = native.topk(x, k)
            tau = _least(found[1])
        work.state.pending[key] = torch.full_like(work.state.current[key], tau)
        return found[0], nan_unless(finite, found[1])

    def starts(self, work: Input, ranks: int) -> torch.Tensor:
        """Return where the region of each rank but the first begins, (ranks - 1,) int64 on the CPU, ascending.

        Each region holds as many selected elements as the others, where those of a bin lie evenly in it.
        """
        key, numel = (DENSITY, work.layout.names[0]), work.layout.numel
        density = work.state.pending.get(key, work.state.current[key]).cpu().tolist()
        wanted, found, before = sum(density), list[int](), 0  # all in units of 1 / ranks of an element
        for number, count in enumerate(ranks * count for count in density):
            while len(found) < ranks - 1 and before + count >= wanted * (len(found) + 1):
                within = wanted * (len(found) + 1) - before
                found.append(-(-(number * count + within) * numel // (count * BINS)))
            before += count
        return torch.tensor(found, dtype=torch.int64)

    def histogram(self, indices: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return how many selected elements lie in each bin, (BINS,) int32."""
        bins = indices.long() * BINS // max(1, layout.numel)
        return torch.bincount(bins, minlength=BINS).int()

    def set_density(self, work: Input, counts: torch.Tensor) -> None:
        """Remember how selected elements of all ranks are distributed, (BINS,) whole numbers; nowhere as none is."""
        key = (DENSITY, work.layout.names[0])
        own = work.state.current[key]
        work.state.pending[key] = counts.to(own) if bool(counts.any()) else torch.ones_like(own)

    def global_threshold(self, work: Input) -> float:
        """Return the threshold of sums: 0 where there is none yet."""
        return float(work.state.current[GLOBAL, work.layout.names[0]])

    def set_global_threshold(self, work: Input, used: float, sums: torch.Tensor) -> None:
        """Remember the threshold of the next step, from that of this one and all sums that reached it."""
        k, key = self.kept(work.layout), (GLOBAL, work.layout.names[0])
        if used <= 0.0 or sums.numel() > MOST * k:
            used = _least(native.topk(sums, min(k, sums.numel()))[1])
        elif sums.numel() < LEAST * k:
            used *= LOWERED
        work.state.pending[key] = torch.full_like(work.state.current[key], used)


def _most(k: int) -> int:
    return int(MOST * k)


def _least(values: torch.Tensor) -> float:
    """Return the least magnitude; 0 of none, or where one is not finite, so that nothing is below it."""
    least = float(values.abs().min()) if values.numel() else 0.0
    return least if math.isfinite(least) else 0.0
