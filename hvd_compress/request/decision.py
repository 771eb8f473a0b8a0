"""What is decided for a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvd_compress import schemes
from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.schemes import Scheme


@dataclass(frozen=True)
class Decision:
    """How one bucket travels. The same on every rank; two that differ by their reason alone are equal.

    Attributes:
        compressor: which values are sent.
        path: by which scheme and algorithms.
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
    def scheme(self) -> str:
        """The name of the path's scheme."""
        return self.path.scheme

    @property
    def algorithm(self) -> str:
        """Of the scheme's main collective."""
        return self.path.algorithm

    def facts(self) -> dict[str, Any]:
        """Return what a viewer of a timeline wants to know."""
        return {"candidate": str(self.path), "ratio": self.ratio, "device": self.device}

    def build(self) -> Scheme:
        """Return the scheme that carries the decision out. Raises ConfigError where it cannot carry the compressor."""
        return schemes.build(self.compressor, self.path)

    @property
    def no_plan(self) -> str:
        """Why no plan can say it, in words; nothing where compressor and path say all that build() makes."""
        return ""

    @property
    def plan_lacks(self) -> str:
        """What a plan of it would not do, in words; nothing where it does all."""
        return ""
