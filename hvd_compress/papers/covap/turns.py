"""What is decided for a bucket whose shards take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvd_compress.collectives import Collective
from hvd_compress.papers.covap.sharded import WHOLE, Shard, Sharded
from hvd_compress.papers.covap.skip import SKIP, Skip
from hvd_compress.request.decision import Decision


@dataclass(frozen=True)
class Turn(Decision):
    """What a step sends of a bucket: a shard, all of it, or by the path SKIP nothing. The rest joins the residual.

    Attributes:
        shard: what is sent.
        holds: whether parameters of which nothing is sent have no gradient after the step, and not one of zeros.
    """

    shard: Shard = WHOLE
    holds: bool = False

    def facts(self) -> dict[str, Any]:
        shard = {} if self.shard == WHOLE else {"candidate": f"{self.path}, {self.shard}"}
        return {**super().facts(), **shard}

    def build(self) -> Collective:
        if self.path == SKIP:
            return Skip(self.compressor, self.holds)
        built = super().build()
        return built if self.shard == WHOLE else Sharded(built, self.shard, self.holds)

    @property
    def no_plan(self) -> str:
        if self.path != SKIP and self.shard == WHOLE:
            return ""
        return (
            "not all of it is sent in the coming step, and a plan is the same in each: pass Compression.covap() itself"
        )
