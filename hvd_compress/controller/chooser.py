"""The choice for one bucket: predict every candidate, try the promising ones on real gradients, keep the fastest.

Pure: what comes in is the same on all ranks, and there is neither clock nor chance in here, so what comes out is the
same, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from hvd_compress.controller.policy import Policy, Round
from hvd_compress.controller.standing import Known, Standing
from hvd_compress.cost.paths import Path

LONGEST = 1.3
"""A step counts for at most so many times the median of its candidate, and for at least that part of it."""

Predict = Callable[[Path], float]
"""Seconds that a candidate is expected to take: compress, communicate and decompress; infinity if it cannot."""


@dataclass(frozen=True)
class Choice:
    """What was chosen and why. `seconds` are as measured, `predicted_s` as expected before it was tried."""

    candidate: Path
    seconds: float
    predicted_s: float
    reason: str


class Chooser:
    """Tries candidates and keeps one, for one bucket.

    begin_round() begins a round of trials; candidate() says what the coming step uses; learn() takes what the steps
    since then took, in their order; settled says whether a choice stands.

    Attributes:
        choice: the one that was made last, if any.
        standing: whether it still takes what it took.
    """

    def __init__(self, candidates: Sequence[Path], policy: Policy) -> None:
        assert candidates
        self._candidates, self._policy = tuple(candidates), policy
        self._queue: list[Path] = []  # one entry a step
        self._samples: dict[Path, list[float]] = {}  # of this round
        self._times: dict[Path, float] = {}  # what they say
        self._finals = self._steps_left = 0  # of this round
        self._met: list[Path] = []  # in a final of it
        self._upset = False
        self._expected: dict[Path, float] = {}  # as predicted before it was tried
        self._predict: Predict  # both of this round
        self._round: Round
        self.choice: Choice | None = None
        self.standing = Standing(policy)

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to try."""
        return not self._queue

    @property
    def trials_left(self) -> int:
        """For how many steps what is used is decided already."""
        return len(self._queue)

    @property
    def measured(self) -> Mapping[Path, float]:
        """What the candidates of the last round took, in seconds."""
        return self._times

    def candidate(self, step: int) -> Path:
        """Return what the `step`-th step from now uses, 0 for the coming one."""
        if self._queue:
            return self._queue[step % len(self._queue)]  # from the beginning where other buckets have more to try
        assert self.choice is not None
        return self.choice.candidate

    def begin_round(self, predict: Predict) -> None:
        """Begin a round: all that was measured before is forgotten. `predict` may know more each time it is asked."""
        self._predict = predict
        self._samples, self._times, self._finals, self._met, self._upset = {}, {}, 0, [], False
        self._round = self._policy.first if self.choice is None else self._policy.later
        self._steps_left = self._round.steps
        predicted = self._predictions()
        self._try(self._first(predicted), predicted)

    def learn(self, seconds: Sequence[float]) -> bool:
        """Take the seconds of the steps since the last time; return whether a choice was made.

        They are those that were queued, and from the first one on again where other buckets had more to try: a round is
        as long for all. If no choice was made there is more to try: what is now expected to beat the best one, and the
        ways to broadcast the indices of what is near it. At last what came near the best one meets it in finals.
        """
        assert len(seconds) >= len(self._queue), f"{len(seconds)} times for {len(self._queue)} trials"
        self._steps_left -= len(seconds)
        fresh: dict[Path, list[float]] = {}
        for candidate, second in zip(cycle(self._queue), seconds, strict=False):
            fresh.setdefault(candidate, []).append(second)
            self._samples.setdefault(candidate, []).append(second)
        if self._finals:
            self._upset = self._all_changed({candidate: _typical(times) for candidate, times in fresh.items()})
        self._times = {candidate: _typical(samples) for candidate, samples in self._samples.items()}
        self._queue = []
        # In finals among those that met in the last one: a single lucky trial is no match for them.
        best = min(fresh if self._finals else self._times, key=self._times.__getitem__)
        if not self._finals:
            predicted = self._predictions()
            self._try(self._next(best, predicted), predicted)
        if not self._queue and not self._upset:
            self._queue = self._final(best)
            self._finals += bool(self._queue)
            self._queue = self._queue or self._once_more(best)
        if self._queue:
            return False
        self._choose(best)
        return True

    @property
    def upset(self) -> bool:
        """Whether all took another time in a final: perhaps the network changed, and times of two were compared."""
        return self._upset

    def spare_s(self) -> float:
        """Return by how much what is in use beat the fastest other scheme in the last round; infinity without one."""
        assert self.choice is not None
        chosen = self.choice.candidate
        rivals = [taken for way, taken in self._times.items() if way.scheme != chosen.scheme]
        return min(rivals, default=math.inf) - self._times[chosen]

    @property
    def rival_s(self) -> float:
        """Seconds of the fastest way in the last round but for the one in use; infinity without one."""
        assert self.choice is not None
        return min((taken for way, taken in self._times.items() if way != self.choice.candidate), default=math.inf)

    @property
    def usual(self) -> Choice | None:
        """The choice that stands with the seconds that are usual; None unless a window after its trials told them."""
        if self.choice is None or not self.settled or self.standing.known is not Known.WINDOW:
            return None
        return replace(self.choice, seconds=self.standing.seconds)

    def recall(self, choice: Choice, measured: Mapping[Path, float]) -> None:
        """The network is one on which a choice stood before: that stands again, with what was measured there."""
        self._queue, self._times, self._upset, self.choice = [], dict(measured), False, choice
        self.standing.begin(choice.seconds, Known.BEFORE)

    def scale(self, factor: float) -> None:
        """What is sent has become more or less, and the choice stands: it will take some `factor` times as long."""
        assert self.choice is not None
        self.standing.scale(factor)
        self.choice = replace(self.choice, seconds=self.standing.seconds)
        self._times = scaled(self._times, factor)

    def _choose(self, best: Path) -> None:
        fastest = best
        if self.choice is not None and self.choice.candidate in self._times:
            before, policy = self.choice.candidate, self._policy
            before_s, best_s = self._times[before], self._times[best]
            if best_s > before_s * (1 - policy.hysteresis) or before_s - best_s < policy.least_s:
                best = before
        self.choice = Choice(best, self._times[best], self._expected[best], self._reason(best, fastest))
        self.standing.begin(self.choice.seconds, Known.TRIALS)

    def _reason(self, best: Path, fastest: Path) -> str:
        """Say why `best` is taken; `fastest` is another one where that is not fast enough to replace what is in use."""
        rivals = sorted((t, c != fastest, str(c)) for c, t in self._times.items() if c != best)
        if not rivals:
            return f"every other way is predicted to take more than {self._round.margin:g} times as long"
        taken, lost, name = rivals[0]
        compared = f"{self._times[best] * 1e3:.2f} ms measured"
        if taken >= self._times[best]:
            compared += f", next {name} with {taken * 1e3:.2f}"
        elif lost:  # to those that met in it, and in more steps than it was tried
            compared += f"; {name} took {taken * 1e3:.2f} in its trials, but did not reach the last final"
        else:
            compared += f"; {name} took {taken * 1e3:.2f}, not enough less to replace what is in use"
        if best.scheme == "dense":
            return f"no compression pays here: {compared}"
        return compared

    def _predictions(self) -> dict[Path, float]:
        return {candidate: self._predict(candidate) for candidate in self._candidates}

    def _first(self, predicted: dict[Path, float]) -> list[Path]:
        """What a round begins with: whatever is within the margin, but each AR-Topk with one broadcast alone.

        And the candidate in use, without which nothing can be compared.
        """
        limit = min(predicted.values()) * self._round.margin + self._policy.least_s
        best: dict[tuple[str, str], Path] = {}
        for candidate in sorted(self._candidates, key=lambda candidate: predicted[candidate]):
            if predicted[candidate] <= limit:
                best.setdefault((candidate.scheme, candidate.algorithm), candidate)
        chosen = list(best.values())[: self._round.most]
        in_use = self.choice.candidate if self.choice is not None else None
        if in_use is not None and in_use not in chosen and math.isfinite(predicted[in_use]):
            chosen = [*chosen[: self._round.most - 1], in_use]
        return chosen

    def _all_changed(self, fresh: Mapping[Path, float]) -> bool:
        """Whether all that meet in a final evidently take longer than before in this round, or all of them less."""
        limit = self._policy.evident
        changes = [taken / max(self._times[c], 1e-9) for c, taken in fresh.items()]
        told_apart = all(abs(taken - self._times[c]) > self._policy.least_s for c, taken in fresh.items())
        return told_apart and (min(changes) > limit or max(changes) < 1 / limit)

    def _final(self, best: Path) -> list[Path]:
        """Return the steps of the next final, of the best one and what came near it; none if nothing did.

        Nor where it does not matter: where all of them are as fast as can be told. What met in one before goes first:
        the single steps of what did not are lucky ones by now.
        """
        least_s, steps = self._policy.least_s, self._round.final
        limit = (1 + (self._round.near - 1) / (self._finals + 1)) * self._times[best] + least_s
        near = [candidate for candidate, taken in self._times.items() if taken <= limit]
        near.sort(key=lambda candidate: (candidate != best, candidate not in self._met, self._times[candidate]))
        near = near[: min(self._round.finalists, max(0, self._steps_left) // steps)]
        if all(abs(self._times[candidate] - self._times[best]) <= least_s for candidate in near):
            return []
        self._met += [candidate for candidate in near if candidate not in self._met]
        return [candidate for candidate in near for _ in range(steps)]

    def _once_more(self, best: Path) -> list[Path]:
        """Return some steps of the best one alone, where nothing came near it and it was tried in a single one.

        A step may be far shorter than others: where a rank comes late, part of the exchange is over by then.
        """
        rivals = [taken for way, taken in self._times.items() if way != best]
        far = bool(rivals) and min(rivals) > self._round.near * self._times[best] + self._policy.least_s
        again = far and len(self._samples[best]) == 1 and self._steps_left > 0
        return [best] * 2 if again else []

    def _next(self, best: Path, predicted: dict[Path, float]) -> list[Path]:
        shortest = self._times[best]
        limit = self._round.related * shortest
        related = {(c.scheme, c.algorithm) for c, t in self._times.items() if t <= limit}
        wanted = [
            c
            for c in self._candidates
            if c not in self._times
            and math.isfinite(predicted[c])
            and (predicted[c] <= shortest or (c.scheme, c.algorithm) in related)
        ]
        left = self._steps_left - 2 * self._round.final
        return sorted(wanted, key=predicted.__getitem__)[: max(0, left)]

    def _try(self, candidates: Sequence[Path], predicted: dict[Path, float]) -> None:
        self._expected.update({candidate: predicted[candidate] for candidate in candidates})
        self._queue = list(candidates)


def scaled(times: Mapping[Path, float], factor: float) -> dict[Path, float]:
    """Return what candidates take where what is compressed takes `factor` times as long: more or less of it is sent."""
    return {way: taken if way.scheme == "dense" else factor * taken for way, taken in times.items()}


def _typical(samples: Sequence[float]) -> float:
    """Return the mean, in which no sample counts for more than LONGEST times the median, or for less than it by that.

    What makes a step far longer than others is noise, or shorter. But STAR has another root in each step, and some ways
    take longer from one of them than from the others: that must count.
    """
    middle = statistics.median(samples)
    return statistics.fmean(min(max(sample, middle / LONGEST), LONGEST * middle) for sample in samples)
