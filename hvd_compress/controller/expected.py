"""What one bucket is expected to take: curves of the network, and what was measured of its own exchanges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_compress.controller.kernels import Kernels
from hvd_compress.controller.network import Network
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.cost.predict import Costs, Prediction, predict

FURTHEST = 4.0
"""Predictions are corrected by at most this factor: beyond, it was not the network that took the time."""

Equal = Callable[[str, float], float]
"""Takes a scheme and the ratio of an all-gather."""


def _as_it_is(_scheme: str, ratio: float) -> float:
    return ratio


@dataclass(frozen=True)
class Bucket:
    """What the controller knows of a bucket.

    Attributes:
        numel: elements.
        ratio: k / numel of what is sent; where it is chosen as well, the one to begin with.
        candidates: the ways in which it may travel, the same on every rank.
        stages: the collectives of a candidate at a ratio over a number of ranks.
    """

    numel: int
    ratio: float
    candidates: tuple[Path, ...]
    stages: Callable[[Path, float, int], tuple[Stage, ...]]


class Expected:
    """Predicts the exchange of one bucket, by any candidate and with any ratio. The same on all ranks."""

    def __init__(self, bucket: Bucket, network: Network) -> None:
        self.kernels = Kernels()
        self._bucket, self._network = bucket, network
        self._correction = 1.0  # of compressed exchanges: measured over predicted
        self._dense_s: float | None = None

    def renew(self, network: Network) -> None:
        """What was measured of exchanges does not hold any more: it is forgotten, but not what was of kernels."""
        self._network, self._correction, self._dense_s = network, 1.0, None

    def seconds(self, candidate: Path, ratio: float) -> float:
        """Return what the curves and the kernels say."""
        return self._predicted(candidate, ratio).seconds

    def learn(self, measured: Mapping[Path, float], ratio: Callable[[Path], float]) -> None:
        """Take what a round of trials measured; the fastest compressed way says how far off predictions are.

        `ratio` says what each candidate sent.
        """
        dense = [seconds for candidate, seconds in measured.items() if candidate.scheme == "dense"]
        sparse = [(seconds, candidate) for candidate, seconds in measured.items() if candidate.scheme != "dense"]
        self._dense_s = min(dense, default=None)
        if sparse:
            seconds, candidate = min(sparse, key=lambda pair: pair[0])
            predicted = self._predicted(candidate, ratio(candidate))
            factor = (seconds - predicted.compress_s) / max(predicted.communicate_s, 1e-9)
            self._correction = min(FURTHEST, max(1 / FURTHEST, factor))

    def fastest(self, ratio: float) -> Path:
        """Return the compressed way that is expected to take the fewest seconds."""
        sparse = [candidate for candidate in self._bucket.candidates if candidate.scheme != "dense"]
        return min(sparse, key=lambda candidate: self.seconds(candidate, ratio))

    def prices(self, ratios: tuple[float, ...], equal: Equal = _as_it_is) -> dict[float, tuple[float, float]]:
        """Return by ratio the seconds of kernels and of communication, each of the way that takes the fewest in all.

        Args:
            equal: the ratio with which a scheme gains as much; infinity where it cannot.
        """
        bucket, costs = self._bucket, _Remembered(self._network)
        sparse = [candidate for candidate in bucket.candidates if candidate.scheme != "dense"]
        found = {}
        for ratio in ratios:
            priced = []
            sent_by = {scheme: equal(scheme, ratio) for scheme in dict.fromkeys(c.scheme for c in sparse)}
            reaching = [candidate for candidate in sparse if math.isfinite(sent_by[candidate.scheme])]
            for candidate in reaching or sparse:
                sent = sent_by[candidate.scheme] if reaching else ratio
                stages = bucket.stages(candidate, sent, costs.world_size)
                communicate_s = sum(costs.seconds(stage.verb, stage.algorithm, stage.size) for stage in stages)
                priced.append((self.kernels.seconds(candidate.scheme, sent), self._correction * communicate_s))
            found[ratio] = min(priced, key=sum)
        return found

    @property
    def dense_s(self) -> float:
        """Seconds without compression: as measured, or else as expected; infinite where that is no way to go."""
        if self._dense_s is not None:
            return self._dense_s
        dense = [candidate for candidate in self._bucket.candidates if candidate.scheme == "dense"]
        return min((self.seconds(candidate, 1.0) for candidate in dense), default=math.inf)

    def _predicted(self, candidate: Path, ratio: float) -> Prediction:
        stages = self._bucket.stages(candidate, ratio, self._network.world_size)
        return predict(candidate, stages, self._network, self.kernels.seconds(candidate.scheme, ratio))


class _Remembered:
    """Costs that look up each collective once: candidates of one ratio share theirs."""

    def __init__(self, costs: Costs) -> None:
        self._costs, self.world_size = costs, costs.world_size
        self._known: dict[tuple[str, str, float], float] = {}

    def seconds(self, verb: str, algorithm: str, size: float) -> float:
        key = verb, algorithm, size
        if key not in self._known:
            self._known[key] = self._costs.seconds(*key)
        return self._known[key]
