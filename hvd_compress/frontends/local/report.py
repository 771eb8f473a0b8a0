"""What a round was like: how far ranks were apart, and how alike they have learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RoundReport:
    """One exchange of a fragment. The same on all ranks.

    Attributes:
        spread: of the replicas: the root of the mean of ||own - mean||^2 over ranks, in units of ||mean||, of what the
            fragment's parameters have moved on each.
        cosine: between what two ranks have moved, the mean over pairs weighted by norms; 1 where all learn the same.
    """

    spread: float
    cosine: float

    @classmethod
    def of(cls, energies: Sequence[float], mean_energy: float) -> RoundReport | None:
        """Return that of ranks which have moved by vectors of these squared norms, whose mean has `mean_energy`.

        None where nothing has moved, or not by finite numbers. Of what is compressed the mean is as it was transmitted.
        """
        count, own = len(energies), sum(energies) / len(energies)
        if not own or not mean_energy or not math.isfinite(own):
            return None
        spread = math.sqrt(max(own / mean_energy - 1, 0.0))
        cosine = (count * mean_energy / own - 1) / (count - 1) if count > 1 else 1.0
        return cls(spread, max(-1.0, min(cosine, 1.0)))

    def figures(self) -> dict[str, float]:
        """Return them by the names that loggers show."""
        return {f"local/{name}": value for name, value in asdict(self).items()}
