"""What Compression.covap() was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hvd_compress.checks import check_flag, check_whole
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
        if self.interval != "auto":
            check_whole("interval", self.interval, 1, LONGEST, of="steps", hint="'auto' has it measured")
        check_flag("shard", self.shard)
        check_flag("hold_unsent", self.hold_unsent)

    def make(self, request: Request, settings: Settings) -> CovapPolicy:
        if self.interval == "auto":
            return AutoCovapPolicy(request, self.shard, self.hold_unsent)
        return CovapPolicy(request, self.interval, self.shard, self.hold_unsent)
