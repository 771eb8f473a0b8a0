"""Nothing is exchanged: what the best compression could give."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Collective
from hvd_compress.collectives.noop import NoOp as NoOpCollective
from hvd_compress.compressors import Cast
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request
from hvd_compress.settings import Settings

log = logging.getLogger("hvd_compress")


@dataclass(frozen=True)
class NoOp(PolicySettings):
    """What Compression.noop() was given: nothing."""

    def make(self, request: Request, settings: Settings) -> DecisionPolicy:
        return NoOpPolicy()


class Alone(Decision):
    """A bucket that each rank keeps to itself."""

    def build(self) -> Collective:
        return NoOpCollective(self.compressor, self.path)

    @property
    def no_plan(self) -> str:
        return "nothing is exchanged"


class NoOpPolicy(DecisionPolicy):
    """No bucket travels, in no step."""

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        super().prepare(engine, parameters)
        if engine.rank == 0:
            log.warning(
                "hvd_compress: noop() exchanges no gradients, so each rank trains by itself: take it to see how long a "
                "step takes without them, and no result of the training"
            )

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        return [Alone(Cast(), NoOpCollective.path, each.device_type, "nothing is exchanged") for each in buckets]
