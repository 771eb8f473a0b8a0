"""What is decided for a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvd_compress import schemes
from hvd_compress.compressors import Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.schemes import Scheme
from hvd_compress.schemes.sharded import WHOLE, Shard, Sharded


@dataclass(frozen=True)
class Decision:
    """How one bucket travels. The same on every rank; two that differ by their reason alone are equal.

    Attributes:
        compressor: which values are sent.
        path: by which scheme and algorithms.
        device: where compression runs: "cpu" or "cuda".
        reason: why it was chosen, in words.
        is_trial: whether the bucket only tries to travel so: the choice is not made yet, or about to be made anew.
        shard: the part of the bucket that is sent so in this step; the rest joins the residual.
    """

    compressor: Compressor
    path: Path
    device: str = "cpu"
    reason: str = field(default="", compare=False)
    is_trial: bool = field(default=False, compare=False)
    shard: Shard = WHOLE

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
        candidate = str(self.path) if self.shard == WHOLE else f"{self.path}, {self.shard}"
        return {"candidate": candidate, "ratio": self.ratio, "device": self.device}

    def build(self) -> Scheme:
        """Return the scheme that carries the decision out. Raises ConfigError where it cannot carry the compressor."""
        built = schemes.build(self.compressor, self.path)
        return built if self.shard == WHOLE else Sharded(built, self.shard)
