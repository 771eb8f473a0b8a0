"""The ratios of all buckets: when gains are looked at, which ratio is taken, and what rollouts show."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hvd_compress.controller.chooser import Choice
from hvd_compress.controller.expected import Bucket, Expected
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.ratio import RatioChooser
from hvd_compress.controller.report import Agreed, Timing
from hvd_compress.controller.rollout import SHARE, Trial, report
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.events.history import Event, History

LOOK_STEPS = 8
"""Gains are looked at in windows that end so many steps apart; more, where that would cost more than its share of the
time."""
LAST = 9
"""Of what the last so many comparisons saw of a step beside its exchanges the median counts."""


class Ratios:
    """The ratio of each bucket: as the bucket says, or as it is chosen where there is a goal.

    Attributes:
        rollout_due: why steps are to be rolled out now, with gain="rollout"; or nothing.
    """

    def __init__(
        self, goal: AutoRatio | None, buckets: Sequence[Bucket], expected: Sequence[Expected], history: History
    ) -> None:
        """`expected` says by bucket what an exchange costs, and learns here what it took."""
        self._goal, self._expected, self._history = goal, expected, history
        self._fixed = [bucket.ratio for bucket in buckets]
        numel = sum(bucket.numel for bucket in buckets) or 1
        self._parts = [bucket.numel / numel for bucket in buckets]  # of the step's other time
        self._choosers = [RatioChooser(goal) for _ in buckets] if goal is not None else []
        self._rolls_out = goal is not None and goal.gain == "rollout"
        self._steps_to_look = LOOK_STEPS  # until gains are looked at again
        self._trials: list[Trial] = []
        self._no_rollout_before = 0
        self._beside_s: deque[float] = deque(maxlen=LAST)
        self.rollout_due = "training begins" if self._rolls_out and buckets else ""

    @property
    def waiting(self) -> bool:
        """Whether a ratio is to be chosen, and no gains are known by which to do it."""
        return not all(chooser.gains for chooser in self._choosers)

    @property
    def trial(self) -> Trial | None:
        """What is tried now by a rollout, if one runs."""
        return self._trials[-1] if self._trials else None

    def ratio(self, number: int, scheme: str = "") -> float:
        """Return what a scheme sends of a bucket, or an all-gather; a rollout aside."""
        if not self._choosers:
            return self._fixed[number]
        chooser = self._choosers[number]
        return min(chooser.ratio_of(scheme), chooser.highest)

    def reaches(self, number: int, scheme: str) -> bool:
        """Whether a scheme can gain what is wanted of a bucket, within the bounds of the ratio."""
        return not self._choosers or math.isfinite(self._choosers[number].ratio_of(scheme))

    def pays(self, number: int) -> bool:
        """Whether that is expected to take less than no compression."""
        return not self._choosers or self._choosers[number].pays

    def beside(self, seconds: float) -> None:
        """Take what of a step was not exchange."""
        self._beside_s.append(max(0.0, seconds))

    def looking(self, last: bool, settled: bool, length: int) -> tuple[float, ...] | None:
        """Return the ratios whose gains to read in the coming step, perhaps none; None where not to look at all.

        Args:
            last: whether ranks agree after that step.
            settled: whether it belongs to a window; else to a round of trials.
            length: steps of that.
        """
        if self._goal is None:
            return None
        ends = last and settled and self._steps_to_look <= length
        if self._rolls_out:
            return () if self._trials or ends else None
        return self._goal.ratios if self.waiting or ends or (last and not settled) else None

    def learn(
        self,
        gains: Sequence[Sequence[float]],
        choices: Sequence[Choice | None],
        ways: Sequence[Path],
        usual: Sequence[float],
    ) -> None:
        """Take the agreed gains by bucket. The last one is what was sent; those before are read from the gradient.

        Without compression nothing is left over, and the next gradient alone gains more than one that follows upon
        others: that says nothing of a compressed step.

        Args:
            ways: how each bucket travelled in the step that was looked at.
            usual: what it was seen to send over turns of all ranks, NaN where that is not known. One step is that of
                one root.
        """
        for chooser, choice, way, sent, own in zip(self._choosers, choices, ways, usual, gains, strict=False):
            dense = way.scheme == "dense" or (choice is not None and choice.candidate.scheme == "dense")
            if dense and chooser.gains:
                continue
            if self._rolls_out:
                chooser.watch(own[-1])
            else:
                chooser.saw(way.scheme, sent if math.isfinite(sent) else own[-1], own[:-1])
                chooser.learn(own[:-1])

    def reconsider(self, step: int, number: int, reason: str, choice: Choice | None) -> bool:
        """There is a reason to choose anew. Return whether the ratio is another one now, and worth it.

        Args:
            choice: the way in which the bucket travels now.
        """
        if not self._choosers or self.waiting:
            return False
        self._choosers[number].reconsider()
        return self._choose(step, number, reason, choice)

    def revise(self, step: int, number: int, measured: Mapping[Path, float], choice: Choice) -> bool:
        """A round of trials is over, and has shown more: return as reconsider(), once for each call of that."""
        if not self._choosers or not self._choosers[number].revise_once():
            return False
        self._expected[number].learn(measured, lambda way: self.ratio(number, way.scheme))
        return self._choose(step, number, "after its trials", choice)

    def moved(
        self, agreed: Agreed, ways: Sequence[Path], window: int, share: float, step: int
    ) -> list[tuple[int, str]]:
        """Return, after a window, for which buckets to choose anew and why, as the gain has moved.

        Args:
            ways: how buckets travelled.
            window: its steps.
            share: of the time that looks may take.
        """
        if agreed.gains:
            steps = agreed.look_s / (share * agreed.step_s) if agreed.step_s > 0 else 0.0
            self._steps_to_look = max(LOOK_STEPS, math.ceil(steps))
        else:
            self._steps_to_look -= window
            return []
        found = []
        for number, (chooser, way) in enumerate(zip(self._choosers, ways, strict=True)):
            if moved := chooser.share_moved(way.scheme):
                found.append((number, moved))
            elif chooser.moved:
                found.append((number, f"the gain moved from {chooser.known_gain:.3f} to {chooser.seen_gain:.3f}"))
        if not self._rolls_out:
            return found
        if found and step >= self._no_rollout_before:
            self.rollout_due = f"bucket {self._history.number(found[0][0])}: {found[0][1]}"
        return []

    def roll_out(self, ratio: float) -> None:
        """The steps that come send this ratio, and will be taken back."""
        self._trials.append(Trial(ratio, tuple(expected.fastest(ratio) for expected in self._expected)))

    def record(self, timings: Sequence[Timing], gains: Sequence[Sequence[float]]) -> None:
        """Take what this rank measured in a step of a rollout."""
        self._trials[-1].timings.append(tuple(timings))
        self._trials[-1].sent.append(tuple(own[-1] for own in gains))

    def report(self) -> Callable[[Engine], Agreed]:
        """Return the collective by which ranks agree on the rollout."""
        return report(self._trials)

    def take_rollout(self, step: int, agreed: Agreed) -> str:
        """Take what all ranks measured in the rollout, which is over; return why there was one."""
        trials, self._trials, start = self._trials, [], 0
        for place, trial in enumerate(trials):
            rows = slice(start, start := start + len(trial.timings))
            seconds, kernels_s = _means(agreed.seconds[rows]), _means(agreed.kernels_s[rows])
            for number, way in enumerate(trial.candidates):
                self._expected[number].kernels.note(way.scheme, trial.ratio, kernels_s[number])
                gain, why = agreed.gains[number][place], self.rollout_due
                event = Event(step, "rollout", number, str(way), trial.ratio, seconds[number], gain=gain, reason=why)
                self._history.add(event)
        for chooser, gains in zip(self._choosers, agreed.gains, strict=True):
            chooser.learn(gains, weight=1.0)
        self._no_rollout_before = step + round(start / SHARE)
        reason, self.rollout_due = self.rollout_due, self.rollout_due if self.waiting else ""
        return reason

    def _choose(self, step: int, number: int, reason: str, choice: Choice | None) -> bool:
        assert self._goal is not None
        chooser, expected = self._choosers[number], self._expected[number]
        beside_s = self._parts[number] * statistics.median(self._beside_s) if self._beside_s else 0.0
        scheme = choice.candidate.scheme if choice is not None else ""
        before = chooser.ratio_of(scheme)
        chooser.adopt(scheme)
        chooser.choose(expected.prices(self._goal.ratios, chooser.for_same_gain), expected.dense_s, beside_s)
        changed = chooser.ratio_of(scheme) != before
        why = f"{reason}: {chooser.reason}"
        self._history.add(Event(step, "ratio", number, ratio=chooser.ratio, gain=chooser.gain, reason=why))
        compressed = choice is None or choice.candidate.scheme != "dense"
        return changed and (compressed or chooser.pays)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]
