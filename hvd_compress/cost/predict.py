"""How long a bucket would take each way, and which is fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hvd_compress.cost.paths import Path, Stage
from hvd_compress.errors import ConfigError


class Costs(Protocol):
    """What prices a call: `formulas.Formulas`, or `curves.Curves` that were measured."""

    @property
    def world_size(self) -> int: ...

    def seconds(self, verb: str, algorithm: str, size: float) -> float:
        """Return the seconds of one call with `size` bytes in each rank's tensor."""
        ...


@dataclass(frozen=True)
class Prediction:
    """The seconds of one bucket, broken down. `stages` holds each call with its seconds, in order."""

    candidate: Path
    compress_s: float
    stages: tuple[tuple[Stage, float], ...]
    decompress_s: float

    @property
    def communicate_s(self) -> float:
        return sum(seconds for _, seconds in self.stages)

    @property
    def seconds(self) -> float:
        return self.compress_s + self.communicate_s + self.decompress_s


def predict(
    candidate: Path,
    stages: Sequence[Stage],
    costs: Costs,
    compress_s: float = 0.0,
    decompress_s: float = 0.0,
) -> Prediction:
    """Return what a bucket would take.

    Args:
        candidate: the path by which it would travel.
        stages: its calls, from `collectives.stages`, which takes their bytes from the compressor.
        costs: formulas, or curves: the same on all ranks, so that the prediction is.
        compress_s, decompress_s: as measured or estimated by the caller, over ranks alike.

    Raises:
        ConfigError: a call that `costs` knows nothing of, such as one of a part of the ranks.
    """
    for stage in stages:
        if stage.ranks not in (None, costs.world_size):
            raise ConfigError(
                f"{candidate} launches a collective of {stage.ranks} ranks, and costs are known of {costs.world_size}"
            )
    priced = tuple((stage, costs.seconds(stage.verb, stage.algorithm, stage.size)) for stage in stages)
    return Prediction(candidate, compress_s, priced, decompress_s)


def fastest(predictions: Iterable[Prediction]) -> Prediction:
    """Return the prediction with the fewest seconds, the first among equals."""
    return min(predictions, key=lambda prediction: prediction.seconds)
