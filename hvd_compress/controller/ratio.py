"""The ratio of one bucket: what every candidate costs and gains, which one is taken, and when it is time to ask again.

Pure: what comes in is the same on all ranks, so what comes out is the same, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.shares import Shares
from hvd_compress.controller.tradeoff import Option, distance_on, knee, nsga2, pareto_front, smallest_with_gain

TIME_MARGIN = 0.05
"""Where a gain is wanted and reached: what share of its time another ratio must save to replace the one in use."""
KNEE_MARGIN = 0.02
"""Else: how much nearer to the ideal it must lie, where 1 is the range of an objective. Around a knee this is flat."""
PACE_MARGIN = 0.1
"""Where the pace counts: how much faster another ratio must gain."""
NEW_SHARE = 0.5
"""Weight of new gains against those before: an exponentially weighted mean, as the paper's threshold is applied to."""

Prices = Mapping[float, tuple[float, float]]
"""Seconds of compressing (and decompressing) and of communicating a bucket in the fastest compressed way, by ratio."""


class RatioChooser:
    """Chooses among the candidate ratios of one bucket, and keeps one.

    learn() takes gains; moved says whether they left those by which the choice was made; choose() makes it.

    Attributes:
        ratio: the one in use, as an all-gather sends it; see ratio_of().
        known_gain: what it gained when it was chosen, or in the first look at it after that.
        gains: share of ||corrected||^2 that is sent with each candidate, in the order of goal.ratios; empty at first.
        pays: whether it is expected to take less than no compression.
        reason: why this ratio, in words.
    """

    def __init__(self, goal: AutoRatio) -> None:
        self._goal = goal
        self.ratio = goal.start
        self.gains: tuple[float, ...] = ()
        self.reason, self.pays = "nothing is known yet", True
        self.known_gain = self._sent = math.nan
        self._revisable = False
        self._shares = Shares()
        self._curve: tuple[float, ...] = ()  # the gains by which the choice was made

    @property
    def gain(self) -> float:
        """What the ratio in use gains, as far as is known."""
        return self.gains[self._goal.ratios.index(self.ratio)] if self.gains else math.nan

    @property
    def seen_gain(self) -> float:
        """What the ratio in use gained when it was last looked at."""
        return self.gain if self._goal.gain == "curve" else self._sent

    @property
    def moved(self) -> bool:
        """Whether the gain of the ratio in use has left what it was, by more than was allowed."""
        return abs(self.seen_gain - self.known_gain) > self._goal.gain_change * self.known_gain

    @property
    def highest(self) -> float:
        """The upper bound of what is sent, by any scheme."""
        return self._goal.ratios[-1]

    def ratio_of(self, scheme: str) -> float:
        """Return the ratio with which a scheme gains what the one in use promises; infinity if none does."""
        return self.for_same_gain(scheme, self.ratio)

    def for_same_gain(self, scheme: str, ratio: float) -> float:
        """Return the ratio with which a scheme would gain what `ratio` does by an all-gather; infinity if none does."""
        if self._shares.of(scheme) == 1.0:
            return ratio
        return self._shares.ratio(scheme, self._curve[self._goal.ratios.index(ratio)], self._goal.ratios, self._curve)

    def saw(self, scheme: str, sent: float, gains: Sequence[float]) -> None:
        """Take what a step really sent by a scheme, and the gain of each candidate in the same step.

        What an all-gather sends is what ratios are stated in, also where it selects layer by layer.
        """
        ratio = self.ratio_of(scheme)
        if scheme not in ("allgather", "dense") and ratio in self._goal.ratios:
            self._shares.learn(scheme, sent, gains[self._goal.ratios.index(ratio)])

    def adopt(self, used: str) -> None:
        """What was seen of gains and shares counts from now on: ratio_of() and for_same_gain() follow from it."""
        self._curve = self.gains
        self._shares.adopt(used)

    def share_moved(self, scheme: str) -> str:
        """Return in words that a scheme does not send what was counted on, or nothing."""
        return self._shares.moved(scheme)

    def learn(self, gains: Sequence[float], weight: float = NEW_SHARE) -> None:
        """Take the gain of each candidate, with a weight against those before; none, should one not be finite."""
        if not all(math.isfinite(gain) for gain in gains):
            return
        fresh = tuple(max(gain, 1e-12) for gain in gains)
        before = self.gains or fresh
        self.gains = tuple((1 - weight) * old + weight * new for old, new in zip(before, fresh, strict=True))

    def watch(self, sent: float) -> None:
        """Take what a compressed step really sent, where that alone can be seen of the gains."""
        if not math.isfinite(sent):
            return
        if math.isnan(self._sent):  # after a rollout, which is shorter than it takes a residual to grow
            self._sent = self.known_gain = sent
        self._sent = (1 - NEW_SHARE) * self._sent + NEW_SHARE * sent

    def options(self, prices: Prices) -> list[Option]:
        """Return the candidates with their objectives, in the order of goal.ratios."""
        return [Option(r, *prices[r], gain) for r, gain in zip(self._goal.ratios, self.gains, strict=True)]

    def choose(self, prices: Prices, dense_s: float, beside_s: float = 0.0) -> None:
        """Choose from the gains that are known.

        Args:
            prices: of the fastest compressed way at a ratio.
            dense_s: seconds without compression. A ratio that takes longer sends less for more: it is left out, unless
                a gain is wanted.
            beside_s: this bucket's part of a step's seconds beside the exchanges: where they are many, those of the
                exchange count less.
        """
        options = self.options(prices)
        paying = [option for option in options if option.compress_s + option.communicate_s < dense_s]
        chosen = next(option for option in options if option.ratio == self.ratio)
        if self._goal.target == "pace":
            chosen = _fastest_gain(options, chosen, dense_s, beside_s)
        else:
            within = paying if paying and self._goal.wanted_gain is None else options
            best = self._best(within, beside_s)
            if not self._keeps(chosen, best, within, beside_s):
                chosen = best
        self.ratio, self.known_gain, self.pays = chosen.ratio, chosen.gain, chosen in paying
        self._sent = math.nan
        self.reason = self._words(chosen)

    def revise_once(self) -> bool:
        """Whether to choose again after a round of trials, which has shown more: once for each call of reconsider()."""
        may, self._revisable = self._revisable, False
        return may

    def reconsider(self) -> None:
        """There is a reason to choose anew, and perhaps a round of trials will follow."""
        self._revisable = True

    def _best(self, options: Sequence[Option], beside_s: float) -> Option:
        front = nsga2(options) if self._goal.solver == "nsga2" and len(options) > 1 else options
        wanted = self._goal.wanted_gain
        return knee(front, self._goal.weights, beside_s) if wanted is None else smallest_with_gain(front, wanted)

    def _keeps(self, now: Option, best: Option, options: Sequence[Option], beside_s: float) -> bool:
        """Whether the ratio in use is as good as the best one, or so nearly that a change is not worth its trials."""
        if now == best:
            return True
        if now not in options:
            return False
        wanted = self._goal.wanted_gain
        if wanted is None:
            distance = distance_on(pareto_front(options), self._goal.weights, beside_s)
            return distance(now) <= distance(best) + KNEE_MARGIN * max(self._goal.weights)
        if now.gain < min(wanted, best.gain):
            return False
        return now.compress_s + now.communicate_s <= (1 + TIME_MARGIN) * (best.compress_s + best.communicate_s)

    def _words(self, chosen: Option) -> str:
        wanted, target = self._goal.wanted_gain, self._goal.target
        named = f"the {target}" if isinstance(target, str) else f"weights {target}"
        what = named if wanted is None else f"gain {wanted:g} wanted"
        taken = f"{1e3 * chosen.compress_s:.2f} + {1e3 * chosen.communicate_s:.2f} ms expected"
        doubt = "" if self.pays else "; to send everything is expected to take less"
        return f"{what}: gain {chosen.gain:.3f}, {taken}{doubt}{self._shares.words(self.ratio_of)}"


def _fastest_gain(options: Sequence[Option], now: Option, dense_s: float, beside_s: float) -> Option:
    """Return the option that gains the most a second of training, or `now`, if it is nearly that.

    What takes longer than to send everything stands for that, and gains all there is.
    """

    def seconds_a_gain(option: Option) -> float:
        exchange_s = option.compress_s + option.communicate_s
        return (beside_s + min(exchange_s, dense_s)) / (option.gain if exchange_s < dense_s else 1.0)

    best = min(options, key=lambda option: (seconds_a_gain(option), -option.ratio))
    return now if seconds_a_gain(now) <= (1 + PACE_MARGIN) * seconds_a_gain(best) else best
