"""What is decided for a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvd_compress import collectives
from hvd_compress.collectives import Collective
from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path


@dataclass(frozen=True)
class Decision:
    """How one bucket travels. The same on every rank; two that differ by their reason alone are equal.

    Attributes:
        compressor: which values are sent.
        path: by which collective and algorithms.
        device: where compression runs: "cpu" or "cuda".
        reason: why it was chosen, in words.
        is_trial: whether the bucket only tries to travel so: the choice is not made yet, or about to be made anew.
    """

    compressor: Compressor
    path: Path
    device: str = "cpu"
    reason: str = field(default="", compare=False)
    is_trial: bool = field(default=False, compare=False)

    @property
    def ratio(self) -> float:
        """k / numel of a sparsifier, 1.0 otherwise."""
        return self.compressor.sent_ratio

    @property
    def collective(self) -> str:
        """The name of the path's collective."""
        return self.path.collective

    @property
    def algorithm(self) -> str:
        """Of the collective's main call."""
        return self.path.algorithm

    def facts(self) -> dict[str, Any]:
        """Return what a viewer of a timeline wants to know."""
        return {"candidate": str(self.path), "ratio": self.ratio, "device": self.device}

    def build(self) -> Collective:
        """Return the collective that carries it out. Raises ConfigError where it cannot carry the compressor."""
        return collectives.build(self.compressor, self.path)

    @property
    def no_plan(self) -> str:
        """Why no plan can say it, in words; nothing where compressor and path say all that build() makes."""
        return ""

    @property
    def plan_lacks(self) -> str:
        """What a plan of it would not do, in words; nothing where it does all."""
        return ""
