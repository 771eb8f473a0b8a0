"""How long a bucket would take each way, and which is fastest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from hvd_compress.cost.candidates import Candidate, Stage


class Costs(Protocol):
    """What prices a collective: `formulas.Formulas`, or `curves.Curves` that were measured."""

    @property
    def world_size(self) -> int: ...

    def seconds(self, verb: str, algorithm: str, size: float) -> float:
        """Return the seconds of one collective with `size` bytes in each rank's tensor."""
        ...


@dataclass(frozen=True)
class Prediction:
    """The seconds of one bucket, broken down. `stages` holds each collective with its seconds, in order."""

    candidate: Candidate
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
    candidate: Candidate,
    numel: int,
    ratio: float,
    costs: Costs,
    element_bytes: int = 4,
    compress_s: float = 0.0,
    decompress_s: float = 0.0,
) -> Prediction:
    """Return what a bucket of `numel` elements would take.

    Args:
        ratio: k / numel of what is sent, in (0, 1]; without meaning for dense schemes.
        costs: formulas, or curves: the same on all ranks, so that the prediction is.
        element_bytes: of the gradient's dtype, which a dense scheme sends. Sparse ones send 4 and 4.
        compress_s, decompress_s: as measured or estimated by the caller, over ranks alike.

    Raises:
        ConfigError: a ratio outside (0, 1], or a collective that `costs` knows nothing of.
    """
    stages = candidate.stages(numel, ratio, element_bytes, costs.world_size)
    priced = tuple((stage, costs.seconds(stage.verb, stage.algorithm, stage.size)) for stage in stages)
    return Prediction(candidate, compress_s, priced, decompress_s)


def fastest(predictions: Iterable[Prediction]) -> Prediction:
    """Return the prediction with the fewest seconds, the first among equals."""
    return min(predictions, key=lambda prediction: prediction.seconds)
