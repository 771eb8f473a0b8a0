"""The ratio of one bucket: what each costs and gains, and which one is taken. The same on all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.papers.flexible.kernels import Kernels
from hvd_compress.papers.flexible.settings import RatioSettings
from hvd_compress.papers.flexible.tradeoff import Point, knee, nsga2
from hvd_compress.policies.prices import Prices, cheapest
from hvd_compress.policies.roots import STAR, VAR

NEW_SHARE = 0.5
"""Weight of new gains against those before: an exponentially weighted mean, as the paper's threshold is applied to."""


def _by_star(path: Path) -> Path:
    """VAR is STAR by another root, which is chosen beside it."""
    return replace(path, collective=STAR) if path.collective == VAR else path


class BucketRatio:
    """Chooses a ratio and a path for one bucket, or to do without compression where no ratio takes less time.

    It begins with the ratio in the middle.

    Attributes:
        compressor, path: by which it travels.
        kernels: what was measured of its compression.
        gains: share of ||corrected||^2 that is sent with each candidate ratio, in their order; empty at first.
        known_gain: what the ratio in use gained when it was chosen.
        reason: why, in words.
    """

    def __init__(
        self, layout: Layout, compressor: Compressor, paths: Sequence[Path], dense: Path | None, asked: RatioSettings
    ) -> None:
        """`paths`: those by which the compressor may carry it; `dense`: the one without compression, where it may."""
        self._layout, self._asked, self._paths, self._dense = layout, asked, paths, dense
        self._sparsifier = compressor
        self.compressor, self.path = compressor.with_ratio(asked.start), paths[0]
        self.kernels = Kernels()
        self.gains: tuple[float, ...] = ()
        self.known_gain = self.expected_s = math.nan
        self.reason = "nothing is known yet"

    @property
    def gain(self) -> float:
        """What the ratio in use gains, as far as is known."""
        ratios = self._asked.ratios
        known = bool(self.gains) and self.compressor.sent_ratio in ratios
        return self.gains[ratios.index(self.compressor.sent_ratio)] if known else math.nan

    @property
    def moved(self) -> bool:
        """Whether the gain of the ratio in use has left what it was, by more than was allowed."""
        return abs(self.gain - self.known_gain) > self._asked.gain_change * self.known_gain

    def learn(self, gains: Sequence[float], weight: float = NEW_SHARE) -> None:
        """Take the gain of each candidate, with a weight against those before; none, should one not be finite."""
        if all(map(math.isfinite, gains)):
            fresh = [max(gain, 1e-12) for gain in gains]
            before = self.gains or fresh
            self.gains = tuple((1 - weight) * old + weight * new for old, new in zip(before, fresh, strict=True))

    def watch(self, sent: float) -> None:
        """Take what a step really sent, where that alone can be seen of the gains."""
        if math.isfinite(sent) and self.compressor.sent_ratio in self._asked.ratios and self.gains:
            at = self._asked.ratios.index(self.compressor.sent_ratio)
            self.learn([*self.gains[:at], sent, *self.gains[at + 1 :]])

    def fastest(self, ratio: float, prices: Prices) -> tuple[float, float, Path]:
        """Return the seconds of kernels and of communication at a ratio, and the path that takes the fewest in all."""
        compressor = self._sparsifier.with_ratio(ratio)
        kernels_s = {path: self.kernels.seconds(compressor, path) for path in self._paths}
        found = [collectives.build(compressor, path) for path in self._paths]
        communicate_s, collective = cheapest(found, self._layout, prices, kernels_s)
        return kernels_s[collective.path], communicate_s, collective.path

    def takes(self, compressor: Compressor, path: Path) -> bool:
        """Whether it may travel so."""
        if not compressor.compresses:
            return path == self._dense
        known = [self._sparsifier.with_ratio(ratio) for ratio in self._asked.ratios]
        return compressor in known and _by_star(path) in self._paths

    def go_on(self, compressor: Compressor, path: Path, gains: Sequence[float]) -> None:
        """Travel as before a checkpoint; `gains` as the attribute."""
        self.compressor, self.path, self.gains = compressor, _by_star(path), tuple(gains)
        self.known_gain, self.reason = self.gain, "chosen before the checkpoint"

    def choose(self, prices: Prices) -> None:
        """Choose from the gains that are known."""
        ways = [(ratio, *self.fastest(ratio, prices)) for ratio in self._asked.ratios]
        options = {Point(r, k, s, gain): path for (r, k, s, path), gain in zip(ways, self.gains, strict=True)}
        dense_s = self._dense_s(prices)
        paying = [option for option in options if option.compress_s + option.communicate_s < dense_s]
        if not paying and self._dense is not None:
            self.compressor, self.path, self.known_gain, self.expected_s = Cast(), self._dense, math.nan, dense_s
            least_s = min(option.compress_s + option.communicate_s for option in options)
            self.reason = f"dense: {1e3 * dense_s:.2f} ms expected, and no ratio takes less than {1e3 * least_s:.2f}"
            return
        chosen = knee(nsga2(paying) if self._asked.solver == "nsga2" and len(paying) > 1 else paying)
        self.compressor, self.path = self._sparsifier.with_ratio(chosen.ratio), options[chosen]
        self.known_gain, self.expected_s = chosen.gain, chosen.compress_s + chosen.communicate_s
        taken = f"{1e3 * chosen.compress_s:.2f} + {1e3 * chosen.communicate_s:.2f} ms expected"
        beside = f", dense {1e3 * dense_s:.2f}" if self._dense is not None else ""
        self.reason = f"the knee: gain {chosen.gain:.3f}, {taken}{beside}"

    def _dense_s(self, prices: Prices) -> float:
        """Return what it takes without compression; infinity where it may not travel so, or that was not measured."""
        if self._dense is None:
            return math.inf
        return cheapest([collectives.build(Cast(), self._dense)], self._layout, prices)[0]
