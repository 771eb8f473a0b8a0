"""What Compression.covap() was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hvd_compress.errors import ConfigError
from hvd_compress.papers.covap.auto import AutoCovapPolicy
from hvd_compress.papers.covap.policy import DEFAULT_INTERVAL, CovapPolicy
from hvd_compress.request.request import WORDS, PolicySettings, Request
from hvd_compress.settings import Settings

LONGEST = 1000
"""Steps: what waits for longer is of another training."""


@dataclass(frozen=True)
class Covap(PolicySettings):
    """How each shard waits for its turn; by what it is sent then is the request's.

    Attributes:
        interval: steps of which one sends a shard; "auto" for as many as let the backward pass hide what is sent.
        shard: cut large buckets, so that steps send about as much; else each bucket is one shard.
        hold_unsent: a parameter of which a step sends nothing has no gradient in it, and its optimizer leaves it as it
            is; else momentum and weight decay move it by a gradient of zero.

    Raises ConfigError for an interval that is neither "auto" nor a whole number from 1 to LONGEST.
    """

    interval: int | Literal["auto"] = DEFAULT_INTERVAL
    shard: bool = True
    hold_unsent: bool = False
    takes: ClassVar[tuple[str, ...]] = WORDS

    def __post_init__(self) -> None:
        known = self.interval == "auto" or (isinstance(self.interval, int) and not isinstance(self.interval, bool))
        if not known or (self.interval != "auto" and not 1 <= self.interval <= LONGEST):
            raise ConfigError(
                f"interval = {self.interval!r} must be a whole number of steps, 1 to {LONGEST:,}, or 'auto'"
            )
        for name in ("shard", "hold_unsent"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be True or False")

    def make(self, request: Request, settings: Settings) -> CovapPolicy:
        if self.interval == "auto":
            return AutoCovapPolicy(request, self.shard, self.hold_unsent)
        return CovapPolicy(request, self.interval, self.shard, self.hold_unsent)
